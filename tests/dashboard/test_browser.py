"""The whole app in a real browser: every page on every recording, what clicks do, and what must never happen."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from urllib.parse import quote, urlencode, urlsplit

import pytest

pytest.importorskip("streamlit", reason="the dashboard extra is not installed")

from dashboard.launch import APP, free_port, stop
from dashboard.pages import PAGES
from profiler.report import units
from sample_profiles import path

pytestmark = pytest.mark.browser

ROOT = Path(__file__).resolve().parents[2]
PROFILES = ROOT.parent / "shared" / "profiles"
RECORDINGS = sorted(each.name for each in PROFILES.glob("*.xplane.pb")) or ["none"]
BROKEN = "corrupt_utf8.xplane.pb"
START_S = 60

TITLES = {page.name: page.title for page in PAGES}
CPU = {"base": "samples/cpu-remat/baseline.xplane.pb.gz", "opt": "samples/cpu-remat/optimized.xplane.pb.gz"}
DEFAULT = {"base": "samples/qwen3-30b/baseline.xplane.pb", "opt": "samples/qwen3-30b/optimized.xplane.pb"}

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


@pytest.fixture(scope="module")
def app(chrome: Any, tmp_path_factory: pytest.TempPathFactory) -> Iterator[App]:
    """The real app, as ``streamlit run`` serves it: on the samples, and on the recordings where there are any."""
    folder = tmp_path_factory.mktemp("server")
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


@pytest.fixture(scope="module")
def diff(run_cli: Callable[..., Any]) -> dict[str, Any]:
    """What ``profiler diff --format json`` says of the default pair."""
    sides = (str(path(f"qwen3-30b/{side}.xplane.pb")) for side in ("baseline", "optimized"))
    found: dict[str, Any] = json.loads(run_cli("diff", *sides, "--format", "json").stdout)
    return found


# --- every page ------------------------------------------------------------------------------------------------------


def well(app: App, page: str) -> dict[str, Any]:
    """What is wrong with the page that is open; empty where nothing is."""
    chrome = app.chrome
    wrong: dict[str, Any] = {}
    if found := app.complaints():
        wrong["complaints"] = found
    title = chrome.run("document.title")
    if title not in ("profiler", f"{TITLES[page]} · profiler"):
        wrong["title"] = title
    current = chrome.run("document.querySelector('[data-testid=stSidebarNavLink][aria-current=page]')?.pathname")
    if current != ("/" if page == "overview" else f"/{page}"):
        wrong["navigation"] = current
    if len(app.text()) < 40:
        wrong["content"] = app.text()
    if chrome.run(f"{MAIN}.scrollWidth > {MAIN}.clientWidth + 1"):
        wrong["wider than the window"] = chrome.run(f"[{MAIN}.scrollWidth, {MAIN}.clientWidth]")
    return wrong


@pytest.mark.parametrize("dark", [False, True], ids=["light", "dark"])
@pytest.mark.parametrize("page", [page.name for page in PAGES])
def test_a_page_opens_by_its_url_complains_about_nothing_and_can_be_read(app: App, page: str, dark: bool) -> None:
    app.open(page, dark=dark, **DEFAULT)
    assert well(app, page) == {}
    assert not app.chrome.run("!!document.querySelector('.failure')")
    assert app.chrome.run(FAINT) == []
    paper = app.chrome.run("getComputedStyle(document.querySelector('[data-testid=stApp]')).backgroundColor")
    assert paper == ("rgb(20, 23, 26)" if dark else "rgb(253, 253, 252)")


@pytest.mark.recordings
@pytest.mark.parametrize("name", [name for name in RECORDINGS if name != BROKEN])
def test_every_page_of_a_recording_complains_about_nothing(app: App, recordings: Path, name: str) -> None:
    recording = f"profiles/{name}"
    app.open(base=recording, opt=recording)
    wrong = {}
    for page in PAGES:
        if page != PAGES[0]:
            app.go(page.name)
        if found := well(app, page.name):
            wrong[page.name] = found
        if app.chrome.run("!!document.querySelector('.failure')"):
            wrong[page.name] = app.text(".failure")
    assert wrong == {}


@pytest.mark.recordings
def test_a_broken_file_is_explained_on_every_page(app: App, recordings: Path) -> None:
    app.open(base=f"profiles/{BROKEN}", opt=f"profiles/{BROKEN}")
    wrong = {}
    for page in PAGES:
        if page != PAGES[0]:
            app.go(page.name)
        if found := well(app, page.name):
            wrong[page.name] = found
        elif page.name != "runs" and "was rewritten as UTF-8 text" not in app.text(".failure"):
            wrong[page.name] = app.text()
    assert wrong == {}


@pytest.mark.parametrize(
    "text", ["nothing/here.xplane.pb", "../../../etc/passwd", "<img src=x onerror=window.pwned=1>"]
)
def test_a_path_that_is_none_is_refused_in_words(app: App, text: str) -> None:
    app.open(base=text, opt=text)
    assert app.complaints() == []
    assert app.text(".failure")
    assert app.chrome.run("typeof window.pwned") == "undefined"


HOSTILE = (
    "<img src=x onerror=window.pwned=1>",
    "<script>window.pwned=1</script>",
    "</td></tr></table><h1>gone",
    "[here](javascript:window.pwned=1) ![there](https://example.com/x.png)",
    ":material/home: :red[words] $x^2$ `code`",
    '"><svg onload=window.pwned=1>{{7*7}}',
    "a\u202eb\x1b[2J",
)


def test_hostile_names_execute_nothing_on_any_page(app: App, tpu_space: Any) -> None:
    steps = [(str(number), number * 10_000_000, 9_000_000) for number in range(4)]
    space = tpu_space(
        {
            "TPU:0": {
                "Steps": steps,
                "XLA Modules": [(f"{HOSTILE[0]}(7)", start, length) for _, start, length in steps],
                "XLA Ops": [
                    (name, start + 1_000_000 * at, 900_000) for _, start, _ in steps for at, name in enumerate(HOSTILE)
                ],
            }
        }
    )
    space.write(app.folder / "<b>![x](y)$z$.xplane.pb")
    wrong: dict[str, Any] = {}
    recording = "made/<b>![x](y)$z$.xplane.pb"
    seen = []
    for page in PAGES:
        app.open(page.name, base=recording, opt=recording, row="0")
        app.chrome.run("document.querySelectorAll('details > summary').forEach((each) => each.click())")
        app.settle()
        if found := well(app, page.name):
            wrong[page.name] = found
        words = app.chrome.run("document.documentElement.textContent")
        seen += [page.name] if any(name in words for name in HOSTILE) else []
        if app.chrome.run("typeof window.pwned") != "undefined":
            wrong[page.name] = "something was executed"
        foreign = (
            "[src*=example], [href*=example], [href^=javascript], [onerror], [onload], .pf h1:not(.verdict), .katex"
        )
        if found := app.chrome.run(f"[...document.querySelectorAll('{foreign}')].map((each) => each.outerHTML)"):
            wrong[page.name] = found
    assert wrong == {}
    assert {"ops", "timeline"} <= set(seen)  # as letters


# --- what clicks do --------------------------------------------------------------------------------------------------


@pytest.fixture
def arrived(chrome: Any, tmp_path: Path) -> Callable[[str], Path]:
    """Waits for a file in the download folder of the browser."""
    chrome.call("Browser.setDownloadBehavior", behavior="allow", downloadPath=str(tmp_path))

    def file(name: str) -> Path:
        end = time.monotonic() + 60
        while not (tmp_path / name).exists() and time.monotonic() < end:
            time.sleep(0.05)
        assert (tmp_path / name).exists(), [each.name for each in tmp_path.iterdir()]
        return tmp_path / name

    return file


def change(app: App) -> float:
    """The change that the verdict states, in percent."""
    found = re.search(r"\(([+−])([\d.]+) %\)", app.text("h1.verdict"))
    assert found, app.text("h1.verdict")
    return float(found[2]) * (1 if found[1] == "+" else -1)


def rows(app: App) -> int:
    """How many ops the page lists, as it says."""
    found = re.search(r"(?:All )?([\d,]+)(?: of [\d,]+)? rows?", app.text(".because"))
    assert found, app.text(".because")
    return int(found[1].replace(",", ""))


def column(app: App, title: str) -> list[float]:
    """The first values of a column of the table of ops, from what it tells a screen reader."""
    table = f"{MAIN}.querySelector('[data-testid=stDataFrame] table')"
    app.chrome.wait(f"!!{table}?.querySelector('tbody td')", "the table for screen readers")
    titles = app.chrome.run(f"[...{table}.querySelectorAll('thead th')].map((each) => each.textContent)")
    at = next(index for index, each in enumerate(titles) if each.startswith(title))
    cells = app.chrome.run(f"[...{table}.querySelectorAll('tbody tr')].map((row) => row.children[{at}].textContent)")
    return [float(cell) for cell in cells]


def test_swapping_turns_the_sign_of_the_verdict(app: App) -> None:
    app.open(**CPU)
    before = change(app)
    with app.reruns():
        app.press("Swap")
    assert change(app) * before < 0
    assert f"base={quote(CPU['opt'], safe='')}" in app.url()
    assert app.complaints() == []


def test_searching_and_filtering_the_ops_leave_fewer_rows(app: App) -> None:
    app.open("ops", **CPU)
    everything = rows(app)
    app.type("Search", "fusion")
    searched = rows(app)
    assert 0 < searched < everything
    app.type("Phase", "backward")
    assert 0 < rows(app) < searched
    app.type("Search", "there is no such op")
    assert "No op is like that" in app.text()
    with app.reruns():
        app.press("Show all")
    assert rows(app) == everything
    assert app.complaints() == []


def test_the_order_of_the_ops_is_the_chosen_one(app: App) -> None:
    app.open("ops", **CPU)
    for side in ("optimized", "baseline"):
        app.type("Largest first", f"{side} time")
        values = column(app, side)
        assert len(values) > 5
        assert values == sorted(values, reverse=True)
    assert app.complaints() == []


def test_a_chosen_row_is_shown_in_full_and_the_url_shows_it_to_others(app: App) -> None:
    app.open("ops", search="fusion", **CPU)
    canvas = f"{MAIN}.querySelector('[data-testid=stDataFrame] canvas').getBoundingClientRect()"
    left, top = app.chrome.run(f"[{canvas}.left, {canvas}.top]")
    with app.reruns():
        app.chrome.click(left + 17, top + 35 + 17)
    app.chrome.wait(f"!!{MAIN}.querySelector('h2.op')", "the chosen op")
    shown, url = app.text("h2.op"), app.url()
    assert "row=" in url and "search=fusion" in url
    assert "HLO text" in app.text()
    with app.chrome.tab():
        app.load(url)
        assert app.text("h2.op") == shown
        assert app.text(".because") and "fusion" in app.chrome.run(
            "document.querySelector('input[aria-label=Search]').value"
        )
        assert app.complaints() == []


def test_the_url_alone_shows_the_same_view_of_the_memory(app: App) -> None:
    app.open("memory", **DEFAULT)
    app.type("Search", "loss")
    with app.reruns():
        app.press("baseline", "[data-testid=stMain] button")
    shown, url = app.text(), app.url()
    assert "memory_find=loss" in url and "memory_side=baseline" in url
    with app.chrome.tab():
        app.load(url)
        assert app.text() == shown


def test_the_report_arrives_as_json_and_as_a_page(app: App, arrived: Any, diff: dict[str, Any]) -> None:
    app.open(**DEFAULT)
    app.press("Report\n\nexpand_more", "[data-testid=stMain] button")
    app.press("JSON")
    assert json.loads(arrived("diff.json").read_text("utf-8")) == diff
    app.press("HTML page")
    page = arrived("report.html")
    app.chrome.open(page)
    assert app.chrome.run("document.querySelector('h1').innerText") == diff["verdict"].partition(". ")[0] + "."
    assert app.chrome.complaints() == []


def test_the_tensors_arrive_as_a_file(app: App, arrived: Any, diff: dict[str, Any]) -> None:
    app.open("memory", **DEFAULT)
    app.press("Download\n\nexpand_more", "[data-testid=stMain] button")
    app.press("JSON")
    found = json.loads(arrived("tensors-changed.json").read_text("utf-8"))
    assert len(found) == len(diff["memory"]["tensors"])
    peaks = [diff[side]["memory"]["static_peak_bytes"] for side in ("baseline", "optimized")]
    assert sum(row["delta_bytes"] for row in found) == peaks[1] - peaks[0]


# --- what the pages say ----------------------------------------------------------------------------------------------


def test_the_overview_says_what_profiler_diff_says(app: App, diff: dict[str, Any]) -> None:
    app.open(**DEFAULT)
    assert app.text("h1.verdict") == diff["verdict"].partition(". ")[0] + "."
    cards = app.text(".card")
    sides = (diff["baseline"], diff["optimized"])
    for side in sides:
        assert units.percent(side["mfu"], 2) in cards
        assert units.grouped(side["tokens_per_s"]) in cards
        assert units.size(side["memory"]["static_peak_bytes"]) in cards
    assert f"{units.points(diff['delta']['mfu_points'])} points" in cards


def test_the_ops_page_says_what_profiler_diff_says(app: App, diff: dict[str, Any]) -> None:
    app.open("ops", **DEFAULT)
    assert rows(app) == len(diff["ops"])
    both = [sum(row[f"{side}_time_ps"] for row in diff["ops"]) for side in ("baseline", "optimized")]
    assert f"{units.duration(both[0])} → {units.duration(both[1])}" in app.text(".because")


def test_the_memory_page_says_what_profiler_diff_says(app: App, diff: dict[str, Any]) -> None:
    app.open("memory", **DEFAULT)
    peaks = [diff[side]["memory"]["static_peak_bytes"] for side in ("baseline", "optimized")]
    assert f"{units.size(peaks[0])} → {units.size(peaks[1])}" in app.text(".because")
    scale = units.byte_scale(peaks)
    groups = app.text("table").replace("\t", " ")
    for row in diff["memory"]["groups"]:
        if row["optimized_bytes"] > 0.001 * peaks[1]:
            assert f"{row['group']} {scale.show(row['baseline_bytes'])} {scale.show(row['optimized_bytes'])}" in groups
