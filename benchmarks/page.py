"""Compare the page of the app in a browser with the page of another checkout: what a visitor sees first, and times.

    python benchmarks/page.py --other ../before     # needs Chromium; alternates, and prints medians and maxima

Each checkout serves its page in a separate process. The time of a photograph runs from the choice of the file to the
frame with its map. The duration of the forward pass, which the page displays, is subtracted.
"""

from __future__ import annotations

import argparse
import os
import platform
import re
import shutil
import socket
import statistics
import sys
import tempfile
import time
from collections import defaultdict
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import httpx
import psutil
from explorer import CHROMIUM, EXAMPLE, FLAGS, MOVES
from PIL import Image
from playwright.sync_api import Browser, CDPSession, Page, Request, sync_playwright

HERE = Path(__file__).parents[1]
LOADED = 120_000  # milliseconds
ROUNDS = 5
SLOW = 6  # a weak laptop: Chromium slows down the page's main thread by this factor
# The id of the scene whose map is drawn, or "". Old pages have an explorer instead of a store.
SHOWN = """() => {
    const { store, scenes, resting, explorer } = window.vitviz ?? {};
    if (!store) {
        const { data, block } = explorer?.here ?? {};
        return data?.answers.has(block) && explorer.frame === 0 ? data.manifest.id : '';
    }
    const { scene, block } = store.get();
    const shown = scenes.get(scene?.id);
    return shown?.answers.has(block ?? shown.manifest.depth - 1) && resting() ? scene.id : '';
}"""
# At first sight: what is visible without scrolling, besides the wall of small maps.
SIGHT = """() => {
    const within = ({ left, top, right, bottom, width, height }) => width > 1 && height > 1 && right > 0 && bottom > 0
        && left < innerWidth && top < innerHeight;
    const seen = (element) => element.checkVisibility({ visibilityProperty: true }) && !element.closest('.vv-grid');
    const controls = [...document.querySelectorAll('.vv :is(button, input, select, textarea, summary, a[href])')]
        .filter((control) => seen(control) && within(control.getBoundingClientRect()));
    const walker = document.createTreeWalker(document.querySelector('.vv'), NodeFilter.SHOW_TEXT);
    const [words, styles, range] = [[], new Set(), document.createRange()];
    while (walker.nextNode()) {
        const { currentNode: text, currentNode: { parentElement: parent } } = walker;
        range.selectNodeContents(text);
        if (!text.data.trim() || !seen(parent) || !within(range.getBoundingClientRect())) continue;
        if (parent.getBoundingClientRect().width <= 1 || parent.matches('option')) continue;
        words.push(...(text.data.match(/\\p{L}[\\p{L}\\p{M}’'-]*/gu) ?? []));
        const { fontSize, fontWeight, fontStyle } = getComputedStyle(parent);
        styles.add([fontSize, fontWeight, fontStyle].join(' '));
    }
    const { width, height } = document.querySelector('.vv-held').getBoundingClientRect();
    return { controls: controls.length, words: words.length, styles: styles.size,
        share: (width * height) / (innerWidth * innerHeight) };
}"""
WATCH = """() => {
    const watched = window.watched = { shift: 0, task: 0 };
    const watch = (type, seen) => new PerformanceObserver((list) => list.getEntries().forEach(seen))
        .observe({ type, buffered: true });
    watch('layout-shift', (entry) => { if (!entry.hadRecentInput) watched.shift += entry.value; });
    watch('longtask', ({ duration }) => { watched.task = Math.max(watched.task, duration); });
}"""
# Whether the photograph, the prediction and the sentence are visible, from the page's HTML or with its first map.
READABLE = f"""() => {{
    const photo = [...document.querySelectorAll('.vv-first img')];
    const said = ['.vv-predictions li', '.vv-sentence'].map((part) => document.querySelector(part)?.textContent.trim());
    return (photo.length > 0 && photo.every((image) => image.complete && image.naturalWidth) && said.every(Boolean))
        || ({SHOWN})() !== '';
}}"""
REST = 1500  # milliseconds after the last block
IDLE = 20  # percent of one core: a server that uses less is computing no answer
WEAK = 4  # factor by which a phone's processor is slower
LINE = {"offline": False, "latency": 150, "downloadThroughput": 200_000, "uploadThroughput": 90_000}  # 1.6 Mbit/s
COMPLETE = """() => (window.vitviz.store ? window.vitviz.scenes.get(window.vitviz.store.get().scene.id)
    : window.vitviz.explorer.here.data).answers.complete"""


