"""The timeline's canvas in a browser: by itself, with this test as its server, and once in the real app."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
import urllib.request
from collections.abc import Callable
from pathlib import Path
from typing import Any
from urllib.parse import urlencode

import pytest

pytest.importorskip("streamlit", reason="the dashboard extra is not installed")

from dashboard.components import timeline as sheet
from dashboard.launch import APP, free_port, stop
from profiler import api
from profiler.analysis import timeline
from profiler.xplane.write import SpaceBuilder
from sample_profiles import path

pytestmark = pytest.mark.browser

MS = 10**9
HERE = Path(sheet.__file__).parent
PAGE = """<!doctype html><meta charset="utf-8"><title>timeline</title>
<style>:root {{ color-scheme: light dark }} {css}</style>
<div id="here"></div><script type="module">
{js}
window.said = {{}};
const parentElement = document.getElementById('here'), setStateValue = (name, value) => (window.said[name] = value);
window.update = (data) => mount({{ data, parentElement, setStateValue }});
</script>"""
T = "document.querySelector('.timeline').drawing"
SHEET = "document.querySelector('.sheet')"
TIP = "document.querySelector('.tip').innerText"
DRAWN = "new Promise(done => requestAnimationFrame(() => requestAnimationFrame(done)))"


class Sheet:
    """The canvas in a page without a server: ``answer`` is what the page of the dashboard does."""

    def __init__(self, chrome: Any, sides: list[sheet.Drawn]):
        self.chrome, self.sides = chrome, sides
        self.window, self.span = sheet.home(sides), None
        self.answer(overview=True)

    def answer(self, **more: Any) -> dict[str, Any]:
        """Sends what the window asks for."""
        asked = {"key": "here", "window": self.window, "pixels": 1000, "span": self.span, "overview": False, **more}
        data = sheet.payload(self.sides, **asked)
        self.chrome.run(f"update({json.dumps(data)}), {DRAWN}")
        return data

    def said(self, name: str) -> dict[str, Any]:
        """What the canvas reports, once it does."""
        self.chrome.wait(f"window.said.{name}", f"the canvas reports its {name}")
        found = dict(self.chrome.run(f"window.said.{name}"))
        self.chrome.run(f"delete window.said.{name}, 1")
        return found

    def place(self) -> list[float]:
        """Left and top of the canvas."""
        return list(self.chrome.run(f"(b => [b.left, b.top])({SHEET}.getBoundingClientRect())"))

    def at(self, side: int, row: int, ps: float) -> tuple[float, float]:
        """Where a moment of a row is in the window."""
        found = self.chrome.run(
            f"[{T}.x({ps}), {T}.bands.find((each) => each.side === {side} && each.row === {row}).y + 8]"
        )
        left, top = self.place()
        return left + found[0], top + found[1]

    def move(self, x: float, y: float, kind: str = "mouseMoved", **more: Any) -> None:
        self.chrome.call("Input.dispatchMouseEvent", type=kind, x=x, y=y, **more)

    def wheel(self, x: float, y: float, down: float, across: float = 0) -> None:
        self.move(x, y, "mouseWheel", deltaX=across, deltaY=down)

    def press(self, key: str) -> None:
        for kind in ("keyDown", "keyUp"):
            self.chrome.call("Input.dispatchKeyEvent", type=kind, key=key, **({"text": key} if len(key) == 1 else {}))


def drawn(file: str, title: str) -> sheet.Drawn:
    measured = api.measured(file)
    (device,) = timeline.devices(measured)
    return sheet.Drawn(title, measured, device, device.default, timeline.rows(measured.trace, 0))


@pytest.fixture
def opened(chrome: Any, tmp_path: Path) -> Callable[..., Sheet]:
    """``opened(sides)``: the canvas with them."""

    def show(sides: list[sheet.Drawn], *, dark: bool = False) -> Sheet:
        scripts = "\n".join((HERE / name).read_text("utf-8") for name in sheet.SCRIPTS)
        page = tmp_path / "timeline.html"
        css = (HERE / "timeline.css").read_text("utf-8")
        page.write_text(PAGE.format(css=css, js=scripts.replace("export default function", "function mount")), "utf-8")
        chrome.open(page, dark=dark)
        return Sheet(chrome, sides)

    return show


@pytest.fixture(scope="module")
def pair() -> list[sheet.Drawn]:
    return [drawn(str(path(f"qwen3-30b/{side}.xplane.pb")), side) for side in ("baseline", "optimized")]


@pytest.fixture
def simple(tpu_space: Callable[..., SpaceBuilder], saved: Callable[..., str]) -> list[sheet.Drawn]:
    """A loop of 100 ms with an op of 40 ms and a thousand of 10 µs in it, and a copy in flight; the same once more."""
    spans = [("while.1", 0, 100 * MS), ("dot.2", 10 * MS, 40 * MS)]
    spans += [("add.3", 60 * MS + number * MS // 50, MS // 100) for number in range(1000)]
    space = tpu_space({"TPU:0": {"XLA Ops": spans, "Async XLA Ops": [("copy-start.4", 5 * MS, 50 * MS)]}})
    return [drawn(saved(space, f"{side}.xplane.pb"), side) for side in ("baseline", "optimized")]


def test_the_wheel_zooms_at_once_and_asks_for_finer_spans(opened: Any, pair: list[sheet.Drawn]) -> None:
    page = opened(pair)
    before = page.chrome.run(f"{T}.detail.sides[0].count.filter((each) => each > 1).length")
    x, y = page.at(0, 1, pair[0].length_ps / 2)
    moment = f"{T}.window[0] + ({x - page.place()[0]} - 156) / {T}.plot * ({T}.window[1] - {T}.window[0])"
    under = page.chrome.run(moment)
    for _ in range(8):
        page.wheel(x, y, -300)
    page.chrome.wait(f"{T}.window[0] === window.said.window?.start && {T}.window[1] === window.said.window.end")
    said = page.said("window")
    assert said["end"] - said["start"] < (page.window[1] - page.window[0]) / 50
    assert page.chrome.run(moment) == pytest.approx(under, abs=said["end"] - said["start"])
    assert said["of"] == "here"
    assert said["whole"] is True
    page.window = (said["start"], said["end"])
    data = page.answer(pixels=said["pixels"])
    assert page.chrome.run(f"[...{T}.window]") == [said["start"], said["end"]]  # the answer moves nothing
    inside = [
        at for at, start in enumerate(data["detail"]["sides"][0]["start"]) if said["start"] <= start < said["end"]
    ]
    blocks = sum(data["detail"]["sides"][0]["count"][at] > 1 for at in inside)
    assert inside
    assert blocks < before / 10
    assert page.chrome.complaints() == []


def test_keys_and_buttons_zoom_and_pan(opened: Any, simple: list[sheet.Drawn]) -> None:
    page = opened(simple)
    page.chrome.run(f"{SHEET}.focus()")
    widths, starts = [], []
    for key in "wwdas":
        page.press(key)
        start, end = page.chrome.run(f"[...{T}.window]")
        widths.append(end - start)
        starts.append(start)
    assert widths[1] < widths[0] < page.window[1] - page.window[0]
    assert starts[2] > starts[1]
    assert starts[3] == pytest.approx(starts[1], abs=2)
    assert widths[4] == pytest.approx(widths[0], rel=1e-6)
    page.press("0")
    assert page.chrome.run(f"[...{T}.window]") == list(page.window)
    for name, changes in (("Zoom in", True), ("To the right", True), ("The whole step", True), ("To the left", False)):
        before = page.chrome.run(f"{DRAWN}.then(() => String({T}.window))")
        page.chrome.run(f"document.querySelector('button[aria-label={json.dumps(name)}]').click()")
        assert (page.chrome.run(f"String({T}.window)") != before) == changes  # nothing lies left of the step


def test_dragging_pans_and_is_no_click(opened: Any, simple: list[sheet.Drawn]) -> None:
    page = opened(simple)
    page.chrome.run(f"{T}.zoom(0.25), {DRAWN}")
    before = page.chrome.run(f"[...{T}.window]")
    x, y = page.at(0, 0, sum(before) / 2)
    page.move(x, y)
    page.move(x, y, "mousePressed", button="left", clickCount=1)
    page.move(x - 100, y, button="left", buttons=1)
    page.move(x - 100, y, "mouseReleased", button="left", clickCount=1)
    after = page.chrome.run(f"[...{T}.window]")
    assert after[0] - before[0] == pytest.approx(100 / page.chrome.run(f"{T}.plot") * (before[1] - before[0]), rel=0.02)
    assert after[1] - after[0] == before[1] - before[0]
    assert page.chrome.run("window.said.span ?? null") is None


def test_hovering_says_what_a_span_and_a_block_are(opened: Any, simple: list[sheet.Drawn]) -> None:
    page = opened(simple)
    page.move(*page.at(0, 1, 30 * MS))
    said = page.chrome.run(TIP)
    for words in ("dot.2", "dense matmul", "40.00 ms at 10.00 ms, XLA Ops", "jit(step)/jvp()/dot"):
        assert words in said
    page.move(*page.at(1, 1, 70 * MS))
    said = page.chrome.run(TIP)
    assert "spans" in said
    assert "most of the time: norm / elementwise" in said
    page.move(*page.at(0, 2, 30 * MS))
    assert "copy-start.4" in page.chrome.run(TIP)
    assert "in flight" in page.chrome.run(TIP)
    page.move(*page.at(0, 2, 80 * MS))
    assert page.chrome.run("document.querySelector('.tip').hidden")


def test_a_click_chooses_a_span_and_zooms_into_a_block(opened: Any, simple: list[sheet.Drawn]) -> None:
    page = opened(simple)
    page.chrome.click(*page.at(1, 1, 30 * MS))
    said = page.said("span")
    op = simple[1].measured.trace.ops["op"].to_list().index("dot.2")
    assert said == {"of": "here", "side": 1, "op": op, "start": 10 * MS, "duration": 40 * MS}
    page.chrome.run(f"{SHEET}.focus()")
    page.press("Escape")
    assert page.said("span") == {"of": "here", "op": -1}
    before = page.chrome.run(f"{T}.window[1] - {T}.window[0]")
    page.chrome.click(*page.at(0, 1, 70 * MS))
    assert page.chrome.run(f"{T}.window[1] - {T}.window[0]") < before / 20
    assert page.chrome.run("window.said.span ?? null") is None


def test_a_family_of_the_legend_stands_out(opened: Any, simple: list[sheet.Drawn]) -> None:
    page = opened(simple)
    x, y = (round(each) for each in page.at(0, 1, 30 * MS))
    left, top = page.place()

    def colour() -> list[int]:
        at = f"({x - round(left)}) * ratio, ({y - round(top) + 7}) * ratio"
        return list(
            page.chrome.run(
                f"{DRAWN}.then(() => {{ const ratio = devicePixelRatio;"
                f"return [...{T}.pen.getImageData({at}, 1, 1).data].slice(0, 3); }})"
            )
        )

    plain = colour()
    names = page.chrome.run("[...document.querySelectorAll('.legend button')].map((each) => each.textContent)")
    assert names[:3] == ["control flow", "async copy", "dense matmul"]  # those with the most time first
    press = "[...document.querySelectorAll('.legend button')].find((each) => each.textContent === {}).click()"
    page.chrome.run(press.format("'norm / elementwise'"))
    assert colour() != plain
    page.chrome.run(press.format("'dense matmul'"))
    assert colour() == plain
    assert page.chrome.run("document.querySelectorAll('.legend [aria-pressed=true]').length") == 1


def test_names_of_a_trace_are_text(opened: Any, saved: Callable[..., str]) -> None:
    evil = "<img src=x onerror=window.pwned=1>"
    space = SpaceBuilder()
    plane = space.plane("/device:GPU:0", stats={"device_vendor": "Nvidia"})
    plane.line(f"Stream #1 {evil}").event(evil, 0, 10 * MS)
    page = opened([drawn(saved(space), evil)])
    page.move(*page.at(0, 0, 5 * MS))
    assert evil in page.chrome.run(TIP)
    page.move(page.place()[0] + 20, page.at(0, 0, 0)[1])
    assert evil in page.chrome.run(TIP)
    assert page.chrome.run("typeof window.pwned") == "undefined"
    assert page.chrome.run("document.querySelectorAll('img').length") == 0


@pytest.mark.parametrize("dark", [False, True], ids=["light", "dark"])
def test_it_can_be_reached_and_is_named_and_complains_about_nothing(
    opened: Any, pair: list[sheet.Drawn], dark: bool
) -> None:
    page = opened(pair, dark=dark)
    chrome = page.chrome
    assert chrome.run(f"{SHEET}.tabIndex") == 0
    assert "Keys: w and s zoom" in chrome.run(f"{SHEET}.getAttribute('aria-label')")
    assert "baseline: TPU:0 · step 0 · 5.244 s, an estimate" in chrome.run(
        "document.querySelector('canvas[role=img]').getAttribute('aria-label')"
    )
    assert chrome.run("[...document.querySelectorAll('button')].every((each) => each.textContent || each.ariaLabel)")
    paper = chrome.run(f"[...{T}.pen.getImageData(5, 5, 1, 1).data][0]")
    assert (paper < 60) if dark else (paper > 240)
    assert chrome.complaints() == []


def test_in_the_app_the_wheel_yields_finer_spans_and_a_click_the_facts(
    chrome: Any, tmp_path: Path, simple: list[sheet.Drawn]
) -> None:
    port = free_port()
    command = [sys.executable, "-m", "streamlit", "run", str(APP), "--server.headless=true", f"--server.port={port}"]
    environment = {**os.environ, "HOME": str(tmp_path), "PYTHONPATH": os.pathsep.join(sys.path)}
    with (tmp_path / "log").open("wb") as log:
        server = subprocess.Popen(
            [*command, "--", str(tmp_path)], cwd=APP.parent, env=environment, stdout=log, stderr=log
        )
        try:
            _until_it_answers(f"http://localhost:{port}/_stcore/health")
            sides = {
                name: f"{tmp_path.name}/{side}.xplane.pb" for name, side in (("base", "baseline"), ("opt", "optimized"))
            }
            chrome.open(f"http://localhost:{port}/timeline?{urlencode(sides)}")
            roots = "[...document.querySelectorAll('*')].map((each) => each.shadowRoot)"
            here = f"{roots}.map((root) => root?.querySelector('.timeline')).find(Boolean)"
            chrome.wait(f"{here}?.drawing.overview", "the canvas is there")
            count = f"Math.max(...{here}.drawing.detail.sides[0].count)"
            assert chrome.run(count) > 1
            box = f"{here}.drawing.sheet.getBoundingClientRect()"
            left, top = chrome.run(f"[{box}.left, {box}.top]")
            chrome.run(f"{here}.drawing.zoom(0.01, {here}.drawing.x({70 * MS}))")
            chrome.wait(f"{count} === 1", "the server sends every span by itself")
            chrome.wait("new URL(location.href).searchParams.get('window')", "the window is in the URL")
            chrome.run(f"{here}.drawing.show({5 * MS}, {60 * MS})")
            chrome.click(
                left + chrome.run(f"{here}.drawing.x({30 * MS})"), top + chrome.run(f"{here}.drawing.bands[1].y + 8")
            )
            chrome.wait("document.body.innerText.includes('This op on the Ops page')", "the facts of the span")
            assert "40.00 ms" in chrome.run("document.querySelector('[data-testid=stMain]').innerText")
            thrown = [each for each in chrome.complaints() if "_stcore" not in json.dumps(each)]
            assert [each for each in thrown if "exceptionDetails" in each or each.get("type") == "error"] == []
        finally:
            stop(server)


def _until_it_answers(url: str) -> None:
    for _ in range(600):
        try:
            urllib.request.urlopen(url, timeout=5).close()
            return
        except OSError:
            time.sleep(0.1)
    raise TimeoutError(url)
