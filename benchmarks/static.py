"""Measure a static site in Chromium beside PyTorch on one thread: time to the first map, GAE, bytes, memory.

    vitviz export --static site && python benchmarks/static.py site photo.jpg ...

Prints medians over the photographs; both sides run in turn, so that other work slows both.
"""

from __future__ import annotations

import argparse
import statistics
import threading
import time
from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import numpy as np
import torch
from playwright.sync_api import Page, sync_playwright

import vitviz

ASK = """async (method) => {
    const began = performance.now();
    const { scenes, store, backend } = vitviz;
    const scene = scenes.get(store.get().scene.id);
    const target = scene.manifest.predictions[0][2];
    const { values } = await backend.explain(scene, { method, target, against: null });
    return [values, (performance.now() - began) / 1000];
}"""


class Counting(SimpleHTTPRequestHandler):
    """File server that counts the bytes it sends."""

    sent = 0

    def copyfile(self, source: Any, out: Any) -> None:
        Counting.sent += Path(source.name).stat().st_size
        super().copyfile(source, out)

    def log_message(self, *args: object) -> None:
        pass


def first_map(page: Page, photo: Path) -> float:
    """Return the seconds from a photograph to the browser's own scene of it."""
    before = page.evaluate("vitviz.store.get().scene?.id")
    began = time.perf_counter()
    page.set_input_files(".vv-file input", str(photo))
    page.wait_for_function("(id) => vitviz.store.get().scene?.id !== id", arg=before, timeout=120_000)
    taken = time.perf_counter() - began
    page.wait_for_function("!vitviz.progress.first && vitviz.resting()", timeout=120_000)
    return taken


def forward(explorer: vitviz.Explorer, photo: Path) -> tuple[float, vitviz.View]:
    """Return the seconds of one forward pass, and the view."""
    view = explorer.open(photo)
    with torch.no_grad():
        began = time.perf_counter()
        explorer.model(view.images)
        return time.perf_counter() - began, view


def rank_correlation(one: np.ndarray, other: np.ndarray) -> float:
    """Return Spearman's rank correlation of two maps."""
    ranks = [np.argsort(np.argsort(values)) for values in (one, other)]
    return float(np.corrcoef(*ranks)[0, 1])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("site", type=Path)
    parser.add_argument("photos", type=Path, nargs="+")
    parser.add_argument("--model", default="dinov2-s14-everyday")
    args = parser.parse_args()
    torch.set_num_threads(1)
    explorer = vitviz.Explorer(vitviz.load(args.model))
    server = ThreadingHTTPServer(("127.0.0.1", 0), partial(Counting, directory=str(args.site)))
    threading.Thread(target=server.serve_forever, daemon=True).start()
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path="/usr/bin/chromium", args=["--no-sandbox"])
        page = browser.new_context().new_page()
        began = time.perf_counter()
        page.goto(f"http://127.0.0.1:{server.server_port}/")
        page.wait_for_function("window.vitviz?.drawn > 0")
        print(f"opened alive after {time.perf_counter() - began:.2f} s")
        print(f"first photograph, with runtime and model to load: {first_map(page, args.photos[0]):.1f} s")
        print(f"first visit: {Counting.sent / 1e6:.1f} MB")
        page.evaluate(ASK, "gae")  # makes the sessions of the backward pass
        times, forwards, maps, own, ranks, logits = [], [], [], [], [], []
        for photo in args.photos[1:]:
            seconds, view = forward(explorer, photo)
            forwards.append(seconds)
            times.append(first_map(page, photo))
            values, taken = page.evaluate(ASK, "gae")
            maps.append(taken)
            manifest = page.evaluate("vitviz.scenes.get(vitviz.store.get().scene.id).manifest")
            own.append(manifest["badge"]["seconds"])
            ranks.append(rank_correlation(np.array(values), view.explain("gae").values.ravel()))
            known = dict(view.predictions())
            logits.append(max(abs(share - known.get(name, share)) for name, share, _ in manifest["predictions"]))
        memory = page.evaluate("performance.memory.usedJSHeapSize") / 1e6
        Counting.sent = 0
        page.reload()
        page.wait_for_function("window.vitviz?.drawn > 0")
        page.wait_for_timeout(2000)
        median = statistics.median
        print(f"PyTorch, one thread, forward: {median(forwards):.3f} s")
        print(f"photo to first map: {median(times):.3f} s ({median(times) / median(forwards):.1f} x)")
        print(f"the site's own forward: {median(own):.3f} s")
        print(f"GAE: {median(maps):.3f} s ({median(maps) / median(own):.1f} x the site's own forward)")
        print(f"GAE, rank correlation with Python: at least {min(ranks):.4f}; probabilities off by {max(logits):.1e}")
        print(f"the page's heap after {len(args.photos)} photographs: {memory:.0f} MB")
        print(f"second visit: {Counting.sent / 1e6:.2f} MB")
        browser.close()
    server.shutdown()


if __name__ == "__main__":
    main()
