"""What clicks do in a real browser, and that the pages say what ``profiler diff`` says."""

from __future__ import annotations

import json
import re
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any
from urllib.parse import quote

import pytest

pytest.importorskip("streamlit", reason="the dashboard extra is not installed")

from profiler.report import units
from sample_profiles import path

pytestmark = pytest.mark.browser

MAIN = "document.querySelector('[data-testid=stMain]')"
CPU = {"base": "samples/cpu-remat/baseline.xplane.pb.gz", "opt": "samples/cpu-remat/optimized.xplane.pb.gz"}
DEFAULT = {"base": "samples/qwen3-30b/baseline.xplane.pb", "opt": "samples/qwen3-30b/optimized.xplane.pb"}


@pytest.fixture(scope="module")
def diff(run_cli: Callable[..., Any]) -> dict[str, Any]:
    """What ``profiler diff --format json`` says of the default pair."""
    sides = (str(path(f"qwen3-30b/{side}.xplane.pb")) for side in ("baseline", "optimized"))
    found: dict[str, Any] = json.loads(run_cli("diff", *sides, "--format", "json").stdout)
    return found


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


def change(app: Any) -> float:
    """The change that the verdict states, in percent."""
    found = re.search(r"\(([+−])([\d.]+) %\)", app.text("h1.verdict"))
    assert found, app.text("h1.verdict")
    return float(found[2]) * (1 if found[1] == "+" else -1)


def rows(app: Any) -> int:
    """How many ops the page lists, as it says."""
    found = re.search(r"(?:All )?([\d,]+)(?: of [\d,]+)? rows?", app.text(".because"))
    assert found, app.text(".because")
    return int(found[1].replace(",", ""))


def column(app: Any, title: str) -> list[float]:
    """The first values of a column of the table of ops, from what it tells a screen reader."""
    table = f"{MAIN}.querySelector('[data-testid=stDataFrame] table')"
    app.chrome.wait(f"!!{table}?.querySelector('tbody td')", "the table for screen readers")
    titles = app.chrome.run(f"[...{table}.querySelectorAll('thead th')].map((each) => each.textContent)")
    at = next(index for index, each in enumerate(titles) if each.startswith(title))
    cells = app.chrome.run(f"[...{table}.querySelectorAll('tbody tr')].map((row) => row.children[{at}].textContent)")
    return [float(cell) for cell in cells]


def test_swapping_turns_the_sign_of_the_verdict(app: Any) -> None:
    app.open(**CPU)
    before = change(app)
    with app.reruns():
        app.press("Swap")
    assert change(app) * before < 0
    assert f"base={quote(CPU['opt'], safe='')}" in app.url()
    assert app.complaints() == []


def test_searching_and_filtering_the_ops_leave_fewer_rows(app: Any) -> None:
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


def test_the_order_of_the_ops_is_the_chosen_one(app: Any) -> None:
    app.open("ops", **CPU)
    for side in ("optimized", "baseline"):
        app.type("Largest first", f"{side} time")
        values = column(app, side)
        assert len(values) > 5
        assert values == sorted(values, reverse=True)
    assert app.complaints() == []


def test_a_chosen_row_is_shown_in_full_and_the_url_shows_it_to_others(app: Any) -> None:
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


def test_the_url_alone_shows_the_same_view_of_the_memory(app: Any) -> None:
    app.open("memory", **DEFAULT)
    app.type("Search", "loss")
    with app.reruns():
        app.press("baseline", "[data-testid=stMain] button")
    shown, url = app.text(), app.url()
    assert "memory_find=loss" in url and "memory_side=baseline" in url
    with app.chrome.tab():
        app.load(url)
        assert app.text() == shown


def test_the_report_arrives_as_json_and_as_a_page(app: Any, arrived: Any, diff: dict[str, Any]) -> None:
    app.open(**DEFAULT)
    app.press("Report\n\nexpand_more", "[data-testid=stMain] button")
    app.press("JSON")
    assert json.loads(arrived("diff.json").read_text("utf-8")) == diff
    app.press("HTML page")
    page = arrived("report.html")
    app.chrome.open(page)
    assert app.chrome.run("document.querySelector('h1').innerText") == diff["verdict"].partition(". ")[0] + "."
    assert app.chrome.complaints() == []


def test_the_tensors_arrive_as_a_file(app: Any, arrived: Any, diff: dict[str, Any]) -> None:
    app.open("memory", **DEFAULT)
    app.press("Download\n\nexpand_more", "[data-testid=stMain] button")
    app.press("JSON")
    found = json.loads(arrived("tensors-changed.json").read_text("utf-8"))
    assert len(found) == len(diff["memory"]["tensors"])
    peaks = [diff[side]["memory"]["static_peak_bytes"] for side in ("baseline", "optimized")]
    assert sum(row["delta_bytes"] for row in found) == peaks[1] - peaks[0]


# --- what the pages say ----------------------------------------------------------------------------------------------


def test_the_overview_says_what_profiler_diff_says(app: Any, diff: dict[str, Any]) -> None:
    app.open(**DEFAULT)
    assert app.text("h1.verdict") == diff["verdict"].partition(". ")[0] + "."
    cards = app.text(".card")
    sides = (diff["baseline"], diff["optimized"])
    for side in sides:
        assert units.percent(side["mfu"], 2) in cards
        assert units.grouped(side["tokens_per_s"]) in cards
        assert units.size(side["memory"]["static_peak_bytes"]) in cards
    assert f"{units.points(diff['delta']['mfu_points'])} points" in cards


def test_the_ops_page_says_what_profiler_diff_says(app: Any, diff: dict[str, Any]) -> None:
    app.open("ops", **DEFAULT)
    assert rows(app) == len(diff["ops"])
    both = [sum(row[f"{side}_time_ps"] for row in diff["ops"]) for side in ("baseline", "optimized")]
    assert f"{units.duration(both[0])} → {units.duration(both[1])}" in app.text(".because")


def test_the_memory_page_says_what_profiler_diff_says(app: Any, diff: dict[str, Any]) -> None:
    app.open("memory", **DEFAULT)
    peaks = [diff[side]["memory"]["static_peak_bytes"] for side in ("baseline", "optimized")]
    assert f"{units.size(peaks[0])} → {units.size(peaks[1])}" in app.text(".because")
    scale = units.byte_scale(peaks)
    groups = app.text("table").replace("\t", " ")
    for row in diff["memory"]["groups"]:
        if row["optimized_bytes"] > 0.001 * peaks[1]:
            assert f"{row['group']} {scale.show(row['baseline_bytes'])} {scale.show(row['optimized_bytes'])}" in groups