class Side:
    """Page of a checkout with its measurements."""

    def __init__(self, tree: Path, browser: Browser, log: Any) -> None:
        self.tree = tree
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            port = free.getsockname()[1]
        self.port, self.log = port, log
        self.url = f"http://127.0.0.1:{port}/"
        self.server: psutil.Popen | None = None
        self.browser = browser
        self.started: list[float] = []
        self.ready: list[float] = []
        self.beyond: list[float] = []
        self.memory: list[float] = []
        self.requests: list[str] = []
        self.paint_times: list[float] = []
        self.slow_times: list[float] = []
        self.cpu_times: list[float] = []
        self.sights: list[dict[str, float]] = []

    def start(self) -> None:
        """Start or restart the server, and record the CPU time of its process until it listens."""
        self.stop()
        variables = {"GRADIO_SERVER_NAME": "127.0.0.1", "GRADIO_SERVER_PORT": str(self.port)}
        environment = {**os.environ, **variables, "PYTHONPATH": str(self.tree)}
        environment.pop("PYTHONDONTWRITEBYTECODE", None)  # an installed server has compiled modules
        command = [sys.executable, "-m", "vitviz", "app"]
        self.server = psutil.Popen(command, cwd=self.tree, env=environment, stdout=self.log, stderr=self.log)
        while socket.socket().connect_ex(("127.0.0.1", self.port)) != 0:
            if self.server.poll() is not None:
                raise SystemExit(f"The server of {self.tree} ended before it listened.")
            time.sleep(0.05)
        used = self.server.cpu_times()
        self.started.append(1000 * (used.user + used.system))

    def stop(self) -> None:
        """Stop the server, if it runs."""
        if self.server is not None:
            self.server.terminate()
            self.server.wait()

    def open(self) -> None:
        """Open the page in a browser without a cache, and record the time until it shows a map."""
        if self.ready:
            self.page.context.close()
        self.page = self.browser.new_context(viewport={"width": 1440, "height": 900}).new_page()
        began = time.perf_counter()
        self.page.goto(self.url)
        self.page.wait_for_function(SHOWN, polling=5, timeout=LOADED)
        self.ready.append(1000 * (time.perf_counter() - began))
        self.page.wait_for_function(COMPLETE, timeout=LOADED)

    def look(self, *, weak: int = 1, phone: bool = False) -> dict[str, float]:
        """Open the page in a browser without a cache, and return what is seen and measured until all blocks are there.

        Args:
            weak: factor by which the processor is slowed down.
            phone: whether the window and the line are a phone's.
        """
        size = {"width": 390, "height": 844} if phone else {"width": 1440, "height": 900}
        context = self.browser.new_context(viewport=size, has_touch=phone, reduced_motion="reduce")
        page = context.new_page()
        page.add_init_script(f"({WATCH})()")
        client = context.new_cdp_session(page)
        received: dict[str, float] = defaultdict(float)  # bytes of each request

        def came(event: dict[str, Any]) -> None:
            received[event["requestId"]] += event["encodedDataLength"]

        def ended(event: dict[str, Any]) -> None:
            received[event["requestId"]] = event[
                "encodedDataLength"
            ]  # includes headers; documents have no earlier event

        client.on("Network.dataReceived", came)
        client.on("Network.loadingFinished", ended)
        client.send("Network.enable")
        client.send("Emulation.setCPUThrottlingRate", {"rate": weak})
        if phone:
            client.send("Network.emulateNetworkConditions", LINE)
        began = time.perf_counter()
        page.goto(self.url, wait_until="commit")
        page.wait_for_function(READABLE, polling=20, timeout=LOADED)
        first = {"readable": 1000 * (time.perf_counter() - began)}
        page.wait_for_function(SHOWN, polling=20, timeout=LOADED)
        first |= {"ready": 1000 * (time.perf_counter() - began), "bytes": sum(received.values())}
        if not phone:
            page.wait_for_function(COMPLETE, timeout=LOADED)
            page.wait_for_timeout(REST)
        seen = first | page.evaluate(SIGHT) | page.evaluate("window.watched")
        if weak == 1:
            seen["later"] = self.walk(page)
        context.close()
        return seen

    def walk(self, page: Page) -> float:
        """Open each tab and another photograph, and return the layout shift that does not follow an input."""
        page.evaluate("window.watched.shift = 0")
        for tab in page.get_by_role("tab").all():
            tab.click()
            page.wait_for_timeout(REST)
        page.get_by_role("tab").first.click()
        page.locator("[data-kind=example]").nth(1).click()
        page.wait_for_function(COMPLETE, timeout=LOADED)
        page.wait_for_timeout(REST)
        return float(page.evaluate("window.watched.shift"))

    def choose(self, photo: Path) -> None:
        """Choose a photograph, and record the time until its map is drawn and the memory afterwards."""
        before = self.page.evaluate(SHOWN)
        began = time.perf_counter()
        self.page.locator("#photo input[type=file]").first.set_input_files(str(photo))
        shown = f"(before) => {{ const now = ({SHOWN})(); return now && now !== before; }}"
        self.page.wait_for_function(shown, arg=before, polling=5, timeout=LOADED)
        seconds = time.perf_counter() - began
        took = re.search(r"([\d.]+)\s(ms|s)\s", self.page.locator("#badge").text_content() or "")
        assert took, "Expected the time of the forward pass on the page, got none."
        self.beyond.append(1000 * (seconds - float(took[1]) / (1000 if took[2] == "ms" else 1)))
        self.page.wait_for_function(COMPLETE, timeout=LOADED)
        client = self.page.context.new_cdp_session(self.page)
        client.send("HeapProfiler.collectGarbage")
        usage = client.send("Runtime.getHeapUsage")
        self.memory.append(usage["usedSize"] + usage.get("backingStorageSize", 0))
        self.page.wait_for_timeout(2 * REST)  # after which the page asks for the caption and for a larger input
        assert self.server is not None
        while self.server.cpu_percent(0.5) > IDLE:
            pass

    def point(self, count: int) -> None:
        """Move the pointer, and record the milliseconds from each event to the paint, the CPU time, and requests."""

        def record(request: Request) -> None:
            self.requests.append(request.url)

        self.page.on("request", record)
        client = self.page.context.new_cdp_session(self.page)
        client.send("Performance.enable", {"timeDomain": "threadTicks"})
        self.page.evaluate(MOVES, 20)  # warm-up
        before = _task_seconds(client)
        self.paint_times += self.page.evaluate(MOVES, count)
        self.cpu_times.append(1000 * (_task_seconds(client) - before) / count)
        client.send("Emulation.setCPUThrottlingRate", {"rate": SLOW})
        self.slow_times += self.page.evaluate(MOVES, count)
        client.send("Emulation.setCPUThrottlingRate", {"rate": 1})
        self.page.remove_listener("request", record)

    def scripts(self) -> int:
        """Return the bytes of our own JavaScript in the page, without Gradio's scripts."""
        own = re.search(r"vitviz/files/page\.\w+\.js", httpx.get(self.url, timeout=60).text)
        if own:
            return len(httpx.get(f"{self.url}{own[0]}", timeout=60).content)
        return _scripts(httpx.get(f"{self.url}config", timeout=60).json())

    def lines(self, folder: str) -> int:
        """Return the lines of code in a folder of vitviz."""
        files = (path for path in (self.tree / "vitviz" / folder).rglob("*") if path.suffix in (".py", ".js"))
        return sum(len(path.read_text(encoding="utf-8").splitlines()) for path in files)


