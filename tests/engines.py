"""Drive browser engines by one interface: here Chromium, in firefox.py and webkit.py the others."""

import subprocess
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from browsing import VIEWPORT, WELCOMED
from patience import wait_until
from playwright.sync_api import Browser, Error, Page

KEYS = {"Control": "\ue009"}  # in WebDriver
CENTER = """(selector) => {
    const element = [...document.querySelectorAll(selector)].find((one) => one.getClientRects().length);
    if (!element) throw new Error(`nothing visible: ${selector}`);
    element.scrollIntoView({ block: 'center', behavior: 'instant' });
    const { x, y, width, height } = element.getBoundingClientRect();
    return [x + width / 2, y + height / 2];
}"""


class Tab:
    """A tab of a browser whose window is 1440 x 900. Subclasses implement `evaluate` and the other basic commands."""

    name: str
    version: str
    downloads: Path
    problems: list[str]  # errors in the console

    def point(self, x: float, y: float, *then: str) -> None:
        """Move the pointer, then press ("pointerDown") or release ("pointerUp") its button."""
        actions = [{"type": name, "button": 0} for name in then]
        move = {"type": "pointerMove", "x": round(x), "y": round(y), "duration": 0}
        self.act({"type": "pointer", "id": "mouse", "actions": [move, *actions]})

    def press(self, keys: str) -> None:
        """Press keys, such as "Control+v"."""
        values = [KEYS.get(key, key) for key in keys.split("+")]
        down = [{"type": "keyDown", "value": value} for value in values]
        up = [{"type": "keyUp", "value": value} for value in reversed(values)]
        self.act({"type": "key", "id": "keys", "actions": down + up})

    def click(self, selector: str) -> None:
        """Click the first visible element."""
        self.point(*self.evaluate(CENTER, selector), "pointerDown", "pointerUp")

    def wait_for(self, expression: str, seconds: float = 60) -> None:
        """Wait until a JavaScript expression is true in the page."""

        def is_true() -> bool:
            with suppress(Error, RuntimeError, AssertionError):  # the page is loading
                return bool(self.evaluate(f"() => Boolean({expression})"))
            return False

        wait_until(is_true, expression, seconds, poll=0.1)


class Chromium(Tab):
    name = "Chromium"

    def __init__(self, page: Page, downloads: Path) -> None:
        self.page, self.downloads, self.problems = page, downloads, []
        self.version = page.context.browser.version
        page.on("console", lambda message: message.type == "error" and self.problems.append(message.text))
        page.on("pageerror", lambda error: self.problems.append(str(error)))
        page.on("download", lambda download: download.save_as(downloads / download.suggested_filename))

    def open(self, url: str) -> None:
        self.page.goto(url)

    def evaluate(self, function: str, *values: Any) -> Any:
        return self.page.evaluate(f"(values) => ({function})(...values)", list(values))

    def point(self, x: float, y: float, *then: str) -> None:
        self.page.mouse.move(round(x), round(y))
        for name in then:
            getattr(self.page.mouse, name.removeprefix("pointer").lower())()

    def press(self, keys: str) -> None:
        self.page.keyboard.press(keys)

    def set_files(self, selector: str, *paths: Path) -> None:
        self.page.locator(selector).set_input_files(paths)

    def resize(self, width: int, height: int) -> None:
        self.page.set_viewport_size({"width": width, "height": height})

    def screenshot(self) -> bytes:
        return self.page.screenshot()


@contextmanager
def virtual_screen() -> Iterator[str]:
    """Start an X server, which also has a clipboard, and yield its name."""
    command = ["Xvfb", "-displayfd", "1", "-screen", "0", "1600x1400x24"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True) as server:
        try:
            assert server.stdout
            yield f":{server.stdout.readline().strip()}"
        finally:
            server.terminate()


@contextmanager
def new_chromium(browser: Browser, folder: Path) -> Iterator[Chromium]:
    context = browser.new_context(viewport=VIEWPORT, permissions=["clipboard-read", "clipboard-write"])
    context.add_init_script(WELCOMED)
    try:
        yield Chromium(context.new_page(), folder)
    finally:
        context.close()
