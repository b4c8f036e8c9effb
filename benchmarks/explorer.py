"""Measure the explorer in a browser: the time from a pointer move to the drawn frame, and the cost of a page.

    python benchmarks/explorer.py                # needs Chromium; prints medians and 95th percentiles

The script opens saved pages of randomly initialized models of common sizes, and moves the pointer many times. It
measures the same in the app, for attention and for similar patches in two photographs. A time runs from the event to
the paint of the frame that it causes, without the wait for the frame to begin, because browsers deliver real pointer
events just before a frame. The times are measured again with the CPU throttled to a quarter of its speed.
"""

from __future__ import annotations

import argparse
import platform
import shutil
import statistics
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import numpy as np
import torch
from PIL import Image
from playwright.sync_api import CDPSession, Page, sync_playwright

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "scripts"))

from make_screenshots import serve

import vitviz
from vitviz.explorer import Explorer
from vitviz.model.config import preset
from vitviz.model.vit import ViT
from vitviz.view import View

CHROMIUM = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable")
FLAGS = ["--no-sandbox", "--disable-gpu", "--no-first-run", "--disable-background-networking"]
FRAME = 1000 / 60
COMPLETE = "window.vitviz?.scenes.get(vitviz.store.get().scene?.id)?.answers.complete"
EXAMPLE = Path(__file__).parents[1] / "examples" / "church.jpg"

MOVES = """async (count) => {
    const picture = document.querySelector('.vv-picture');
    const box = document.querySelector('.vv-held').getBoundingClientRect();
    const times = [];
    for (let i = 0; i < count; i += 1) {
        await new Promise((rest) => setTimeout(rest, 5));
        const [x, y] = [(i * 0.618) % 1, (i * 0.377) % 1];
        const at = { clientX: box.left + box.width * x, clientY: box.top + box.height * y };
        times.push(await new Promise((drawn) => {
            let handled = 0;
            let began = 0;
            requestAnimationFrame(() => { began = performance.now(); });
            const before = performance.now();
            picture.dispatchEvent(new PointerEvent('pointermove', { ...at, pointerType: 'mouse', bubbles: true }));
            handled = performance.now() - before;
            requestAnimationFrame(() => {
                const channel = new MessageChannel();
                channel.port1.onmessage = () => drawn(handled + performance.now() - began);
                channel.port2.postMessage(0);
            });
        }));
    }
    return times;
}"""


def random_view(name: str, side: int, depth: int | None = None) -> View:
    """Open a photograph with a random model of a preset's size."""
    changes: dict[str, Any] = {"depth": depth} if depth else {}
    torch.manual_seed(0)
    model = ViT(preset(name, image_size=(side, side), patch_size=16, classes=10, **changes)).eval()
    with torch.no_grad():
        for block in model.blocks:
            block.attn.qkv.weight.mul_(4.0)  # attention of a new model would be almost uniform
    return Explorer(model).open(np.asarray(Image.open(EXAMPLE).convert("RGB").resize((side, side))))


def moves(page: Page, client: CDPSession, count: int, throttle: float) -> tuple[float, float]:
    """Return the median and the 95th percentile in milliseconds."""
    client.send("Emulation.setCPUThrottlingRate", {"rate": throttle})
    page.evaluate(MOVES, 20)  # warm-up
    times = page.evaluate(MOVES, count)
    client.send("Emulation.setCPUThrottlingRate", {"rate": 1})
    return statistics.median(times), statistics.quantiles(times, n=20)[-1]


MATCHED = """(() => {
    const { scenes, panels, resting } = window.vitviz ?? {};
    return scenes?.size === 2 && [...scenes.values()].every(({ answers }) => answers.complete)
        && panels[0].similarity.matching?.done && resting();
})()"""
# The patches of both photographs, and the next larger input size.
PATCHES = """[[...vitviz.scenes.values()].map(({ grid }) => grid[0] * grid[1]),
    vitviz.scenes.values().next().value.manifest.sizes[1].size]"""

WATCH = """(() => {
    const look = () => {
        if (window.vitviz?.drawn > 0) window.firstMap = performance.now();
        else requestAnimationFrame(look);
    };
    look();
})()"""


def opened(page: Page, path: Path) -> float:
    """Open a page, and return the seconds from the start of navigation to the first drawn map."""
    page.goto(path.as_uri())
    page.wait_for_function("window.firstMap > 0", timeout=120_000)
    seconds: float = page.evaluate("window.firstMap / 1000")
    page.wait_for_function(COMPLETE, timeout=120_000)
    return seconds