def _task_seconds(client: CDPSession) -> float:
    """Return the CPU time of the page's main thread."""
    metrics = client.send("Performance.getMetrics")["metrics"]
    return next(float(metric["value"]) for metric in metrics if metric["name"] == "TaskDuration")


def _scripts(config: Any) -> int:
    """Return the bytes of all scripts in Gradio's config of a page."""
    if isinstance(config, list):
        return sum(map(_scripts, config))
    if not isinstance(config, dict):
        return 0
    scripts = [value for name, value in config.items() if name in ("js", "js_on_load") and isinstance(value, str)]
    return sum(len(script.encode()) for script in scripts) + sum(map(_scripts, config.values()))


def _photographs(folder: Path, count: int) -> Iterator[Path]:
    """Yield distinct photographs: the examples with a different number of columns cut off."""
    files = sorted(EXAMPLE.parent.glob("*.jpg"))
    for index in range(count):
        with Image.open(files[index % len(files)]) as photo:
            path = folder / f"{index}.jpg"
            photo.crop((1 + index, 0, *photo.size)).save(path, quality=90)
            yield path


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--other", type=Path, metavar="TREE", help="another checkout of vitviz")
    parser.add_argument("--moves", type=int, default=200)
    parser.add_argument("--photographs", type=int, default=20)
    args = parser.parse_args()
    chromium = next((path for name in CHROMIUM if (path := shutil.which(name))), None)
    with sync_playwright() as play, ExitStack() as stack:
        browser = play.chromium.launch(executable_path=chromium, args=FLAGS)
        log = stack.enter_context(tempfile.TemporaryFile())
        sides = [Side(tree.resolve(), browser, log) for tree in (HERE, args.other) if tree]
        for side in sides:
            stack.callback(side.stop)
        for _ in range(ROUNDS):
            for side in sides:
                side.start()
        photos = list(_photographs(Path(stack.enter_context(tempfile.TemporaryDirectory())), args.photographs))
        for _ in range(ROUNDS):
            for side in sides:
                side.open()
        for side in sides:
            side.sights = [side.look(), side.look(weak=WEAK), side.look(weak=WEAK, phone=True)]
        for photo in photos:
            for side in sides:
                side.choose(photo)
        for _ in range(ROUNDS):
            for side in sides:
                side.point(args.moves // ROUNDS)
        rows = [_row(side) for side in sides]
        load = f"{os.cpu_count()} cores, load {os.getloadavg()[0]:.0f}"
        print(f"{platform.machine()}, {load}, Chromium {browser.version}; milliseconds unless stated")
        columns = [("", ["this page", "other page"][: len(sides)], "target")]
        columns += [(name, [row[name] for row in rows], target) for name, target in zip(ROWS, TARGETS, strict=True)]
        for name, values, target in columns:
            print(f"  {name:<52}" + "".join(f"{value:>20}" for value in values) + f"   {target}")
        browser.close()


TARGETS = (
    "30",
    "90",
    "5",
    "0.45",
    "0.05",
    "0.02",
    "2,500",
    "200",
    "500",
    "4000",
    "",
    "3000",
    "",
    "150",
    "0",
    "16.7",
    "16.7",
    "",
    "1.5 x",
    "",
    "",
    "",
)
ROWS = (
    "controls at first sight, besides the wall",
    "words at first sight",
    "text styles at first sight",
    "picture's share of 1440 x 900",
    "layout shift at load",
    "layout shift later: each tab, another photograph",
    "kB before the first map",
    "longest task",
    f"longest task, processor {WEAK} x slower",
    "phone on a slow line: readable",
    "phone on a slow line: first map",
    "server's CPU time from start to listening",
    "page opened to first map",
    "photograph to first map, without the forward pass",
    "requests while pointing",
    "pointer to paint",
    f"pointer to paint, processor {SLOW} x slower",
    "main thread's CPU time per move",
    "browser's memory, last photograph / first",
    "JavaScript, bytes",
    "lines of web/",
    "lines of server/",
)


def _row(side: Side) -> dict[str, str]:
    """Return the column of a checkout."""
    sight, weak, phone = side.sights
    values = (
        *(f"{sight[name]:.0f}" for name in ("controls", "words", "styles")),
        *(f"{sight[name]:.2f}" for name in ("share", "shift", "later")),
        f"{sight['bytes'] / 1000:,.0f}",
        *(f"{each:.0f}" for each in (sight["task"], weak["task"], phone["readable"], phone["ready"])),
        *(_spread(times) for times in (side.started, side.ready, side.beyond)),
        str(len(side.requests)),
        *(
            f"{statistics.median(times):.1f}, 95 % {statistics.quantiles(times, n=20)[-1]:.1f}"
            for times in (side.paint_times, side.slow_times)
        ),
        f"{statistics.median(side.cpu_times):.1f}",
        f"{side.memory[-1] / side.memory[0]:.2f} x",
        f"{side.scripts():,}",
        *(f"{side.lines(folder):,}" for folder in ("web", "server")),
    )
    return dict(zip(ROWS, values, strict=True))


def _spread(times: list[float]) -> str:
    return f"{statistics.median(times):.0f}, worst {max(times):.0f}"


if __name__ == "__main__":
    main()
