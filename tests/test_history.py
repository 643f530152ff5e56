"""A folder of runs over time: which there are, where a figure changes for good, and what changed with it."""

from __future__ import annotations

import csv
import io
import json
from collections.abc import Callable
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import jsonschema
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import sample_profiles
from profiler import api
from profiler.analysis.changepoints import changes, exact_changes
from profiler.analysis.runfigures import Figures, of_reduced, of_summary
from profiler.cli_options import HISTORY_METRICS
from profiler.errors import UnreadableError
from profiler.history import METRICS, Entry, told
from profiler.redact import redacted
from profiler.report import render_history
from profiler.report.output import Style
from profiler.report.sparkline import sparkline
from profiler.results_history import History, SkippedRun
from profiler.xplane.locate import host_name, locate
from profiler.xplane.runs import Run, RunFacts, facts, reduced, runs

DOCS = Path(__file__).resolve().parent.parent / "docs"
SAMPLES = [
    "tiny-qwen3/baseline.xplane.pb.gz", "cpu-remat/baseline.xplane.pb.gz", "gpt-oss-20b/baseline.xplane.pb.gz",
]  # fmt: skip


# --- reduced runs among the runs of a folder


@pytest.mark.parametrize("sample", SAMPLES)
def test_a_reduced_run_says_of_itself_what_the_recording_says(sample: str, tmp_path: Path) -> None:
    original = sample_profiles.path(sample)
    (tmp_path / "runs").mkdir()
    api.reduce(str(original), tmp_path / "runs" / "one.parquet")
    (found,) = runs(tmp_path).runs
    assert (found.name, reduced(found), found.stamped) == ("runs/one", True, False)
    assert found.path == str(tmp_path / "runs" / "one.parquet")
    (plain,) = runs(original).runs
    assert (plain.name, reduced(plain)) == (host_name(original), False)
    said = facts(plain)
    assert facts(found) == (said if said.devices else replace(said, devices=1))  # a CPU has no device plane


def test_a_damaged_reduced_run_says_so(tmp_path: Path) -> None:
    api.reduce(str(sample_profiles.path(SAMPLES[0])), tmp_path / "2026_01_02_03_04_05.parquet")
    (tmp_path / "2026_01_02_03_04_05.parquet" / "hosts.parquet").write_bytes(b"no table")
    (found,) = runs(tmp_path).runs
    assert (found.stamped, found.started) == (True, datetime(2026, 1, 2, 3, 4, 5).astimezone())
    assert "damaged reduced run" in (facts(found).error or "")


# --- figures


@pytest.mark.parametrize("sample", SAMPLES)
def test_the_figures_of_a_reduced_run_are_those_of_its_summary(sample: str, tmp_path: Path) -> None:
    original = sample_profiles.path(sample)
    api.reduce(str(original), tmp_path / "one.parquet")
    assert of_reduced(locate(str(tmp_path / "one.parquet"))) == of_summary(api.summary(str(original)))


def test_reduced_runs_and_recordings_stand_in_one_history_and_broken_ones_are_named(
    tmp_path: Path, run_cli: Callable[..., Any]
) -> None:
    for number, side in enumerate(("baseline", "optimized")):
        original = sample_profiles.path(f"tiny-qwen3/{side}.xplane.pb.gz")
        if number:
            (tmp_path / "plain.xplane.pb.gz").write_bytes(original.read_bytes())
        else:
            api.reduce(str(original), tmp_path / "reduced.parquet")
    (tmp_path / "broken.xplane.pb").write_bytes(b"no profile at all")
    counted: list[tuple[int, int]] = []
    found = api.history(tmp_path, None, lambda done, of: counted.append((done, of)))
    (series,) = found.series
    assert [(run.name, run.reduced) for run in series.runs] == [("reduced", True), ("plain", False)]
    assert (found.metric, series.model, series.kind) == ("step_time", "tiny-qwen3", "recorded")
    assert [run.value for run in series.runs] == [
        api.summary(str(tmp_path / name)).steps.mean_ps for name in ("reduced.parquet", "plain.xplane.pb.gz")
    ]
    assert "remat_policy" in [each.key for each in series.runs[1].changed]
    assert [each.name for each in found.skipped] == ["broken"]
    assert counted == [(1, 3), (2, 3), (3, 3)]
    for how in ("text", "json", "markdown", "csv"):
        done = run_cli("history", tmp_path, "--format", how)
        assert (done.returncode, bool(done.stdout)) == (0, True), done.stderr
    assert run_cli("history", tmp_path, "--metric", "speed").returncode == 2
    assert run_cli("history", tmp_path, "-o", tmp_path / "plain.xplane.pb.gz", "--format", "text").returncode == 2


