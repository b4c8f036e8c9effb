"""Record docs/explorer.webp, the animation in README.md, in which a pointer moves over the app's page.

    python scripts/make_animation.py             # similar patches of two animals, and a prediction that changes
    python scripts/make_animation.py --first     # docs/first-seconds.webp: what a visitor sees, in real time
    python scripts/make_animation.py --words     # docs/words.webp: the words of a caption, and the words of a patch

Needs the development requirements and a Chromium on the PATH.
"""

from __future__ import annotations

import argparse
import base64
import io
from itertools import pairwise
from typing import Any

from make_screenshots import COMPLETE, ROOT, launch_browser, serve
from PIL import Image, ImageDraw, ImageOps
from playwright.sync_api import Browser, Page, sync_playwright

WINDOW_SIZE = (1360, 830)
PICTURE_SIZE = (1020, 622)
POINTER_FRAMES = 12  # frames in which the pointer moves
FRAME_MS = 110  # duration of such a frame, in milliseconds
LAST_FRAME_MS = 1000  # duration of the last frame of a scene, in milliseconds
START, EAR = (0.5, 0.6), (0.865, 0.1)  # path of the pointer, to the dog's ear, as shares of the photograph's sides
SECOND_PANE = "Cat"  # photograph beside the dog, in which similar patches light up
HIDDEN = "Dog"  # photograph whose patches are hidden until the prediction changes
SEARCHING = "vitviz.panels.find(({ hiding }) => hiding)?.hiding.searching"
STORY_SECONDS = 6  # duration of explorer.webp
VISIT_SECONDS = 10  # duration of first-seconds.webp
QUARTERS = ("dog", "church", "cat", "panda")  # examples in the mosaic of words.webp, from the top left
QUARTER = (392, 280)  # width and height of each
WORD_MS = 700  # how long each word is shown, in milliseconds
POINTER = [(0, 0), (0, 17), (4, 13), (7, 19), (10, 18), (7, 12), (12, 12)]  # screenshots have no pointer


def shoot(page: Page) -> Image.Image:
    """Take a screenshot of the window."""
    return Image.open(io.BytesIO(page.screenshot(type="png"))).convert("RGB")


def film_story(browser: Browser, address: str) -> tuple[list[Image.Image], list[int]]:
    """Move the pointer over a dog to its ear, beside another animal; then hide patches until the prediction changes.

    Returns:
        frames, and their durations in milliseconds.
    """
    frames: list[tuple[Image.Image, int]] = []
    page = browser.new_page(bypass_csp=True, viewport={"width": WINDOW_SIZE[0], "height": WINDOW_SIZE[1]})
    page.goto(f"{address}?theme=light&image=Dog&image2={SECOND_PANE}&pane=1&mode=similarity")
    page.wait_for_function(f"{COMPLETE} && vitviz.resting() && vitviz.progress.jobs.size === 0")
    page.wait_for_timeout(800)  # wait for fonts
    held = page.locator(".vv-held").nth(page.evaluate("vitviz.store.get().pane")).bounding_box()  # the dog's
    assert held is not None
    for step in range(POINTER_FRAMES + 1):
        across, down = (start + (end - start) * step / POINTER_FRAMES for start, end in zip(START, EAR, strict=True))
        x, y = held["x"] + held["width"] * across, held["y"] + held["height"] * down
        page.mouse.move(x, y)
        page.wait_for_function("vitviz.resting() && vitviz.progress.jobs.size === 0")
        frame = shoot(page)
        ImageDraw.Draw(frame).polygon([(x + dx, y + dy) for dx, dy in POINTER], "white", "black")
        frames.append((frame, FRAME_MS if step < POINTER_FRAMES else LAST_FRAME_MS))
    page.mouse.move(0, 0)
    page.goto(f"{address}?theme=light&tab=why&image={HIDDEN}")
    page.wait_for_function(f"{COMPLETE} && vitviz.panels.find(({{ field }}) => field)?.heatmap")
    page.locator(".vv-hide [data-do=flip]").click()
    page.evaluate("scrollTo(0, 0)")
    hidden = []
    while page.evaluate(SEARCHING):
        hidden.append(shoot(page))
    rest = 1000 * STORY_SECONDS - sum(duration for _, duration in frames) - LAST_FRAME_MS
    frames += [(frame, round(rest / len(hidden))) for frame in hidden]
    frames.append((shoot(page), LAST_FRAME_MS))
    small = [frame.resize(PICTURE_SIZE, Image.Resampling.LANCZOS) for frame, _ in frames]
    return small, [duration for _, duration in frames]


