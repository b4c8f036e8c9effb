"""Record docs/explorer.webp, the animation in README.md, in which a pointer moves over the app's page.

    python scripts/make_animation.py

Needs the development requirements and a Chromium on the PATH.
"""

from __future__ import annotations

import io
import math
from collections.abc import Iterator

from make_screenshots import COMPLETE, ROOT, launch_browser, serve
from PIL import Image, ImageDraw
from playwright.sync_api import Page, sync_playwright

WINDOW_SIZE = (1360, 830)
PICTURE_SIZE = (1020, 622)
STEPS, PAUSE = 36, 90  # frames, milliseconds each
POINTER = [(0, 0), (0, 17), (4, 13), (7, 19), (10, 18), (7, 12), (12, 12)]  # screenshots have no pointer


def positions() -> Iterator[tuple[float, float]]:
    """Yield positions of the pointer as shares of the photograph: a circle over the building and the sky."""
    for step in range(STEPS):
        turn = 2 * math.pi * step / STEPS
        yield 0.48 + 0.3 * math.sin(turn), 0.5 - 0.3 * math.cos(turn)


def shoot(page: Page) -> Image.Image:
    """Take a screenshot of the window."""
    return Image.open(io.BytesIO(page.screenshot(type="png"))).convert("RGB")


def main() -> None:
    """Serve the page, move the pointer, and save the screenshots."""
    address = serve()
    frames: list[Image.Image] = []
    with sync_playwright() as playwright:
        browser = launch_browser(playwright)
        page = browser.new_page(viewport={"width": WINDOW_SIZE[0], "height": WINDOW_SIZE[1]})
        page.goto(f"{address}?theme=light")
        page.wait_for_function(COMPLETE)
        box = page.locator(".vv-held").first.bounding_box()
        assert box is not None
        for across, down in positions():
            x, y = box["x"] + box["width"] * across, box["y"] + box["height"] * down
            page.mouse.move(x, y)
            page.wait_for_timeout(60)
            frame = shoot(page)
            ImageDraw.Draw(frame).polygon([(x + dx, y + dy) for dx, dy in POINTER], "white", "black")
            frames.append(frame.resize(PICTURE_SIZE, Image.Resampling.LANCZOS))
        browser.close()
    file = ROOT / "docs" / "explorer.webp"
    frames[0].save(file, save_all=True, append_images=frames[1:], duration=PAUSE, loop=0, quality=62, method=4)
    print(f"{file} {file.stat().st_size / 1e6:.1f} MB")


if __name__ == "__main__":
    main()