def test_a_run_that_is_there_twice_counts_once_and_reduced(tmp_path: Path) -> None:
    original = sample_profiles.path("tiny-qwen3/baseline.xplane.pb.gz")
    for name in ("a", "z"):
        (tmp_path / f"{name}.xplane.pb.gz").write_bytes(original.read_bytes())
    api.reduce(str(original), tmp_path / "m.parquet")
    (tmp_path / "other.xplane.pb.gz").write_bytes(
        sample_profiles.path("tiny-qwen3/optimized.xplane.pb.gz").read_bytes()
    )
    for metric in (None, "hbm_window"):
        found = api.history(tmp_path, metric)
        assert {run.name for series in found.series for run in series.runs} == {"m", "other"}
        (note,) = (note for note in found.warnings if note.code == "copies")
        assert note.message.endswith(": a (as m), z (as m)")


def test_compiled_profiles_that_are_equal_are_runs_of_their_own() -> None:
    runs = [replace(entry(day, kind="compiled", said=False), run=entry(day).run) for day in range(3)]
    assert [len(series.runs) for series in told("runs", runs, "step_time").series] == [3]


def test_a_run_that_fails_in_no_known_way_is_named_like_any_other(tmp_path: Path, monkeypatch) -> None:
    for side in ("baseline", "optimized"):
        sample = sample_profiles.path(f"tiny-qwen3/{side}.xplane.pb.gz")
        (tmp_path / f"{side}.xplane.pb.gz").write_bytes(sample.read_bytes())
    summary = api.summary
    monkeypatch.setattr(api, "summary", lambda path: summary(path) if "base" in path else {}["key"])
    found = api.history(tmp_path)
    assert [(each.name, "bug in profiler" in each.why) for each in found.skipped] == [("optimized", True)]


def test_a_folder_without_a_run_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(UnreadableError, match="holds no run"):
        api.history(tmp_path)
    with pytest.raises(UnreadableError, match="no such folder"):
        api.history(tmp_path / "missing")
    (tmp_path / "broken.xplane.pb").write_bytes(b"no profile at all")
    with pytest.raises(UnreadableError, match="no run that can be read"):
        api.history(tmp_path)


# --- levels


def test_the_metrics_of_the_command_are_those_that_there_are() -> None:
    assert tuple(METRICS) == HISTORY_METRICS


@pytest.mark.parametrize("kind", ["normal", "heavy tails"])
@pytest.mark.parametrize("count", [4, 6, 10, 20, 60])
def test_noise_alone_changes_no_level(kind: str, count: int) -> None:
    random = np.random.default_rng(count)
    series = 500
    noise = random.standard_normal((series, count)) if kind == "normal" else random.standard_t(3, (series, count))
    wrong = sum(bool(changes(100 + 2 * each)) for each in noise)
    assert wrong <= 0.015 * series + 3 * (0.01 * series) ** 0.5


@settings(max_examples=40, deadline=None)
@given(
    before=st.integers(3, 12), after=st.integers(3, 12), seed=st.integers(0, 999),
    ratio=st.sampled_from([0.7, 0.8, 1.3]),
)  # fmt: skip
def test_a_step_is_found_where_it_is(before: int, after: int, seed: int, ratio: float) -> None:
    random = np.random.default_rng(seed)
    values = np.concatenate([np.full(before, 50.0), np.full(after, 50.0 * ratio)])
    values *= 1 + 0.004 * random.uniform(-1, 1, len(values))
    assert changes(values) == (before,)
    assert changes(values * 1e12) == (before,)


def test_two_steps_are_two_also_where_the_second_goes_back() -> None:
    random = np.random.default_rng(1)
    values = np.repeat([100.0, 120.0, 100.0, 80.0], 5) * (1 + 0.005 * random.standard_normal(20))
    assert changes(values) == (5, 10, 15)


@pytest.mark.parametrize("place", [0, 4, 9])
def test_one_run_is_no_level(place: int) -> None:
    random = np.random.default_rng(2)
    values = 100 * (1 + 0.005 * random.standard_normal(10))
    values[place] *= 2
    assert changes(values) == ()
    found = told("runs", [entry(day, step=float(value)) for day, value in enumerate(values)], "step_time").series[0]
    assert [run.stands_out for run in found.runs] == [day == place for day in range(10)]
    assert ("the newest run, 009, stands out" in found.verdict) == (place == 9)


