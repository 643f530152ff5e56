"""The HTML report in a real browser, driven over Chromium's debugging pipe: no driver, no port, no package."""

from __future__ import annotations

import base64
import contextlib
import fcntl
import json
import os
import shutil
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from profiler.report import render_html

pytestmark = pytest.mark.browser

NAMES = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable", "chrome")
FLAGS = (
    "--headless", "--no-sandbox", "--disable-gpu", "--disable-background-networking", "--no-first-run",
    "--disable-component-update", "--disable-sync", "--disable-extensions", "--remote-debugging-pipe",
)  # fmt: skip
TIMEOUT_S = 60


class Chrome:
    """A browser with one tab. ``events`` holds every protocol event of the tab since the last ``open``."""

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
        page = next(target["targetId"] for target in targets if target["type"] == "page")
        self._session = self.call("Target.attachToTarget", targetId=page, flatten=True)["sessionId"]
        for domain in ("Page", "Runtime", "Log", "Network"):
            self.call(f"{domain}.enable")

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
        while time.monotonic() < deadline:
            reply = self._receive()
            if reply.get("id") == self._next:
                assert "error" not in reply, reply
                return dict(reply["result"])
            self.events.append(reply)
        raise TimeoutError(method)

    def _receive(self) -> dict[str, Any]:
        while b"\0" not in self._buffer:
            chunk = os.read(self._read, 1 << 16)
            assert chunk, "the browser went away"
            self._buffer += chunk
        line, self._buffer = self._buffer.split(b"\0", 1)
        return dict(json.loads(line))

    def open(self, path: Path, *, script: bool = True, dark: bool = False, width: int = 1280) -> None:
        self.call("Emulation.setScriptExecutionDisabled", value=not script)
        scheme = {"name": "prefers-color-scheme", "value": "dark" if dark else "light"}
        self.call("Emulation.setEmulatedMedia", features=[scheme])
        self.call("Emulation.setDeviceMetricsOverride", width=width, height=900, deviceScaleFactor=1, mobile=False)
        self.events = []
        self.call("Page.navigate", url=path.as_uri())
        while not self.seen("Page.loadEventFired"):
            self.events.append(self._receive())

    def run(self, expression: str) -> Any:
        reply = self.call("Runtime.evaluate", expression=expression, returnByValue=True, awaitPromise=True)
        assert "exceptionDetails" not in reply, reply
        return reply["result"].get("value")

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


@pytest.fixture(scope="module")
def chrome(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Chrome]:
    binary = next(filter(None, map(shutil.which, NAMES)), None)
    if binary is None:
        reason = f"no Chromium on the PATH (looked for {', '.join(NAMES)})"
        pytest.fail(reason) if os.environ.get("CI") else pytest.skip(reason)
    browser = Chrome(binary, tmp_path_factory.mktemp("chromium"))
    yield browser
    browser.close()


