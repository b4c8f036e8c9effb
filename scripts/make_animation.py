"""Record docs/explorer.webp, the animation in README.md, in which a pointer moves over the app's page.

    python scripts/make_animation.py
    python scripts/make_animation.py --first     # docs/first-seconds.webp: what a visitor sees, in real time

Needs the development requirements and a Chromium on the PATH.
"""

from __future__ import annotations

import argparse
import base64
import io
import math
from collections.abc import Iterator
from itertools import pairwise
from typing import Any

from make_screenshots import COMPLETE, ROOT, launch_browser, serve
from PIL import Image, ImageDraw
from playwright.sync_api import Browser, Page, sync_playwright

WINDOW_SIZE = (1360, 830)
PICTURE_SIZE = (1020, 622)
STEPS, PAUSE = 36, 90  # frames, milliseconds each
SECONDS = 10  # of a film of the first seconds
POINTER = [(0, 0), (0, 17), (4, 13), (7, 19), (10, 18), (7, 12), (12, 12)]  # screenshots have no pointer


def positions() -> Iterator[tuple[float, float]]:
    """Yield positions of the pointer as shares of the photograph: a circle over the building and the sky."""
    for step in range(STEPS):
        turn = 2 * math.pi * step / STEPS
        yield 0.48 + 0.3 * math.sin(turn), 0.5 - 0.3 * math.cos(turn)


def shoot(page: Page) -> Image.Image:
    """Take a screenshot of the window."""
    return Image.open(io.BytesIO(page.screenshot(type="png"))).convert("RGB")


def film_pointer(browser: Browser, address: str) -> tuple[list[Image.Image], list[int]]:
    """Move the pointer over the photograph, and return screenshots with their durations in milliseconds."""
    page = browser.new_page(viewport={"width": WINDOW_SIZE[0], "height": WINDOW_SIZE[1]})
    page.goto(f"{address}?theme=light")
    page.wait_for_function(COMPLETE)
    box = page.locator(".vv-held").first.bounding_box()
    assert box is not None
    frames = []
    for across, down in positions():
        x, y = box["x"] + box["width"] * across, box["y"] + box["height"] * down
        page.mouse.move(x, y)
        page.wait_for_timeout(60)
        frame = shoot(page)
        ImageDraw.Draw(frame).polygon([(x + dx, y + dy) for dx, dy in POINTER], "white", "black")
        frames.append(frame.resize(PICTURE_SIZE, Image.Resampling.LANCZOS))
    return frames, [PAUSE] * len(frames)


def film_first_seconds(browser: Browser, address: str) -> tuple[list[Image.Image], list[int]]:
    """Open the page, send no input, and return the frames of its first `SECONDS`, with durations in milliseconds."""
    page = browser.new_page(viewport={"width": WINDOW_SIZE[0], "height": WINDOW_SIZE[1]})
    page.goto("about:blank")
    shots: list[tuple[float, bytes]] = []
    chromium = page.context.new_cdp_session(page)

    def keep(frame: dict[str, Any]) -> None:
        shots.append((frame["metadata"]["timestamp"], base64.b64decode(frame["data"])))
        chromium.send("Page.screencastFrameAck", {"sessionId": frame["sessionId"]})

    chromium.on("Page.screencastFrame", keep)
    chromium.send("Page.startScreencast", {"format": "jpeg", "quality": 90})
    page.goto(address, wait_until="commit")  # the welcome needs an address without parameters
    page.wait_for_timeout(1_000 * SECONDS)
    chromium.send("Page.stopScreencast")
    frames = [Image.open(io.BytesIO(data)).resize(PICTURE_SIZE, Image.Resampling.LANCZOS) for _, data in shots]
    times = [time for time, _ in shots]
    return frames, [max(1, round(1_000 * (after - before))) for before, after in pairwise([*times, times[0] + SECONDS])]


def main() -> None:
    """Serve the page, film it, and save the film."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--first", action="store_true", help="film the first seconds of a visit")
    first = parser.parse_args().first
    address = serve()
    with sync_playwright() as playwright:
        browser = launch_browser(playwright)
        frames, durations = (film_first_seconds if first else film_pointer)(browser, address)
        browser.close()
    file = ROOT / "docs" / ("first-seconds.webp" if first else "explorer.webp")
    frames[0].save(file, save_all=True, append_images=frames[1:], duration=durations, loop=0, quality=62, method=4)
    print(f"{file} {file.stat().st_size / 1e6:.1f} MB, {len(frames)} frames")


if __name__ == "__main__":
    main()