@pytest.mark.parametrize("values", [[], [1.0], [1.0, 2.0], [1.0, 1.0, 2.0], [5.0] * 9, [0.0] * 6, [1.0, 1.005] * 6])
def test_few_or_equal_figures_have_one_level(values: list[float]) -> None:
    assert changes(np.array(values)) == ()


def test_figures_without_noise_change_at_every_difference() -> None:
    assert exact_changes(np.array([10.0, 10.05, 12.0, 12.0, 11.0])) == (2, 4)


# --- the history


def entry(
    day: int,
    *,
    mfu: float | None = None,
    step: float = 5e12,
    config: dict[str, Any] | None = None,
    commit: str | None = None,
    kind: str = "recorded",
    model: str | None = "qwen3-30b",
    hbm: int | None = None,
    said: bool = True,
    flags: Any = (),
) -> Entry:
    """A run of a day."""
    at = datetime(2026, 1, 1, 8, tzinfo=UTC) + timedelta(days=day)
    name = f"{day:03}"
    return Entry(
        Run(f"/runs/{name}.parquet", name, at, (Path(f"/runs/{name}.parquet"),), 1, 1),
        RunFacts(
            kind=kind, model=model, chip="TPU v6e", commit=commit, started=at if said else None, config=config or {},
            versions={"jax": "0.7"}, mesh={"fsdp": 4},
        ),
        Figures(kind, "TPU v6e", 4, 1, "step", 10, step, 0.9, mfu, None, hbm, None, {"xla_flags": flags}),
    )  # fmt: skip


def nightly() -> list[Entry]:
    """24 runs; from the 13th on another remat policy, from the 11th on another commit."""
    random = np.random.default_rng(0)
    return [
        entry(
            day,
            mfu=(0.2 if day < 12 else 0.24) * (1 + 0.005 * random.standard_normal()),
            config={"remat_policy": "full" if day < 12 else "minimal", "steps": 10},
            commit=("a" if day < 10 else "b") * 40,
        )
        for day in range(24)
    ]


def test_the_run_that_moved_the_figure_is_named_with_what_it_changed() -> None:
    found = told("runs", nightly(), None)
    (series,) = found.series
    (change,) = series.changes
    assert (found.metric, change.run, change.better) == ("mfu", "012", True)
    assert change.ratio == pytest.approx(1.2, abs=0.005)
    assert [(each.key, each.before, each.after) for each in change.changed] == [("remat_policy", "full", "minimal")]
    assert (change.runs_before, change.runs_after) == (12, 12)
    assert [run.level for run in series.runs] == [0] * 12 + [1] * 12
    assert [(run.name, run.changed[0].key) for run in series.runs if run.changed] == [
        ("010", "git_commit"),
        ("012", "remat_policy"),
    ]
    assert "last with 012: +19.8 %, better, with remat_policy" in series.verdict


