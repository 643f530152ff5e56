"""The history of a folder: which runs there are, what they measured, and what they can become."""

from __future__ import annotations

import re
import shutil
from pathlib import Path
from typing import Any

import pytest

import sample_profiles
from dashboard import plots_runs, points
from dashboard.theme import LIGHT
from profiler import api
from profiler.report import units

RECORDED = "samples/tiny-qwen3/{}.xplane.pb.gz"
SMALL = dict.fromkeys(("base", "opt"), "samples/cpu-remat/baseline.xplane.pb.gz")  # what other pages would read
COMPILED = "samples/qwen3-30b/{}.xplane.pb"


def shown(app: Any) -> str:
    """All HTML of the page, as text."""
    markup = "\n".join(str(element.proto.body) for element in app.get("html"))
    return re.sub(r"<[^>]+>", " ", markup)


def runs_of(app: Any) -> list[str]:
    (table, *_) = app.dataframe
    return list(table.value["run"])


def place(folder: Path, sample: str, *runs: str) -> None:
    for run in runs:
        file = folder / "plugins" / "profile" / run / "host-0.xplane.pb.gz"
        file.parent.mkdir(parents=True)
        shutil.copy(sample_profiles.path(sample), file)


def test_the_samples_are_listed_with_what_they_say(open_page: Any) -> None:
    app = open_page("runs", **SMALL, folder="samples")
    assert not app.exception
    assert "tiny-qwen3/baseline" in runs_of(app)
    table = app.dataframe[0].value.set_index("run")
    row = table.loc["qwen3-30b/optimized"]
    assert (row["kind"], row["model"], row["chips"]) == ("compiled", "qwen3-30b-a3b", "TPU v7x tpu7x:4x4x4")
    assert row["batch × tokens"] == "6 × 8192"
    assert table.loc["tiny-qwen3/baseline"]["commit"] == "ef9270ea58"


def test_chosen_runs_are_measured_as_the_summary_says(open_page: Any) -> None:
    texts = [RECORDED.format("baseline"), RECORDED.format("optimized")]
    app = open_page("runs", **SMALL, runs=texts)
    assert not app.exception
    assert len(app.get("plotly_chart")) == 1
    for text in texts:
        summary = api.summary(str(sample_profiles.path(text.removeprefix("samples/"))))
        assert units.number(summary.tokens_per_s, 5) in shown(app)
    assert "remat_policy" in list(app.dataframe[1].value["configuration key"])


def test_recorded_and_compiled_runs_share_no_line(open_page: Any) -> None:
    app = open_page("runs", **SMALL, runs=[RECORDED.format("baseline"), COMPILED.format("baseline")])
    assert not app.exception
    assert "1 of 2 are compiled, not recorded" in shown(app)
    assert "(est.)" in shown(app)


def test_a_figure_joins_only_runs_of_one_kind_model_and_chip() -> None:
    def point(text: str) -> points.Point:
        path = str(sample_profiles.path(text.removeprefix("samples/")))
        summary = api.summary(path)
        info = (summary.run_info or {}).get("config") or {}
        return points.Point(text, points.datetime(2026, 1, 1), summary, info.get("model_name"))

    found = [point(each.format(side)) for each in (RECORDED, COMPILED) for side in ("baseline", "optimized")]
    figure = plots_runs.history(found, "abcd", plots_runs.METRICS["step time"], LIGHT)
    assert [list(trace.x) for trace in figure.data] == [["0", "1"], ["2", "3"]]
    assert len({trace.marker.symbol for trace in figure.data}) == 2
    assert ["compiled (est.)" in trace.name for trace in figure.data] == [False, True]
    assert list(figure.data[1].y) == [point.summary.steps.mean_ps * 1e-9 for point in found[2:] if point.summary]
    known = plots_runs.history(found, "abcd", plots_runs.METRICS["MFU"], LIGHT)
    assert [list(trace.x) for trace in known.data] == [[], ["2", "3"]]  # a CPU has no peak, so no MFU


