"""The timeline's page: what its canvas is sent is what the profile says, and what the browser and the URL ask for."""

from __future__ import annotations

import gzip
import json
from typing import Any

import pytest

pytest.importorskip("streamlit", reason="the dashboard extra is not installed")

from dashboard.components import timeline as sheet
from dashboard.views import timeline as view
from profiler import api
from profiler.analysis import timeline
from profiler.analysis.families import FAMILIES
from profiler.report import units
from sample_profiles import path

CPU = {"base": "samples/cpu-remat/baseline.xplane.pb.gz", "opt": "samples/cpu-remat/optimized.xplane.pb.gz"}
QWEN = {"base": "samples/qwen3-30b/baseline.xplane.pb", "opt": "samples/qwen3-30b/optimized.xplane.pb"}


def sent(app: Any) -> dict[str, Any]:
    """What the canvas gets."""
    assert not app.exception
    (element,) = app.get("bidi_component")
    return dict(json.loads(element.proto.json))


def shown(app: Any) -> str:
    return "\n".join(str(element.proto.body) for element in app.get("html"))


def asked(app: Any, **parameters: str) -> Any:
    """The page again, with other parameters that no widget has (the first page has forgotten them)."""
    for name, value in parameters.items():
        app.query_params[name] = value
    return app.run()


def drawn(name: str, step: int | None = None) -> sheet.Drawn:
    """One side as the page draws it."""
    measured = api.measured(str(path(name)))
    (device,) = timeline.devices(measured)
    return sheet.Drawn(
        "baseline", measured, device, device.default if step is None else step, timeline.rows(measured.trace, 0)
    )


def busy(columns: dict[str, list[int]]) -> int:
    return sum(columns["busy"])


def test_the_canvas_gets_the_typical_step_of_both_sides(open_page: Any) -> None:
    data = sent(open_page("timeline", **CPU))
    longest = 0
    for side, overview, name in zip(data["sides"], data["overview"]["sides"], CPU.values(), strict=True):
        expected = drawn(name.removeprefix("samples/"))
        start, end = expected.device.steps[expected.device.default].tolist()
        longest = max(longest, end - start)
        assert side["length"] == end - start
        assert not side["estimated"]
        low, high = data["home"]
        seen = sorted(set(timeline.view(expected.rows, start + low, start + high, 100).row.tolist()))
        assert [tuple(row) for row in side["rows"]] == [
            (expected.rows.rows[row].name, expected.rows.rows[row].depth) for row in seen
        ]
        spans = expected.rows.start_ps, expected.rows.start_ps + expected.rows.duration_ps
        reaches = (spans[0] < start + high) & (spans[1] > start + low)
        assert busy(overview) == expected.rows.duration_ps[reaches].sum()
        known = {op[0] for op in side["ops"]}
        assert {op for op in overview["op"] if op >= 0} <= known
    assert data["home"][0] < 0 < longest < data["home"][1]
    assert data["window"] == data["home"]


def test_times_of_compiled_profiles_are_called_estimates(open_page: Any) -> None:
    app = open_page("timeline", **QWEN)
    data = sent(app)
    assert [side["title"] for side in data["sides"]] == ["baseline (estimated)", "optimized (estimated)"]
    assert "an estimate" in data["alt"]
    assert "every time of them is an estimate" in shown(app)
    assert "takes" in shown(app)
    assert "(est.)" in shown(app)


def test_a_window_of_the_url_is_sampled_finer(open_page: Any) -> None:
    data = sent(asked(open_page("timeline", **QWEN), window="200000000000 240000000000"))
    assert data["window"] == [200_000_000_000, 240_000_000_000]
    assert data["detail"]["range"] == [160_000_000_000, 280_000_000_000]
    for side, (coarse, fine) in enumerate(zip(data["overview"]["sides"], data["detail"]["sides"], strict=True)):
        inside = [at for at, start in enumerate(coarse["start"]) if 160e9 <= start < 280e9]
        assert len(fine["row"]) > 2 * len(inside), side
        assert max(fine["count"]) < max(coarse["count"])


def test_a_window_that_makes_no_sense_is_the_whole_step(open_page: Any) -> None:
    app = open_page("timeline", **CPU)
    for window in ("5", "nonsense", "9 1", "1 2 3", "-1 -1", f"{10**17} {10**18 - 1}", "0 10"):
        data = sent(asked(app, window=window))
        assert data["window"] == data["home"], window


def test_what_the_browser_asks_for_is_answered_and_kept_in_the_url(open_page: Any) -> None:
    app = open_page("timeline", **CPU)
    key = sent(app)["key"]
    window = {"of": key, "start": 10**10, "end": 2 * 10**10, "pixels": 500, "whole": True}
    app.session_state["timeline"] = {"window": window}
    data = sent(app.run())
    assert data["window"] == [10**10, 2 * 10**10]
    assert data["overview"] is None
    assert app.query_params["window"] in ("10000000000 20000000000", ["10000000000 20000000000"])
    app.number_input(key="base_step").set_value(0)
    other = sent(app.run())  # a window is of what was shown before
    assert other["key"] != key
    assert other["window"] == other["home"]
    assert "window" not in app.query_params


