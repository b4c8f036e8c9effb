"""Drive Firefox on a virtual screen by WebDriver BiDi: https://w3c.github.io/webdriver-bidi."""

import base64
import itertools
import json
import os
import re
import shutil
import subprocess
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from browsing import VIEWPORT, WELCOMED
from engines import Tab, virtual_screen
from patience import patience, wait_until
from websockets.sync.client import ClientConnection, connect

FIREFOXES = ("firefox-esr", "firefox")
QUIET = {  # no requests and no windows of the browser itself
    "app.normandy.enabled": False,
    "app.update.disabledForTesting": True,
    "browser.aboutwelcome.enabled": False,
    "browser.download.folderList": 2,  # in browser.download.dir
    "browser.safebrowsing.downloads.remote.enabled": False,
    "browser.shell.checkDefaultBrowser": False,
    "datareporting.policy.dataSubmissionEnabled": False,
    "extensions.systemAddon.update.enabled": False,
    "media.navigator.streams.fake": True,
    "network.captive-portal-service.enabled": False,
    "network.connectivity-service.enabled": False,
    "services.settings.server": "data:,",
    "toolkit.telemetry.enabled": False,
}


class Firefox(Tab):
    name = "Firefox"

    def __init__(self, connection: ClientConnection, downloads: Path) -> None:
        self.connection, self.downloads = connection, downloads
        self.numbers = itertools.count(1)
        self.problems = []
        self.version = self.send("session.new", {"capabilities": {}})["capabilities"]["browserVersion"]
        self.send("session.subscribe", {"events": ["log.entryAdded"]})
        self.context = self.send("browsingContext.create", {"type": "tab"})["context"]
        self.send("script.addPreloadScript", {"functionDeclaration": f"() => {{ {WELCOMED} }}"})
        self.resize(**VIEWPORT)

    def send(self, method: str, params: dict[str, Any]) -> dict[str, Any]:
        """Send a command, and return its result.

        Raises:
            RuntimeError: if Firefox refuses the command.
        """
        number = next(self.numbers)
        self.connection.send(json.dumps({"id": number, "method": method, "params": params}))
        while True:
            answer = json.loads(self.connection.recv(timeout=patience(120)))
            if answer.get("method") == "log.entryAdded" and answer["params"]["level"] == "error":
                self.problems.append(answer["params"]["text"])
            if answer.get("id") != number:
                continue
            if answer["type"] == "error":
                raise RuntimeError(f"{method}: {answer['error']}: {answer['message']}")
            return answer["result"]

    def open(self, url: str) -> None:
        self.send("browsingContext.navigate", {"context": self.context, "url": url, "wait": "complete"})

    def act(self, *sources: dict[str, Any]) -> None:
        self.send("input.performActions", {"context": self.context, "actions": list(sources)})

    def resize(self, width: int, height: int) -> None:
        viewport = {"width": width, "height": height}
        self.send("browsingContext.setViewport", {"context": self.context, "viewport": viewport})

    def screenshot(self) -> bytes:
        return base64.b64decode(self.send("browsingContext.captureScreenshot", {"context": self.context})["data"])

    def set_files(self, selector: str, *paths: Path) -> None:
        element = self.call(f"() => document.querySelector({json.dumps(selector)})")
        files = [str(path) for path in paths]
        element = {"sharedId": element["sharedId"]}
        self.send("input.setFiles", {"context": self.context, "element": element, "files": files})

    def call(self, function: str) -> dict[str, Any]:
        """Call a JavaScript function, and return the value of its promise in BiDi's format."""
        answer = self.send(
            "script.callFunction",
            {
                "functionDeclaration": function,
                "awaitPromise": True,
                "target": {"context": self.context},
                "userActivation": True,
            },
        )
        assert answer["type"] == "success", answer.get("exceptionDetails", {}).get("text")
        return answer["result"]

    def evaluate(self, function: str, *values: Any) -> Any:
        """Call a JavaScript function with arguments, and return the value of its promise; all as JSON."""
        result = self.call(f"async () => JSON.stringify(await ({function})(...{json.dumps(values)}))")
        return json.loads(result["value"]) if result["type"] == "string" else None


@contextmanager
def new_firefox(folder: Path, preferences: Mapping[str, bool | int | str] = {}) -> Iterator[Firefox]:
    """Start Firefox; its profile and its downloads are written to `folder`."""
    path = next(filter(None, map(shutil.which, FIREFOXES)), None)
    assert path, "no Firefox on this machine: install firefox-esr"
    profile = folder / "profile"
    profile.mkdir(exist_ok=True)
    lines = [
        f"user_pref({json.dumps(name)}, {json.dumps(value)});"
        for name, value in {**QUIET, "browser.download.dir": str(folder), **preferences}.items()
    ]
    (profile / "user.js").write_text("\n".join(lines), encoding="utf-8")
    log = folder / "firefox.log"
    with virtual_screen() as screen, log.open("w", encoding="utf-8") as errors:
        process = subprocess.Popen(
            [path, "--no-remote", "--remote-debugging-port=0", "--profile", str(profile)],
            stdout=errors,
            stderr=errors,
            env={**os.environ, "DISPLAY": screen},  # headless, it has no pictures on the clipboard
        )
        try:
            addresses: list[str] = []

            def has_address() -> bool:
                assert process.poll() is None, log.read_text(encoding="utf-8")
                addresses[:] = re.findall(r"WebDriver BiDi listening on (ws://\S+)", log.read_text(encoding="utf-8"))
                return bool(addresses)

            wait_until(has_address, "Firefox logs its WebDriver address", 60, poll=0.1)
            with connect(f"{addresses[0]}/session", max_size=None) as connection:
                yield Firefox(connection, folder)
        finally:
            process.terminate()
            process.wait(60)
