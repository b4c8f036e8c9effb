"""Make docs/explorer.webp, the moving picture in README.md: a pointer over the app's page, and what follows it.

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

SIZE = (1360, 830)  # pixels of the window
SHOWN = (1020, 622)  # of the picture
STEPS, PAUSE = 36, 90  # frames, milliseconds each
POINTER = [(0, 0), (0, 17), (4, 13), (7, 19), (10, 18), (7, 12), (12, 12)]  # an arrow, which screenshots leave out


def places() -> Iterator[tuple[float, float]]:
    """Where the pointer goes, as shares of the photograph: a slow round over the building and the sky."""
    for step in range(STEPS):
        turn = 2 * math.pi * step / STEPS
        yield 0.48 + 0.3 * math.sin(turn), 0.5 - 0.3 * math.cos(turn)


def shoot(page: Page) -> Image.Image:
    """The window as it is."""
    return Image.open(io.BytesIO(page.screenshot(type="png"))).convert("RGB")


def main() -> None:
    """Serve, move, shoot, save."""
    address = serve()
    frames: list[Image.Image] = []
    with sync_playwright() as playwright:
        browser = launch_browser(playwright)
        page = browser.new_page(viewport={"width": SIZE[0], "height": SIZE[1]})
        page.goto(f"{address}?theme=light")
        page.wait_for_function(COMPLETE)
        box = page.locator(".vv-held").first.bounding_box()
        assert box is not None
        for across, down in places():
            x, y = box["x"] + box["width"] * across, box["y"] + box["height"] * down
            page.mouse.move(x, y)
            page.wait_for_timeout(60)
            frame = shoot(page)
            ImageDraw.Draw(frame).polygon([(x + dx, y + dy) for dx, dy in POINTER], "white", "black")
            frames.append(frame.resize(SHOWN, Image.Resampling.LANCZOS))
        browser.close()
    file = ROOT / "docs" / "explorer.webp"
    frames[0].save(file, save_all=True, append_images=frames[1:], duration=PAUSE, loop=0, quality=62, method=4)
    print(f"{file} {file.stat().st_size / 1e6:.1f} MB")


if __name__ == "__main__":
    main()