WINDOWS: list[dict[str, Any]] = [
    {}, {"start": 0}, {"start": "0", "end": []}, {"start": 0, "end": 10**30, "pixels": 10**9},
    {"start": -(10**30), "end": 10**30, "pixels": -5}, {"start": 5.5, "end": 10**10 + 0.5, "pixels": "wide"},
    {"start": True, "end": False},
]  # fmt: skip
SPANS: list[dict[str, Any]] = [
    {"side": 7, "op": 1, "start": 0}, {"side": 0, "op": 10**20, "start": 0}, {"op": -1}, {"start": None}
]  # fmt: skip


def test_nothing_that_a_browser_says_breaks_the_page(open_page: Any) -> None:
    app = open_page("timeline", **CPU)
    key = sent(app)["key"]
    for window, span in zip(WINDOWS, [*SPANS, *SPANS], strict=False):
        app.session_state["timeline"] = {"window": {"of": key, **window}, "span": {"of": key, **span}}
        data = sent(app.run())
        low, high = data["limits"]
        assert low <= data["window"][0] < data["window"][1] <= high
        assert data["span"] is None


def test_a_chosen_span_says_what_is_known_of_it_and_leads_to_its_op(open_page: Any) -> None:
    side = drawn("cpu-remat/baseline.xplane.pb.gz")
    at = int(((side.rows.start_ps >= side.span[0]) & (side.rows.duration_ps > 10**8)).argmax())
    (op,) = timeline.op_facts(side.measured.trace, [side.rows.op[at]])
    start = int(side.rows.start_ps[at]) - side.span[0]
    app = asked(open_page("timeline", **CPU), span=f"0 {op.op_id} {start}")
    data = sent(app)
    assert data["span"] == {"side": 0, "op": op.op_id, "start": start, "duration": int(side.rows.duration_ps[at])}
    for text in (op.op, op.family, units.duration(int(side.rows.duration_ps[at]))):
        assert text in shown(app)
    (link,) = app.get("page_link")
    assert "search=" in link.proto.query_string
    assert f"search={op.op}" in link.proto.query_string
    assert "base=" in link.proto.query_string


def test_a_span_that_is_not_there_is_not_chosen(open_page: Any) -> None:
    app = open_page("timeline", **CPU)
    for span in ("0", "0 1", "3 1 1", "0 999999 1", "0 1 1", "x y z"):
        assert sent(asked(app, span=span))["span"] is None
        assert "span" not in app.query_params


def test_the_table_has_the_longest_spans_in_view(open_page: Any) -> None:
    text = shown(open_page("timeline", **CPU))
    for name in CPU.values():
        side = drawn(name.removeprefix("samples/"))
        spans = side.longest((0, side.length_ps), 3)
        assert all(span.start_ps < side.span[1] for span in spans)
        for span in spans:
            assert units.duration(span.busy_ps) in text
            assert units.duration(span.start_ps - side.span[0]) in text


def test_recordings_without_a_timeline_are_an_empty_page(open_page: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(timeline, "devices", lambda measured: ())
    app = open_page("timeline", **CPU)
    assert not app.exception
    assert app.get("bidi_component") == []
    assert "Neither recording has a timeline." in shown(app)


def test_a_side_without_ops_says_so_beside_the_other(open_page: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    found = timeline.devices
    monkeypatch.setattr(
        timeline, "devices", lambda measured: found(measured) if measured.trace.label == "baseline" else ()
    )
    data = sent(open_page("timeline", **CPU))
    assert [bool(side["rows"]) for side in data["sides"]] == [True, False]
    assert data["sides"][1]["none"] == "no device of this recording ran an op"
    assert data["detail"]["sides"][1]["row"] == []


def test_every_family_has_a_look_of_its_own() -> None:
    assert set(sheet.LOOKS) == set(FAMILIES)
    assert len({look[:2] for look in sheet.LOOKS.values()}) == len(FAMILIES)


@pytest.mark.parametrize(
    ("step", "steps"), [(None, ["step 3", "step 4"]), ("all", [f"step {n}" for n in range(7)] * 2)]
)
def test_what_is_chosen_can_be_had_for_perfetto(step: Any, steps: list[str]) -> None:
    sides = [drawn("cpu-remat/baseline.xplane.pb.gz", 3), drawn("cpu-remat/optimized.xplane.pb.gz", 4)]
    events = json.loads(gzip.decompress(view.packed(sides, step, True)))["traceEvents"]
    assert [each["name"] for each in events if each.get("cat") == "step"] == steps
