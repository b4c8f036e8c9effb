"""How long the page takes: on the server to draw, and in a browser from a click to the new picture.

    python benchmarks/page.py

Prints medians for turning each knob, from the trace (the way the page works) and by running the model again (what it
would cost without one), both in one run.
"""

from __future__ import annotations

import argparse
import shutil
import socket
import statistics
import time
from collections.abc import Callable
from dataclasses import replace

from playwright.sync_api import sync_playwright

from vitviz.explorer import Explorer
from vitviz.ui import draw
from vitviz.ui.draw import PATCH, Knobs
from vitviz.ui.pages import Page, examples
from vitviz.ui.server import launch
from vitviz.ui.sessions import Sessions
from vitviz.weights.zoo import bundled

CHROMIUMS = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable")


def median(ask: Callable[[int], object], repeats: int) -> float:
    """Median milliseconds of `ask(i)`."""
    times = []
    for index in range(repeats):
        began = time.perf_counter()
        ask(index)
        times.append(1000 * (time.perf_counter() - began))
    return statistics.median(times)


def on_the_server(sessions: Sessions, repeats: int) -> None:
    photo, model = sessions.default, sessions.models[0]
    explorer: Explorer = sessions.explorer(model)
    shown = sessions.open("bench", photo, model)
    rows, columns = shown.view.trace.grid
    knobs = [Knobs(block=11, query=PATCH, patch=(i % rows, i % columns)) for i in range(rows * columns)]
    print(f"on the server, {photo.name}, {rows} x {columns} patches, {model}: median of {repeats}, ms")
    print(f"  decode, run the model, keep the trace   {median(lambda _: explorer.open(photo), repeats):8.1f}")
    ask = median(lambda i: draw.stage(shown, knobs[i]), repeats)
    print(f"  new patch: the large picture            {ask:8.1f}")
    ask = median(lambda i: (draw.head_wall(shown, knobs[i]), draw.layer_wall(shown, knobs[i])), repeats)
    print(f"  new patch: both walls                   {ask:8.1f}")
    ask = median(lambda i: draw.stage(shown, replace(knobs[0], alpha=i / repeats)), repeats)
    print(f"  opacity: the large picture              {ask:8.1f}")
    ask = median(lambda i: draw.stage(shown, replace(knobs[i], method="rollout")), repeats)
    print(f"  rollout from a new patch                {ask:8.1f}")


def in_the_browser(sessions: Sessions, repeats: int) -> None:
    chromium = next((path for name in CHROMIUMS if (path := shutil.which(name))), None)
    if chromium is None:
        raise SystemExit(f"Expected a Chromium on the PATH (one of {', '.join(CHROMIUMS)}); install one first.")
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    launch(Page(sessions).demo, "127.0.0.1", port, prevent_thread_lock=True, quiet=True)
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=chromium, args=["--no-sandbox", "--disable-gpu"])
        page = browser.new_page(viewport={"width": 1440, "height": 900})
        page.goto(f"http://127.0.0.1:{port}/")
        page.wait_for_function("window.vitviz && window.vitviz.drawn > 0")
        heads = sessions.open("bench", None, sessions.models[0]).view.trace.heads

        def click(index: int) -> None:
            drawn = page.evaluate("window.vitviz.drawn")
            page.evaluate(f"document.querySelector('#heads button[data-value=\"{index % heads}\"]').click()")
            page.wait_for_function(f"window.vitviz.drawn > {drawn}", polling="raf")

        click(1)
        print(f"in the browser, another head: click to new picture, median {median(click, repeats):.1f} ms")
        browser.close()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--repeats", type=int, default=30)
    repeats = parser.parse_args().repeats
    sessions = Sessions(bundled(), default=examples()[0].path)
    on_the_server(sessions, repeats)
    in_the_browser(sessions, repeats)


if __name__ == "__main__":
    main()
