"""Compare a static site in Chromium with PyTorch on one thread: times, bytes, memory, and many simultaneous visitors.

    vitviz export --static site && python benchmarks/static.py site photographs/ --visitors 300

Prints medians over the photographs. Both sides alternate, so that background load affects both. Then the page is
measured again with its main thread slowed down, and simulated visitors fetch the files of one visit simultaneously.
`--other SITE` compares two sites instead, for example of two versions of vitviz: each round is a first visit to both.
"""

from __future__ import annotations

import argparse
import os
import re
import statistics
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any
from urllib.request import urlopen

import numpy as np
import torch
from playwright.sync_api import Browser, Page, Playwright, sync_playwright

import vitviz

ASK = """async (method) => {
    const began = performance.now();
    const { scenes, store, backend } = vitviz;
    const scene = scenes.get(store.get().scene.id);
    const target = scene.manifest.predictions[0][2];
    const question = { method, target, against: null };
    const { values } = await (backend.explain?.(scene, question) ?? backend.ask('explain', scene, question));
    return [values, (performance.now() - began) / 1000];
}"""
PICTURES = {".jpg", ".jpeg", ".png", ".webp"}
WAIT = 300_000  # milliseconds
median = statistics.median


class Counting(SimpleHTTPRequestHandler):
    """File server that counts the bytes it sends, and records the requested paths."""

    sent = 0
    paths: list[str] = []

    def copyfile(self, source: Any, out: Any) -> None:
        Counting.sent += Path(source.name).stat().st_size
        super().copyfile(source, out)

    def log_message(self, *args: object) -> None:
        Counting.paths.append(self.path)


class Server(ThreadingHTTPServer):
    """File server like `python -m http.server` with a longer queue of connections."""

    request_queue_size = 1024


def memory(browser: Browser) -> float:
    """Return the resident memory in MB of the process that runs page and worker."""
    processes = browser.new_browser_cdp_session().send("SystemInfo.getProcessInfo")["processInfo"]
    sizes = []
    for process in processes:
        if process["type"] == "renderer":
            status = Path(f"/proc/{process['id']}/status").read_text(encoding="ascii")
            sizes += [int(size) / 1000 for size in re.findall(r"VmRSS:\s+(\d+) kB", status)]
    return max(sizes)


def opened(page: Page, url: str) -> float:
    """Return the seconds until the page shows its example."""
    began = time.perf_counter()
    page.goto(url)
    page.wait_for_function("window.vitviz?.drawn > 0", timeout=WAIT)
    return time.perf_counter() - began


def first_map(page: Page, photo: Path) -> float:
    """Return the seconds from choosing a photograph to its first map."""
    before = page.evaluate("vitviz.store.get().scene?.id")
    began = time.perf_counter()
    page.set_input_files(".vv-file input", str(photo))
    page.wait_for_function("(id) => vitviz.store.get().scene?.id !== id", arg=before, timeout=WAIT)
    seconds = time.perf_counter() - began
    page.wait_for_function("!vitviz.progress.first && vitviz.resting()", timeout=WAIT)
    return seconds


def serve(site: Path) -> str:
    """Serve a site until the program ends, and return its address."""
    server = Server(("127.0.0.1", 0), partial(Counting, directory=str(site)))
    threading.Thread(target=server.serve_forever, daemon=True).start()
    return f"http://127.0.0.1:{server.server_port}"


def cpu_seconds(browser: Browser) -> float:
    """Return the CPU time of all processes of the browser."""
    processes = browser.new_browser_cdp_session().send("SystemInfo.getProcessInfo")["processInfo"]
    return sum(process["cpuTime"] for process in processes)


