"""Drive WebKitGTK's MiniBrowser on a virtual screen by WebDriver: https://www.w3.org/TR/webdriver2."""

import io
import json
import os
import subprocess
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from typing import Any

import httpx
from asking import free_port
from engines import Tab, virtual_screen
from patience import patience, wait_until
from PIL import ImageGrab

BROWSERS = "*/webkit2gtk-4.*/MiniBrowser"
FLAGS = ["--automation", "--enable-mock-capture-devices=1", "--javascript-can-access-clipboard=1"]
# Small controls, because the window is at least as wide as its toolbar.
CONTROLS = "* { min-width: 0; min-height: 0; padding: 0; margin: 0; border-width: 0; font-size: 1px; }"
# WebKit has no log in WebDriver, and prints no messages of private windows.
WATCH = """(url) => {
    if (location.href !== new URL(url, location.href).href || window.problems) return false;
    try { localStorage.setItem('vitviz-welcomed', '1'); } catch {}
    window.problems = [];
    const note = (text) => window.problems.push(String(text));
    window.addEventListener('error', ({ message }) => note(message));
    window.addEventListener('unhandledrejection', ({ reason }) => note(reason));
    const { error } = console;
    console.error = (...values) => { note(values.join(' ')); error.apply(console, values); };
    return true;
}"""


class WebKit(Tab):
    """A tab of MiniBrowser. WebDriver gives it the storage of a private window."""

    name = "WebKit"

    def __init__(self, address: str, screen: str, browser: Path, folder: Path) -> None:
        self.client = httpx.Client(timeout=patience(300))
        self.root, self.screen, self.downloads = f"{address}/session", screen, folder
        self.noted: list[str] = []
        options = {"webkitgtk:browserOptions": {"binary": str(browser), "args": FLAGS}, "pageLoadStrategy": "none"}
        session = self.send("POST", "", {"capabilities": {"alwaysMatch": options}})
        self.root += f"/{session['sessionId']}"
        self.version = session["capabilities"]["browserVersion"]
        self.send("POST", "/timeouts", {"script": 300_000})
        self.resize(1440, 900)

    def send(self, method: str, path: str, body: dict[str, Any] | None = None) -> Any:
        """Send a command, and return its result.

        Raises:
            RuntimeError: if WebKit refuses the command.
        """
        answer = self.client.request(method, self.root + path, json=(body or {}) if method == "POST" else None)
        value = answer.json()["value"]
        if answer.is_error:
            raise RuntimeError(f"{path}: {value['error']}: {value['message']}")
        return value

    @property
    def problems(self) -> list[str]:  # type: ignore[override]
        return self.noted + (self.evaluate("() => window.problems ?? []") or [])

    def open(self, url: str) -> None:
        self.noted = self.problems
        self.send("POST", "/url", {"url": url})

        def watches() -> bool:
            with suppress(RuntimeError):  # the earlier page is going away
                return bool(self.evaluate(WATCH, url))
            return False

        wait_until(watches, url, poll=0)

    def evaluate(self, function: str, *values: Any) -> Any:
        script = (
            f"const done = arguments[0]; (async () => ({function})(...{json.dumps(values)}))()"
            ".then((value) => done({ value }), (error) => done({ error: `${error}` }));"
        )
        answer = self.send("POST", "/execute/async", {"script": script, "args": []})
        assert "error" not in answer, answer["error"]
        return answer.get("value")

    def act(self, *sources: dict[str, Any]) -> None:
        self.send("POST", "/actions", {"actions": list(sources)})

    def set_files(self, selector: str, *paths: Path) -> None:
        (element,) = self.send("POST", "/element", {"using": "css selector", "value": selector}).values()
        self.send("POST", f"/element/{element}/value", {"text": "\n".join(map(str, paths))})

    @property
    def above(self) -> int:
        """The height of the toolbar."""
        return int(self.send("GET", "/window/rect")["height"] - self.evaluate("() => innerHeight"))

    def resize(self, width: int, height: int) -> None:
        window = {"x": 0, "y": 0, "width": width}
        self.send("POST", "/window/rect", {**window, "height": height})
        self.send("POST", "/window/rect", {**window, "height": height + self.above})

    def screenshot(self) -> bytes:
        """Return a picture of the screen, because WebDriver's needs a compositor."""
        width, height = self.evaluate("() => [innerWidth, innerHeight]")
        picture, above = io.BytesIO(), self.above
        ImageGrab.grab(xdisplay=self.screen).crop((0, above, width, above + height)).save(picture, "PNG")
        return picture.getvalue()


@contextmanager
def new_webkit(folder: Path) -> Iterator[WebKit]:
    browser = next(iter(Path("/usr/lib").glob(BROWSERS)), None)
    assert browser, "no WebKit on this machine: install webkit2gtk-driver"
    style = folder / "config" / "gtk-3.0" / "gtk.css"
    style.parent.mkdir(parents=True)
    style.write_text(CONTROLS, encoding="utf-8")
    home = {"HOME": str(folder), "XDG_CONFIG_HOME": str(folder / "config")}
    port = free_port()
    address = f"http://127.0.0.1:{port}"
    with virtual_screen() as screen, ExitStack() as stack:
        # A compositor without a graphics card draws one frame per second.
        env = {**os.environ, **home, "DISPLAY": screen, "WEBKIT_DISABLE_COMPOSITING_MODE": "1"}
        quiet = {"stdout": subprocess.DEVNULL, "stderr": subprocess.DEVNULL}
        driver = stack.enter_context(subprocess.Popen(["WebKitWebDriver", f"--port={port}"], env=env, **quiet))
        stack.callback(driver.terminate)

        def listens() -> bool:
            with suppress(httpx.TransportError):
                return httpx.get(f"{address}/status").is_success
            return False

        wait_until(listens, "WebKitWebDriver listens", poll=0.1)
        tab = WebKit(address, screen, browser, folder)
        try:
            yield tab
        finally:
            tab.send("DELETE", "")
