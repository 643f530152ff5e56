"""The whole app in a browser: what starts it, what drives it, and what must never happen. ``conftest.py`` loads it."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from urllib.parse import quote, urlencode, urlsplit

from dashboard.launch import APP, free_port, stop
from dashboard.pages import PAGES

PROFILES = Path(__file__).resolve().parents[3] / "shared" / "profiles"
START_S = 60
TITLES = {page.name: page.title for page in PAGES}

# Streamlit asks for these below the page's own address first, to find out where the app is.
PROBES = re.compile(r"/[a-z]+/_stcore/(health|host-config)$")
MAIN = "document.querySelector('[data-testid=stMain]')"
CALM = """(() => {
  const app = document.querySelector('[data-testid=stApp]'), all = (which) => [...document.querySelectorAll(which)];
  const waiting = ['stStatusWidget', 'stSkeleton', 'stAppSkeleton'].map((each) => `[data-testid=${each}]`);
  const open = (which) => all(`[data-testid=${which}]`).filter((each) => !each.closest('details:not([open])'));
  const calm = app && app.dataset.testScriptState === 'notRunning' && app.dataset.testConnectionState === 'CONNECTED'
    && !all([...waiting, '[data-stale=true]'].join()).length
    && open('stPlotlyChart').every((each) => each.querySelector('.main-svg'))
    && open('stDataFrame').every((each) => each.querySelector('canvas'));
  window.__calm = calm ? (window.__calm || 0) + 1 : 0;
  return window.__calm > 3;
})()"""


# Words that hardly stand out from what is behind them, and their contrast.
FAINT = """(() => {
  const pen = new OffscreenCanvas(1, 1).getContext('2d', { willReadFrequently: true });
  const read = (color) => { pen.clearRect(0, 0, 1, 1); pen.fillStyle = color; pen.fillRect(0, 0, 1, 1);
    const [r, g, b, a] = pen.getImageData(0, 0, 1, 1).data; return [r, g, b, a / 255]; };
  const over = (top, below) => below.map((value, i) => i === 3 ? 1 : top[i] * top[3] + value * (1 - top[3]));
  const behind = (node) => { const layers = [];
    for (let each = node; each; each = each.parentElement) layers.push(read(getComputedStyle(each).backgroundColor));
    return layers.reverse().reduce((below, top) => over(top, below), [255, 255, 255, 1]); };
  const light = ([r, g, b]) => [r, g, b].map((value) => value / 255)
    .map((value) => value <= 0.04045 ? value / 12.92 : ((value + 0.055) / 1.055) ** 2.4)
    .reduce((sum, value, i) => sum + value * [0.2126, 0.7152, 0.0722][i], 0);
  const found = [];
  const walk = document.createTreeWalker(document.querySelector('[data-testid=stApp]'), NodeFilter.SHOW_TEXT);
  while (walk.nextNode()) {
    const node = walk.currentNode.parentElement, words = walk.currentNode.textContent.trim();
    if (!words || !node.checkVisibility({ checkOpacity: true, checkVisibilityCSS: true })) continue;
    if (node.closest('style, svg, canvas, [aria-hidden=true], [data-testid=stIconMaterial], :disabled')) continue;
    const paper = behind(node), ink = over(read(getComputedStyle(node).color), paper);
    const [high, low] = [light(ink), light(paper)].sort((a, b) => b - a);
    const contrast = (high + 0.05) / (low + 0.05);
    if (contrast < 4.5) found.push([words.slice(0, 60), Math.round(contrast * 100) / 100]);
  }
  return found;
})()"""


class App:
    """The app in a browser."""

    def __init__(self, chrome: Any, address: str, folder: Path):
        self.chrome = chrome
        self.address = address
        self.folder = folder  # one of those that the app may read, named "made"

    def open(self, page: str = "overview", *, dark: bool = False, **parameters: str) -> None:
        """Loads a page by its URL and waits until its script has ended and everything is drawn."""
        place = "" if page == "overview" else page
        self.load(f"{self.address}/{place}?{urlencode(parameters, quote_via=quote)}", dark=dark)

    def load(self, url: str, *, dark: bool = False) -> None:
        self.chrome.open(url, dark=dark)
        self.settle()

    def settle(self) -> None:
        self.chrome.run("window.__calm = 0")
        self.chrome.wait(CALM, "the page is complete")

    def go(self, name: str) -> None:
        """Another page by the navigation; complaints begin anew."""
        self.chrome.events = []
        place = "/" if name == "overview" else f"/{name}"
        self.chrome.run(
            "[...document.querySelectorAll('[data-testid=stSidebarNavLink]')]"
            f".find((link) => new URL(link.href).pathname === {json.dumps(place)}).click()"
        )
        self.chrome.wait(f"location.pathname === {json.dumps(place)}", f"the page {name}")
        self.settle()

    @contextmanager
    def reruns(self) -> Iterator[None]:
        """What is done inside makes the script run again: waits for that, and until everything is drawn."""
        self.chrome.run(
            "window.__ran = false; new MutationObserver(() => { window.__ran = true; })"
            ".observe(document.querySelector('[data-testid=stApp]'), { attributeFilter: ['data-test-script-state'] })"
        )
        yield
        self.chrome.wait("window.__ran", "the script runs again")
        self.settle()

    def press(self, words: str, which: str = "button") -> None:
        """Clicks what has these words."""
        found = (
            f"[...document.querySelectorAll({json.dumps(which)})]"
            f".find((each) => each.offsetParent && each.innerText.trim().endsWith({json.dumps(words)}))"
        )
        self.chrome.wait(f"!!{found}", f"a {which} with {words!r}")
        self.chrome.run(f"{found}.click()")

    def type(self, label: str, text: str) -> None:
        """Replaces the text of an input by its label."""
        box = f"document.querySelector('input[aria-label={json.dumps(label)}]')"
        self.chrome.wait(f"!!{box}", f"an input {label!r}")
        self.chrome.run(f"{box}.focus(), {box}.select()")
        with self.reruns():
            self.chrome.call("Input.insertText", text=text)
            self.chrome.press("Enter")

    def text(self, which: str = ":scope > *") -> str:
        """What the page says, without its sidebar."""
        parts = f"[...{MAIN}.querySelectorAll({json.dumps(which)})]"
        return str(self.chrome.run(f"{parts}.map((each) => each.innerText).join('\\n')"))

    def url(self) -> str:
        return str(self.chrome.run("location.href"))

    def complaints(self) -> list[str]:
        """Exceptions, errors of the console, and requests to anyone else; none of a page that is well."""
        chrome = self.chrome
        found = [f"exception: {each}" for each in chrome.run(
            "[...document.querySelectorAll('[data-testid=stException]')].map((each) => each.innerText)")]  # fmt: skip
        found += [f"thrown: {each['exceptionDetails']['text']}" for each in chrome.seen("Runtime.exceptionThrown")]
        found += [f"console: {[arg.get('value') for arg in each['args']]}" for each in
                  chrome.seen("Runtime.consoleAPICalled") if each["type"] in ("error", "assert")]  # fmt: skip
        found += [f"log: {each['entry']['text']} {each['entry'].get('url')}" for each in chrome.seen("Log.entryAdded")
                  if each["entry"]["level"] == "error" and not PROBES.search(each["entry"].get("url", ""))]  # fmt: skip
        sockets = [each["url"] for each in chrome.seen("Network.webSocketCreated")]
        found += [f"foreign: {url}" for url in (*chrome.requests(), *sockets) if not self._own(url)]
        return found

    def _own(self, url: str) -> bool:
        parts = urlsplit(url)
        return parts.scheme in ("data", "blob") or parts.netloc == urlsplit(self.address).netloc

    def wrong(self, page: str) -> dict[str, Any]:
        """What is wrong with the page that is open; empty where nothing is."""
        chrome = self.chrome
        wrong: dict[str, Any] = {}
        if found := self.complaints():
            wrong["complaints"] = found
        title = chrome.run("document.title")
        if title != f"{TITLES[page]} · profiler":
            wrong["title"] = title
        current = chrome.run("document.querySelector('[data-testid=stSidebarNavLink][aria-current=page]')?.pathname")
        if current != ("/" if page == "overview" else f"/{page}"):
            wrong["navigation"] = current
        if len(self.text()) < 40:
            wrong["content"] = self.text()
        if chrome.run(f"{MAIN}.scrollWidth > {MAIN}.clientWidth + 1"):
            wrong["wider than the window"] = chrome.run(f"[{MAIN}.scrollWidth, {MAIN}.clientWidth]")
        return wrong

    def faint(self) -> list[Any]:
        """Words that are hard to read, with their contrast."""
        return list(self.chrome.run(FAINT))


@contextmanager
def serve(chrome: Any, folder: Path) -> Iterator[App]:
    """The real app, as ``streamlit run`` serves it: on the samples, and on the recordings where there are any."""
    port = free_port()
    command = [sys.executable, "-m", "streamlit", "run", str(APP), "--server.headless=true", f"--server.port={port}"]
    made = folder / "made"
    made.mkdir()
    roots = [str(made), *([str(PROFILES)] if PROFILES.is_dir() else [])]
    with (folder / "log").open("wb") as log:
        server = subprocess.Popen(
            [*command, "--", *roots],
            cwd=APP.parent,
            env={**os.environ, "HOME": str(folder), "PYTHONPATH": os.pathsep.join(sys.path)},
            stdout=log,
            stderr=log,
        )
        try:
            address = f"http://localhost:{port}"
            _until_it_answers(f"{address}/_stcore/health", server, folder / "log")
            yield App(chrome, address, made)
        finally:
            stop(server)


def _until_it_answers(url: str, server: subprocess.Popen[bytes], log: Path) -> None:
    end = time.monotonic() + START_S
    while time.monotonic() < end and server.poll() is None:
        try:
            urllib.request.urlopen(url, timeout=5).close()
            return
        except (urllib.error.URLError, OSError):
            time.sleep(0.1)
    raise AssertionError(f"the app does not answer: {log.read_text('utf-8', 'replace')[-4000:]}")