def first_visit(browser: Browser, url: str, photos: list[Path]) -> dict[str, float]:
    """Return the times of a first visit in seconds; photographs wait until the service worker is installed."""
    page = browser.new_context(bypass_csp=True).new_page()
    times = {"interactive": opened(page, url)}
    page.wait_for_function("navigator.serviceWorker.controller", timeout=WAIT)
    page.wait_for_timeout(1000)  # the page loads itself again, to compute in several threads
    page.wait_for_function("window.vitviz?.drawn > 0 && vitviz.resting()", timeout=WAIT)
    before = cpu_seconds(browser)
    times["first photograph"] = first_map(page, photos[0])
    times["first photograph, CPU"] = cpu_seconds(browser) - before
    times["first GAE"] = page.evaluate(ASK, "gae")[1]
    before = cpu_seconds(browser)
    times["further photographs"] = median([first_map(page, photo) for photo in photos[1:4]])
    times["further photographs, CPU"] = (cpu_seconds(browser) - before) / len(photos[1:4])
    for method in ("gae", "legrad"):
        before = cpu_seconds(browser)
        times[method] = page.evaluate(ASK, method)[1]
        times[f"{method}, CPU"] = cpu_seconds(browser) - before
    return times


def compare(playwright: Playwright, sites: list[Path], photos: list[Path], rounds: int) -> None:
    """Visit the sites in turn, each time with a new browser, and print the median times of each."""
    urls = [serve(site) for site in sites]
    visits: list[list[dict[str, float]]] = [[] for _ in sites]
    for number in range(rounds):
        for place in (0, 1) if number % 2 else (1, 0):
            browser = launch(playwright)
            visits[place].append(first_visit(browser, urls[place], photos))
            browser.close()
    print(f"{'median of ' + str(rounds):28}" + "".join(f"{site!s:>24}" for site in sites))
    for name in visits[0][0]:
        print(f"{name:28}" + "".join(f"{median([visit[name] for visit in of]):22.2f} s" for of in visits))


def launch(playwright: Playwright) -> Browser:
    return playwright.chromium.launch(executable_path="/usr/bin/chromium", args=["--no-sandbox"])


def forward(explorer: vitviz.Explorer, photo: Path) -> tuple[float, vitviz.View]:
    """Return the seconds of one forward pass, and the view."""
    view = explorer.open(photo)
    with torch.no_grad():
        began = time.perf_counter()
        explorer.model(view.images)
        return time.perf_counter() - began, view


def rank_correlation(first: np.ndarray, second: np.ndarray) -> float:
    """Return Spearman's rank correlation of two maps."""
    ranks = [np.argsort(np.argsort(values)) for values in (first, second)]
    return float(np.corrcoef(*ranks)[0, 1])


def measure_photos(page: Page, browser: Browser, explorer: vitviz.Explorer, photos: list[Path]) -> None:
    """Print times, differences from Python and memory over photographs."""
    times, forwards, maps, site_forwards, ranks, errors, sizes = [], [], [], [], [], [], []
    for photo in photos:
        seconds, view = forward(explorer, photo)
        forwards.append(seconds)
        times.append(first_map(page, photo))
        values, seconds = page.evaluate(ASK, "gae")
        maps.append(seconds)
        manifest = page.evaluate("vitviz.scenes.get(vitviz.store.get().scene.id).manifest")
        site_forwards.append(manifest["badge"]["seconds"])
        ranks.append(rank_correlation(np.array(values), view.explain("gae").values.ravel()))
        expected = dict(view.predictions())
        errors.append(max(abs(share - expected.get(name, share)) for name, share, _ in manifest["predictions"]))
        sizes.append(memory(browser))
    print(f"PyTorch, one thread, forward: {median(forwards):.3f} s")
    print(f"photo to first map: {median(times):.3f} s ({median(times) / median(forwards):.1f} x)")
    print(f"the site's forward: {median(site_forwards):.3f} s")
    print(f"GAE: {median(maps):.3f} s ({median(maps) / median(site_forwards):.1f} x the site's forward)")
    print(f"GAE, rank correlation with Python: at least {min(ranks):.4f}; probabilities off by {max(errors):.1e}")
    print(f"memory of page and worker: {sizes[min(1, len(sizes) - 1)]:.0f} MB after two of {len(photos)}, "
          f"{sizes[-1]:.0f} MB after all, at most {max(sizes):.0f} MB")  # fmt: skip