def mosaic() -> bytes:
    """Return a photograph that consists of four examples, as PNG."""
    width, height = QUARTER
    whole = Image.new("RGB", (2 * width, 2 * height))
    for index, name in enumerate(QUARTERS):
        with Image.open(ROOT / "examples" / f"{name}.jpg") as example:
            whole.paste(ImageOps.fit(example.convert("RGB"), QUARTER), (index % 2 * width, index // 2 * height))
    file = io.BytesIO()
    whole.save(file, "png")
    return file.getvalue()


def film_words(browser: Browser, address: str) -> tuple[list[Image.Image], list[int]]:
    """Point at each word of a mosaic's caption, then move the pointer from the left half of the mosaic to the right.

    Returns:
        frames, and their durations in milliseconds.
    """
    page = browser.new_page(bypass_csp=True, viewport={"width": WINDOW_SIZE[0], "height": WINDOW_SIZE[1]})
    page.goto(f"{address}?theme=light&image=Dog")
    page.wait_for_function(f"{COMPLETE} && vitviz.resting() && vitviz.progress.jobs.size === 0")
    before = page.locator(".vv-caption .vv-words").inner_text()
    photo = {"name": "mosaic.png", "mimeType": "image/png", "buffer": mosaic()}
    page.locator(".vv-taking input[type=file]").first.set_input_files([photo])
    words = page.locator(".vv-caption .vv-words button")
    page.wait_for_function(
        f"{COMPLETE} && vitviz.resting() && vitviz.progress.jobs.size === 0 && ![{before!r}, ''].includes("
        "document.querySelector('.vv-caption .vv-words').innerText)"
    )
    frames: list[tuple[Image.Image, int]] = []

    def point(x: float, y: float, duration: int) -> None:
        page.mouse.move(x, y)
        page.wait_for_function("vitviz.resting() && vitviz.progress.jobs.size === 0")
        page.wait_for_timeout(150)  # wait for the cross-fade
        frame = shoot(page)
        ImageDraw.Draw(frame).polygon([(x + dx, y + dy) for dx, dy in POINTER], "white", "black")
        frames.append((frame.resize(PICTURE_SIZE, Image.Resampling.LANCZOS), duration))

    for word in words.all():
        box = word.bounding_box()
        assert box is not None
        point(box["x"] + box["width"] / 2, box["y"] + box["height"] / 2, WORD_MS)
    held = page.locator(".vv-held").first.bounding_box()
    assert held is not None
    for step in range(POINTER_FRAMES + 1):
        x, y = held["x"] + held["width"] * (0.25 + 0.5 * step / POINTER_FRAMES), held["y"] + held["height"] * 0.3
        point(x, y, 2 * FRAME_MS if step < POINTER_FRAMES else LAST_FRAME_MS)
    return [frame for frame, _ in frames], [duration for _, duration in frames]


def film_first_seconds(browser: Browser, address: str) -> tuple[list[Image.Image], list[int]]:
    """Open the page without any input; return the frames of its first `VISIT_SECONDS`, and their milliseconds."""
    page = browser.new_page(bypass_csp=True, viewport={"width": WINDOW_SIZE[0], "height": WINDOW_SIZE[1]})
    page.goto("about:blank")
    shots: list[tuple[float, bytes]] = []
    chromium = page.context.new_cdp_session(page)

    def keep(frame: dict[str, Any]) -> None:
        shots.append((frame["metadata"]["timestamp"], base64.b64decode(frame["data"])))
        chromium.send("Page.screencastFrameAck", {"sessionId": frame["sessionId"]})

    chromium.on("Page.screencastFrame", keep)
    chromium.send("Page.startScreencast", {"format": "jpeg", "quality": 90})
    page.goto(address, wait_until="commit")  # the welcome needs an address without parameters
    page.wait_for_timeout(1_000 * VISIT_SECONDS)
    chromium.send("Page.stopScreencast")
    frames = [Image.open(io.BytesIO(data)).resize(PICTURE_SIZE, Image.Resampling.LANCZOS) for _, data in shots]
    times = [time for time, _ in shots]
    return frames, [
        max(1, round(1_000 * (after - before))) for before, after in pairwise([*times, times[0] + VISIT_SECONDS])
    ]


FILMS = {"explorer": film_story, "first-seconds": film_first_seconds, "words": film_words}


def main() -> None:
    """Serve the page, film it, and save the film."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--first", dest="name", action="store_const", const="first-seconds", default="explorer")
    parser.add_argument("--words", dest="name", action="store_const", const="words")
    name = parser.parse_args().name
    address = serve()
    with sync_playwright() as playwright:
        browser = launch_browser(playwright)
        frames, durations = FILMS[name](browser, address)
        browser.close()
    file = ROOT / "docs" / f"{name}.webp"
    frames[0].save(file, save_all=True, append_images=frames[1:], duration=durations, loop=0, quality=62, method=4)
    print(f"{file} {file.stat().st_size / 1e6:.1f} MB, {len(frames)} frames")


if __name__ == "__main__":
    main()