def follow(page: Page, client: CDPSession, folder: Path, args: argparse.Namespace) -> None:
    """Measure pointer moves on models of three sizes."""
    cases = (
        ("257 tokens, 6 heads of one block", lambda: random_view("small", 256), False, 1, 2),
        ("257 tokens, whole model, 12 x 6", lambda: random_view("small", 256), True, 1, 3),
        ("197 tokens, whole model, 12 x 12", lambda: random_view("base", 224), True, 1, 3),
        ("4,097 tokens, 6 heads of one block", lambda: random_view("small", 1024, depth=1), False, 1, None),
    )
    heads = ("median", "95 %", "target", "x 4", "95 %", "target")
    print(f"\n  {'pointer to drawn, ms':<36} " + " ".join(f"{head:>8}" for head in heads))
    for name, make, whole, frames, slow in cases:
        path = folder / "page.html"
        path.write_text(make().html(), encoding="utf-8")
        opened(page, path)
        page.evaluate(
            """(whole) => {
            document.querySelector('.vv-whole').open = whole;
            vitviz.store.dispatch({ type: 'change', change: { open: whole ? [] : ['more'] } });
        }""",
            whole,
        )
        plain, throttled = moves(page, client, args.moves, 1), moves(page, client, args.moves, 4)
        last = f"{slow * FRAME:8.1f}" if slow else f"{'-':>8}"
        print(f"  {name:<36} {plain[0]:8.1f} {plain[1]:8.1f} {frames * FRAME:8.1f} "
              f"{throttled[0]:8.1f} {throttled[1]:8.1f} {last}", flush=True)  # fmt: skip


def similar(page: Page, client: CDPSession, args: argparse.Namespace) -> None:
    """Measure pointer moves in two photographs without thumbnails: similar patches, components, and attention."""
    address, requests = serve(), []
    page.on("request", lambda request: requests.append(request.url))
    print("\n  two photographs, default model")
    size: int | None = None
    for _ in range(2):
        sizes = f"&size={size}&size2={size}" if size else ""
        page.goto(f"{address}?image=Cat&image2=Dog&pane=1&mode=similarity{sizes}")
        page.wait_for_function(MATCHED, timeout=240_000)
        page.evaluate("document.querySelector('.vv-whole').open = false")
        patches, size = page.evaluate(PATCHES)
        pointing = 0  # requests
        for mode, similar in (("attention", "cosine"), ("similarity", "cosine"), ("similarity", "components")):
            change = {"mode": mode, "similar": similar}
            page.evaluate("(change) => vitviz.store.dispatch({ type: 'change', change })", change)
            page.wait_for_function("vitviz.resting() && vitviz.progress.jobs.size === 0")
            before = len(requests)
            plain, throttled = moves(page, client, args.moves, 1), moves(page, client, args.moves, 4)
            pointing += len(requests) - before
            shown = mode if similar == "cosine" else similar
            name = f"{patches[0]:,} and {patches[1]:,} patches, {shown}"
            print(f"  {name:<36} {plain[0]:8.1f} {plain[1]:8.1f} {FRAME:8.1f} "
                  f"{throttled[0]:8.1f} {throttled[1]:8.1f} {'-':>8}", flush=True)  # fmt: skip
        print(f"  requests while pointing: {pointing} (target 0)")


def alone(page: Page, folder: Path) -> None:
    """Measure size and start of a saved page, and check that it makes no requests."""
    view = Explorer(vitviz.load("dinov2-s14-imagenette")).open(EXAMPLE)
    began = time.perf_counter()
    text = view.html()
    duration = time.perf_counter() - began
    path = folder / "default.html"
    path.write_text(text, encoding="utf-8")
    requests: list[str] = []
    page.on("request", lambda request: requests.append(request.url))
    seconds = [opened(page, path) for _ in range(5)]
    before = len(requests)
    page.evaluate(MOVES, 200)
    for key in "[],.0cdrg" * 10:
        page.keyboard.press(key)
    print(f"\n  saved page: {path.stat().st_size / 1e6:.1f} MB (target 8), written in {duration:.2f} s, "
          f"first map {1000 * statistics.median(seconds):.0f} ms after opening (target 1,000)")  # fmt: skip
    print(f"  requests while pointing and changing layers and heads: {len(requests) - before} (target 0)")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--moves", type=int, default=200)
    args = parser.parse_args()
    chromium = next((path for name in CHROMIUM if (path := shutil.which(name))), None)
    with sync_playwright() as play, tempfile.TemporaryDirectory() as name:
        browser = play.chromium.launch(executable_path=chromium, args=FLAGS)
        page = browser.new_page(bypass_csp=True, viewport={"width": 1440, "height": 900})
        page.add_init_script(WATCH)
        client = page.context.new_cdp_session(page)
        print(f"{platform.machine()}, {torch.get_num_threads()} threads, Chromium {browser.version}")
        follow(page, client, Path(name), args)
        similar(page, client, args)
        alone(page, Path(name))
        browser.close()


if __name__ == "__main__":
    main()
