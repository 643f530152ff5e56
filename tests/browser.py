"""Chromium for tests, driven over its debugging pipe: no driver, no port, no package. ``conftest.py`` starts it."""

from __future__ import annotations

import base64
import contextlib
import fcntl
import json
import os
import select
import shutil
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

NAMES = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable", "chrome")
FLAGS = (
    "--headless", "--no-sandbox", "--disable-gpu", "--disable-background-networking", "--no-first-run",
    "--disable-component-update", "--disable-sync", "--disable-extensions", "--remote-debugging-pipe",
    "--host-resolver-rules=MAP * ~NOTFOUND, EXCLUDE localhost, EXCLUDE 127.0.0.1",  # nothing of the internet
)  # fmt: skip
TIMEOUT_S = 90
CODES = {"Tab": 9, "Enter": 13, "Escape": 27, " ": 32}
NOISE = ("Network.webSocketFrame", "Network.dataReceived")  # large, and nobody asks


def find() -> str | None:
    """The path of a Chromium or Chrome."""
    return next(filter(None, map(shutil.which, NAMES)), None)


class Chrome:
    """A browser with one tab. ``events`` holds the protocol events of the tab since the last ``open``."""

    def __init__(self, binary: str, profile: Path):
        to_read, self._write = os.pipe()
        self._read, to_write = os.pipe()

        def descriptors() -> None:
            # The protocol reads descriptor 3 and writes descriptor 4. Ours may be those very numbers: copy both first.
            copies = (fcntl.fcntl(end, fcntl.F_DUPFD, 10) for end in (to_read, to_write))
            for copy, wanted in zip(list(copies), (3, 4), strict=True):
                os.dup2(copy, wanted)

        self._process = subprocess.Popen(
            [binary, *FLAGS, f"--user-data-dir={profile}", "about:blank"],
            pass_fds=(3, 4),
            preexec_fn=descriptors,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )
        os.close(to_read)
        os.close(to_write)
        self._buffer = b""
        self._next = 0
        self._session: str | None = None
        self.events: list[dict[str, Any]] = []
        targets = self.call("Target.getTargets")["targetInfos"]
        self._attach(next(target["targetId"] for target in targets if target["type"] == "page"))

    def _attach(self, target: str) -> None:
        self._session = None
        self._session = self.call("Target.attachToTarget", targetId=target, flatten=True)["sessionId"]
        for domain in ("Page", "Runtime", "Log", "Network"):
            self.call(f"{domain}.enable")

    @contextlib.contextmanager
    def tab(self) -> Iterator[None]:
        """While it lasts, everything is done in a new tab that shares nothing with the others."""
        before, self._session = self._session, None
        context = self.call("Target.createBrowserContext")["browserContextId"]
        self._attach(self.call("Target.createTarget", url="about:blank", browserContextId=context)["targetId"])
        try:
            yield
        finally:
            self._session = None
            self.call("Target.disposeBrowserContext", browserContextId=context)
            self._session = before

    def close(self) -> None:
        with contextlib.suppress(Exception):
            self._session = None
            self.call("Browser.close")
        try:
            self._process.wait(10)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()

    def call(self, method: str, **params: Any) -> dict[str, Any]:
        self._next += 1
        message = {"id": self._next, "method": method, "params": params}
        if self._session:
            message["sessionId"] = self._session
        os.write(self._write, json.dumps(message).encode() + b"\0")
        deadline = time.monotonic() + TIMEOUT_S
        while True:
            reply = self._receive(deadline, method)
            if reply.get("id") == self._next:
                assert "error" not in reply, reply
                return dict(reply["result"])
            self._keep(reply)

    def _keep(self, event: dict[str, Any]) -> None:
        if not str(event.get("method")).startswith(NOISE):
            self.events.append(event)

    def _receive(self, deadline: float, what: str) -> dict[str, Any]:
        while b"\0" not in self._buffer:
            if not select.select([self._read], [], [], max(deadline - time.monotonic(), 0))[0]:
                raise TimeoutError(what)
            chunk = os.read(self._read, 1 << 16)
            assert chunk, "the browser went away"
            self._buffer += chunk
        line, self._buffer = self._buffer.split(b"\0", 1)
        return dict(json.loads(line))

    def open(self, page: Path | str, *, script: bool = True, dark: bool = False, width: int = 1280) -> None:
        """Loads a file or a URL."""
        self.call("Emulation.setScriptExecutionDisabled", value=not script)
        scheme = {"name": "prefers-color-scheme", "value": "dark" if dark else "light"}
        self.call("Emulation.setEmulatedMedia", features=[scheme])
        self.call("Emulation.setDeviceMetricsOverride", width=width, height=900, deviceScaleFactor=1, mobile=False)
        self.events = []
        self.call("Page.navigate", url=page if isinstance(page, str) else page.as_uri())
        deadline = time.monotonic() + TIMEOUT_S
        while not self.seen("Page.loadEventFired"):
            self._keep(self._receive(deadline, f"load {page}"))

    def run(self, expression: str) -> Any:
        reply = self.call("Runtime.evaluate", expression=expression, returnByValue=True, awaitPromise=True)
        assert "exceptionDetails" not in reply, reply
        return reply["result"].get("value")

    def wait(self, condition: str, what: str = "", seconds: float = 60) -> Any:
        """Waits in the page until a JavaScript expression is true, and gives its value."""
        value = self.run(
            f"(async () => {{ const end = performance.now() + {seconds * 1000}; for (;;) {{ const held = ({condition});"
            "if (held || performance.now() > end) return held;"
            "await new Promise(done => setTimeout(done, 40)); } })()"
        )
        assert value, f"not within {seconds} s: {what or condition}"
        return value

    def click(self, x: float, y: float) -> None:
        """A real click at a place of the window."""
        self.call("Input.dispatchMouseEvent", type="mouseMoved", x=x, y=y)
        for kind in ("mousePressed", "mouseReleased"):
            self.call("Input.dispatchMouseEvent", type=kind, x=x, y=y, button="left", clickCount=1)

    def press(self, key: str) -> None:
        """A key of ``CODES``."""
        text = {"Enter": "\r", " ": " "}.get(key, "")
        for kind in ("keyDown", "keyUp"):
            self.call("Input.dispatchKeyEvent", type=kind, key=key, windowsVirtualKeyCode=CODES[key], text=text)

    def seen(self, method: str) -> list[dict[str, Any]]:
        return [event["params"] for event in self.events if event.get("method") == method]

    def requests(self) -> list[str]:
        return [event["request"]["url"] for event in self.seen("Network.requestWillBeSent")]

    def complaints(self) -> list[dict[str, Any]]:
        return (
            self.seen("Runtime.exceptionThrown") + self.seen("Runtime.consoleAPICalled") + self.seen("Log.entryAdded")
        )

    def screenshot(self, path: Path) -> None:
        data = self.call("Page.captureScreenshot", format="png", captureBeyondViewport=True)["data"]
        path.write_bytes(base64.b64decode(data))