def test_a_run_becomes_a_side_or_the_runs_a_ladder(open_page: Any) -> None:
    app = open_page("runs", **SMALL, runs=[RECORDED.format("optimized")])
    buttons = {button.label: button for button in app.button}
    assert buttons["As ladder"].disabled
    buttons["Use as baseline"].click().run()
    assert app.session_state["base"] == RECORDED.format("optimized")
    chain = [RECORDED.format(side) for side in ("baseline", "optimized", "baseline")]
    app = open_page("runs", **SMALL, ladder=chain[:2])
    assert not app.exception
    assert "Ladder of 2 runs" in [each.value for each in app.subheader]
    assert len(app.get("plotly_chart")) == 1
    assert "What the rungs are made of" in shown(app)


def test_an_empty_folder_says_so(open_page: Any, tmp_path: Path) -> None:
    (tmp_path / "logs").mkdir()
    app = open_page("runs", paths=(str(tmp_path / "logs"),))
    assert not app.exception
    assert "There is no .xplane.pb file below logs." in shown(app)


def test_broken_files_keep_their_row_and_say_why(open_page: Any, tmp_path: Path) -> None:
    place(tmp_path / "logs", "tiny-qwen3/baseline.xplane.pb.gz", "2026_12_01_00_00_00")
    (tmp_path / "logs" / "empty.xplane.pb").touch()
    (tmp_path / "logs" / "text.xplane.pb").write_text("not a profile")
    app = open_page("runs", paths=(str(tmp_path / "logs"),), runs=["logs/text.xplane.pb", "logs/2026_12_01_00_00_00"])
    assert not app.exception
    problems = dict(zip(app.dataframe[0].value["run"], app.dataframe[0].value["problem"], strict=True))
    assert problems["empty"] == "is empty"
    assert problems["text"]
    assert problems["2026_12_01_00_00_00"] == ""
    assert "text.xplane.pb" in shown(app)


def test_thousands_of_runs_are_shown_by_the_page(open_page: Any, tmp_path: Path) -> None:
    for number in range(3000):
        folder = tmp_path / "logs" / f"{number:04d}"
        folder.mkdir(parents=True)
        (folder / "a.xplane.pb").write_bytes(b"\x0a\x00")
    app = open_page("runs", paths=(str(tmp_path / "logs"),))
    assert not app.exception
    assert "3,000 runs, newest first; 1 to 50" in shown(app)
    assert len(runs_of(app)) == 50
    app.text_input(key="filter").set_value("0042").run()
    assert runs_of(app) == ["0042/a"]


def test_the_newest_two_of_one_kind_are_open_at_first(open_page: Any, tmp_path: Path) -> None:
    place(tmp_path / "logs", "cpu-remat/baseline.xplane.pb.gz", "2026_12_01_00_00_00", "2026_12_03_00_00_00")
    app = open_page("runs", paths=(str(tmp_path / "logs"),))
    assert app.session_state["base"].endswith("2026_12_01_00_00_00")
    assert app.session_state["opt"].endswith("2026_12_03_00_00_00")


@pytest.mark.parametrize("name", ["<img src=x onerror=alert(1)>", "$x^2$ **b** :red[c]", "{{ 7*7 }}"])
def test_names_are_shown_as_they_are(open_page: Any, tmp_path: Path, name: str) -> None:
    folder = tmp_path / "logs" / name
    folder.mkdir(parents=True)
    shutil.copy(sample_profiles.path("tiny-qwen3/baseline.xplane.pb.gz"), folder / "a.xplane.pb.gz")
    app = open_page("runs", paths=(str(tmp_path / "logs"),), runs=[f"logs/{name}/a.xplane.pb.gz"])
    assert not app.exception
    markup = "\n".join(str(element.proto.body) for element in app.get("html"))
    assert "<img" not in markup
    assert runs_of(app) == [f"{name}/a"]