def test_less_is_better_of_times_and_memory() -> None:
    runs = [entry(day, step=1e12 * (1 if day < 5 else 1.2), hbm=2**30 * (1 + day // 5)) for day in range(10)]
    for metric, place in (("step_time", "005"), ("hbm_peak", "005")):
        (change,) = told("runs", runs, metric).series[0].changes
        assert (change.run, change.better) == (place, False)


def test_runs_of_another_kind_model_or_chip_are_series_of_their_own() -> None:
    runs = [*nightly(), *(entry(day, mfu=0.9, kind="compiled") for day in range(6)), entry(3, mfu=0.1, model=None)]
    found = told("runs", runs, "mfu")
    assert [(each.kind, each.model, len(each.runs)) for each in found.series] == [
        ("recorded", "qwen3-30b", 24), ("recorded", None, 1), ("compiled", "qwen3-30b", 6),
    ]  # fmt: skip
    assert [len(each.changes) for each in found.series] == [1, 0, 0]


def test_runs_without_the_figure_keep_their_place_and_what_they_changed() -> None:
    runs = [entry(day, mfu=0.2 if day < 4 else 0.3, config={"a": day // 4, "b": day // 5}) for day in range(9)]
    runs[4] = entry(4, mfu=None, config={"a": 1, "b": 0})
    found = told("runs", runs, "mfu")
    (series,) = found.series
    assert series.runs[4].value is None
    assert series.runs[4].level is None
    (change,) = series.changes
    assert (change.run, [each.key for each in change.changed]) == ("005", ["a", "b"])
    assert [note.code for note in found.warnings] == ["figure_unknown"]


def test_flags_are_told_one_by_one_and_absent_ones_as_absent() -> None:
    runs = [entry(0, flags=["--xla_a=1", "--xla_b"]), entry(1, flags=["--xla_a=2"])]
    changed = told("runs", runs, "step_time").series[0].runs[1].changed
    assert [(each.key, each.before, each.after, each.source) for each in changed] == [
        ("--xla_a", "1", "2", "flags"),
        ("--xla_b", "true", None, "flags"),
    ]


def test_a_drift_within_a_level_is_told_only_beyond_noise() -> None:
    random = np.random.default_rng(3)
    noise = 1 + 0.002 * random.standard_normal(30)
    slow = told("runs", [entry(day, step=1e12 * (1 + 0.0003 * day) * noise[day]) for day in range(30)], "step_time")
    assert slow.series[0].drift == pytest.approx(0.0003, rel=0.5)
    assert "within the last level it gets worse by 0.0" in slow.series[0].verdict
    flat = told("runs", [entry(day, step=1e12 * noise[day]) for day in range(30)], "step_time")
    assert flat.series[0].drift is None


# --- what people and programs read


def test_the_json_follows_its_schema() -> None:
    schema = json.loads((DOCS / "schema" / "history.schema.json").read_text("utf-8"))
    jsonschema.Draft202012Validator.check_schema(schema)
    found = told("/home/ada/runs", nightly(), None, [SkippedRun("x", "/home/ada/runs/x", "is cut")])
    empty = told("runs", [entry(0, said=False)], "mfu")
    for each in (found, empty, redacted(found)):
        data = json.loads(render_history(each, "json", Style()))
        jsonschema.validate(data, closed(schema), cls=jsonschema.Draft202012Validator)
    assert set(schema["properties"]) == {"schema_version", *type(found).__dataclass_fields__}


def closed(node: Any) -> Any:
    """The schema with no property allowed that it does not describe."""
    if isinstance(node, dict):
        node = {key: closed(value) for key, value in node.items()}
        return {**node, "additionalProperties": False} if node.get("properties") else node
    return [closed(item) for item in node] if isinstance(node, list) else node


def test_the_csv_has_a_row_per_run() -> None:
    rows = list(csv.DictReader(io.StringIO(render_history(told("runs", nightly(), None), "csv", Style()).decode())))
    assert [row["name"] for row in rows] == [f"{day:03}" for day in range(24)]
    assert (rows[12]["changed"], rows[12]["level"]) == ("remat_policy", "1")


def test_estimates_are_marked_and_memory_is_none() -> None:
    runs = [entry(day, kind="compiled", hbm=2**30) for day in range(2)]
    assert "(est.)" in text(told("runs", runs, "step_time"))
    assert "(est.)" not in text(told("runs", runs, "hbm_peak"))


def test_text_of_a_run_stays_text_and_secrets_are_hidden() -> None:
    evil = "<script>|`x`\x1b[31m\n"
    runs = [entry(day, step=float(1 + day // 4), config={evil: evil * (1 + day // 4)}, model=evil) for day in range(8)]
    found = told("runs", runs, "step_time")
    assert "<script>" not in render_history(found, "markdown", Style()).decode().replace("`<script>", "")
    assert "\x1b" not in text(found)
    runs = [entry(day, step=float(1 + day // 4), config={"base_dir": f"secret{day // 4}/x"}) for day in range(8)]
    assert "secret1" in text(told("runs", runs, "step_time"))
    assert "secret" not in text(redacted(told("runs", runs, "step_time")))


def text(found: History) -> str:
    return render_history(found, "text", Style(), 0).decode()


def test_the_example_of_the_page_is_what_the_command_prints(unprinted: Any) -> None:
    stamped = [replace(each, run=replace(each.run, name=f"2026_01_{day + 1:02}")) for day, each in enumerate(nightly())]
    printed = render_history(told("runs", stamped, None), "text", Style(), 2).decode()
    assert unprinted(DOCS / "commands" / "history.md", printed) == []


@pytest.mark.parametrize(
    ("values", "line"),
    [([], ""), ([1.0], "▄"), ([1.0, 2.0], "▁█"), ([3.0, 3.0], "▄▄"), ([1.0, 1.0, 3.0, 3.0, 2.0], "▁▁███"[:4] + "▅")],
)
def test_a_sparkline_goes_from_the_least_to_the_most(values: list[float], line: str) -> None:
    assert sparkline(values)[0] == line
    assert len(sparkline([1.0, 2.0] * 500, [True] * 1000)[0]) == 90