@pytest.fixture(scope="module")
def pages(make: Any, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    folder = tmp_path_factory.mktemp("pages")
    diffs = {
        "training": make.training(120),
        "serving": make.serving(),
        "evil": make.evil(),
        "many": make.many_ops(5000),
    }
    paths = {name: folder / f"{name}.html" for name in diffs}
    for name, diff in diffs.items():
        paths[name].write_bytes(render_html(diff))
    return paths


VISIBLE = "[...document.querySelectorAll('#op-table tbody tr')].filter(row => !row.hidden)"
SETTLED = "await new Promise(done => requestAnimationFrame(() => requestAnimationFrame(done)))"


def type_into_filter(chrome: Chrome, text: str) -> int:
    return int(
        chrome.run(
            f"(async () => {{ const box = document.getElementById('filter'); box.value = {json.dumps(text)};"
            f"box.dispatchEvent(new Event('input')); {SETTLED}; return {VISIBLE}.length; }})()"
        )
    )


@pytest.mark.parametrize("name", ["training", "serving", "evil", "many"])
@pytest.mark.parametrize("dark", [False, True], ids=["light", "dark"])
def test_a_page_asks_for_nothing_and_complains_about_nothing(
    chrome: Chrome, pages: dict[str, Path], name: str, dark: bool
) -> None:
    chrome.open(pages[name], dark=dark)
    chrome.run(f"(async () => {{ {SETTLED}; }})()")
    assert [url for url in chrome.requests() if not url.startswith("data:")] == [pages[name].as_uri()]
    assert chrome.complaints() == []


def test_hostile_names_execute_nothing(chrome: Chrome, pages: dict[str, Path]) -> None:
    chrome.open(pages["evil"])
    assert chrome.run("typeof window.pwned") == "undefined"
    chrome.run("document.querySelectorAll('*').forEach(node => { for (const type of ['click', 'mouseover', 'error'])"
               "if (!node.closest('nav, a')) node.dispatchEvent(new Event(type)); })")  # fmt: skip
    assert chrome.run("typeof window.pwned") == "undefined"
    assert chrome.run("document.querySelectorAll('script').length") == 1
    assert (
        chrome.run("document.querySelectorAll('img, iframe, object, [onerror], [onload], [href^=javascript]').length")
        == 0
    )
    assert "7*7" in chrome.run("document.body.textContent")
    assert "49" not in chrome.run("document.querySelector('h1').textContent")


@pytest.mark.parametrize("width", [390, 1280])
@pytest.mark.parametrize("name", ["training", "serving", "evil", "many"])
def test_no_name_breaks_the_layout(chrome: Chrome, pages: dict[str, Path], name: str, width: int) -> None:
    chrome.open(pages[name], width=width)
    assert chrome.run("document.documentElement.scrollWidth") <= width


def test_sorting_orders_the_rows_and_says_so(chrome: Chrome, pages: dict[str, Path]) -> None:
    chrome.open(pages["training"])
    values = "[...document.querySelectorAll('#op-table tbody tr')].map(row => Number(row.dataset.v.split(' ')[0]))"
    click = "document.querySelectorAll('#op-table th button')[2].click()"
    first = chrome.run(f"{click}, {values}")
    assert first == sorted(first, reverse=True)
    assert chrome.run("document.querySelectorAll('#op-table th')[2].getAttribute('aria-sort')") == "descending"
    second = chrome.run(f"{click}, {values}")
    assert second == sorted(second)
    names = chrome.run(
        "document.querySelectorAll('#op-table th button')[1].click(),"
        "[...document.querySelectorAll('#op-table td.op')].map(cell => cell.textContent)"
    )
    assert names == sorted(names)


def test_the_filter_hides_rows_and_counts_what_is_left(chrome: Chrome, pages: dict[str, Path]) -> None:
    chrome.open(pages["training"])
    everything = type_into_filter(chrome, "")
    assert type_into_filter(chrome, "gmm re-run") == 1
    assert chrome.run("document.getElementById('shown').textContent") == f"1 of {everything} rows"
    assert type_into_filter(chrome, "no such op") == 0
    assert type_into_filter(chrome, "") == everything


def test_a_kind_of_match_can_be_switched_off(chrome: Chrome, pages: dict[str, Path]) -> None:
    chrome.open(pages["training"])
    left = chrome.run(
        "(async () => { const box = document.querySelector('input[name=match][value=same]'); box.click();"
        f"{SETTLED}; return {VISIBLE}.map(row => row.dataset.m); }})()"
    )
    assert sorted(left) == ["added", "changed", "removed", "replaced"]


def test_without_javascript_everything_is_there_to_read(chrome: Chrome, pages: dict[str, Path]) -> None:
    chrome.open(pages["training"], script=False)
    visible = (
        "['h1', '.card', 'svg.waterfall rect', '#families table', '#op-table tbody tr'].map(selector =>"
        "[...document.querySelectorAll(selector)].some(node => node.getBoundingClientRect().height > 0))"
    )
    assert chrome.run(visible) == [True] * 5
    assert chrome.run("getComputedStyle(document.querySelector('.controls')).display") == "none"


def test_thousands_of_rows_sort_and_filter_quickly(chrome: Chrome, pages: dict[str, Path]) -> None:
    chrome.open(pages["many"])
    elapsed = chrome.run(
        "(() => { const start = performance.now(); document.querySelectorAll('#op-table th button')[3].click();"
        "document.body.getBoundingClientRect(); return performance.now() - start; })()"
    )
    assert elapsed < 2000
    assert type_into_filter(chrome, "multiply_reduce_fusion.17.clone") >= 1


def test_the_waterfall_is_drawn_for_wide_and_for_narrow_screens(chrome: Chrome, pages: dict[str, Path]) -> None:
    shown = "[...document.querySelectorAll('svg.waterfall')].map(svg => svg.getBoundingClientRect().height > 100)"
    chrome.open(pages["training"], width=1280)
    assert chrome.run(shown) == [True, False]
    chrome.open(pages["training"], width=390)
    assert chrome.run(shown) == [False, True]
    smallest = "Math.min(...[...document.querySelectorAll('.narrow text')].map(t => t.getBoundingClientRect().height))"
    assert chrome.run(smallest) >= 12