def measure_slow(browser: Browser, url: str, photos: list[Path], rate: int) -> None:
    """Print times of a page whose main thread, but not its worker, is slowed down."""
    page = browser.new_context(bypass_csp=True).new_page()
    page.context.new_cdp_session(page).send("Emulation.setCPUThrottlingRate", {"rate": rate})
    print(f"page slowed down {rate} times: interactive after {opened(page, url):.2f} s")
    first_map(page, photos[0])
    times = [first_map(page, photo) for photo in photos[1:4]]
    maps = [page.evaluate(ASK, method)[1] for method in ("gae", "rollout", "legrad")]
    print(f"  photo to first map {median(times):.2f} s; GAE, rollout, LeGrad {', '.join(f'{s:.2f} s' for s in maps)}")
    page.context.close()


def measure_visitors(url: str, paths: list[str], count: int) -> None:
    """Print times and errors of many visitors that fetch the files of one visit simultaneously."""
    failures: list[str] = []

    def fetch(path: str) -> int:
        try:
            with urlopen(f"{url}{path}", timeout=600) as answer:
                return sum(len(part) for part in iter(lambda: answer.read(1 << 20), b""))
        except OSError as error:
            failures.append(str(error))
            return 0

    def visit(_: int) -> tuple[int, float]:
        began = time.perf_counter()
        return sum(fetch(path) for path in paths), time.perf_counter() - began

    began = time.perf_counter()
    with ThreadPoolExecutor(count) as pool:
        visits = list(pool.map(visit, range(count)))
    seconds, (sizes, times) = time.perf_counter() - began, zip(*visits, strict=True)
    print(f"{count} visitors: {len(paths)} files each, {sum(sizes) / 1e9:.1f} GB in {seconds:.0f} s, median visit "
          f"{median(times):.0f} s, {len(failures)} errors {sorted(set(failures))}")  # fmt: skip


def pictures(places: list[Path], most: int) -> list[Path]:
    """Return at most `most` pictures from files and folders, evenly spaced."""
    paths = [path for place in places for path in (sorted(place.rglob("*")) if place.is_dir() else [place])]
    paths = [path for path in paths if path.suffix.lower() in PICTURES]
    return paths[:: max(1, len(paths) // most)][:most]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("site", type=Path)
    parser.add_argument("photos", type=Path, nargs="+", help="pictures, or folders of pictures")
    parser.add_argument("--model", default="dinov2-s14-everyday")
    parser.add_argument("--most", type=int, default=50, help="maximum number of photographs (default: 50)")
    parser.add_argument("--slow", type=int, default=4, help="slowdown of the page's main thread (default: 4)")
    parser.add_argument("--other", type=Path, help="another site, to compare")
    parser.add_argument("--rounds", type=int, default=7, help="first visits to each site with --other (default: 7)")
    parser.add_argument("--visitors", type=int, default=0, help="number of simulated visitors (default: 0)")
    args = parser.parse_args()
    photos = pictures(args.photos, args.most)
    if args.other:
        with sync_playwright() as playwright:
            compare(playwright, [args.site, args.other], photos, args.rounds)
        return
    torch.set_num_threads(1)
    explorer = vitviz.Explorer(vitviz.load(args.model))
    url = serve(args.site)
    with sync_playwright() as playwright:
        browser = launch(playwright)
        page = browser.new_context(bypass_csp=True).new_page()
        print(f"interactive after {opened(page, f'{url}/'):.2f} s")
        print(f"first photograph, with the download of runtime and model: {first_map(page, photos[0]):.1f} s")
        page.evaluate(ASK, "gae")  # creates the sessions of the backward pass
        visited = list(Counting.paths)
        print(f"first visit: {Counting.sent / 1e6:.1f} MB")
        measure_photos(page, browser, explorer, photos[1:])
        Counting.sent = 0
        page.reload()
        page.wait_for_function("window.vitviz?.drawn > 0")
        page.wait_for_timeout(2000)
        print(f"second visit: {Counting.sent / 1e6:.2f} MB")
        page.context.close()
        measure_slow(browser, f"{url}/", photos, args.slow)
        browser.close()
    if args.visitors:
        measure_visitors(url, visited, args.visitors)
    print(f"load average: {', '.join(f'{load:.1f}' for load in os.getloadavg())}")


if __name__ == "__main__":
    main()
