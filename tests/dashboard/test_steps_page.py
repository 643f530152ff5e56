"""Steps and loss: every step of both sides, their devices, and whether both runs compute the same."""

from __future__ import annotations

import html
import json
import re
from pathlib import Path
from typing import Any

import pytest

from profiler import api
from profiler.report import diff_view, steps_view
from sample_profiles import path

TINY = {side: f"samples/tiny-qwen3/{name}.xplane.pb.gz" for side, name in (("base", "baseline"), ("opt", "optimized"))}
CPU = {side: f"samples/cpu-remat/{name}.xplane.pb.gz" for side, name in (("base", "baseline"), ("opt", "optimized"))}


def shown(app: Any) -> str:
    """All HTML of the page, as text."""
    body = "\n".join(str(element.proto.body) for element in app.get("html"))
    return html.unescape(re.sub(r"<[^>]+>", " ", body))


def figures(app: Any) -> list[dict[str, Any]]:
    return [json.loads(element.proto.spec) for element in app.get("plotly_chart")]


def compared(pair: dict[str, str]) -> Any:
    return api.diff(*(str(path(name.removeprefix("samples/"))) for name in pair.values()))


def test_the_words_and_the_noise_are_those_of_the_diff(open_page: Any) -> None:
    app = open_page("steps", **TINY)
    assert not app.exception
    diff = compared(TINY)
    assert steps_view.steps_text(diff)[0] in shown(app)
    assert diff_view.noise_text(diff).capitalize() in shown(app)


def test_every_steady_step_is_drawn_and_the_sides_differ_in_more_than_colour(open_page: Any) -> None:
    diff = compared(CPU)
    lines = [trace for trace in figures(open_page("steps", **CPU))[0]["data"] if trace["type"] == "scatter"]
    assert [len(trace["x"]) for trace in lines] == [diff.steps.baseline_count, diff.steps.optimized_count]
    assert [trace["marker"]["symbol"] for trace in lines] == ["circle-open", "circle"]
    assert [trace["line"]["dash"] for trace in lines] == ["dash", "solid"]


def test_a_slow_first_step_is_said_beside_the_steps(open_page: Any) -> None:
    assert re.search(
        r"the first step took 13%.*baseline.*the first step took 22%", shown(open_page("steps", **CPU)), re.S
    )


def test_the_loss_of_both_runs_is_drawn_with_its_verdict(open_page: Any) -> None:
    app = open_page("steps", **TINY)
    assert re.search(r"Unchanged\s*:\s+within 1e-07, relative, over 6 steps", shown(app))
    titles = [figure["layout"]["yaxis"]["title"].get("text") for figure in figures(app)]
    assert "loss (nats)" in titles
    assert app.multiselect(key="steps_metrics").value == ["perplexity", "cross_entropy", "grad_norm", "learning_rate"]


def test_metrics_are_chosen_and_stand_in_the_address(open_page: Any) -> None:
    app = open_page("steps", **TINY)
    before = len(figures(app))
    app.multiselect(key="steps_metrics").set_value(["z_loss"]).run()
    assert not app.exception
    assert len(figures(app)) == before - 3


def test_without_metrics_the_page_says_why_there_is_no_loss(open_page: Any) -> None:
    assert "Neither recording carries metrics of its steps" in shown(open_page("steps", **CPU))


def test_compiled_sides_have_no_steps_and_no_loss(open_page: Any) -> None:
    app = open_page("steps")  # without arguments, the compiled sample pair
    text = shown(app)
    assert not app.exception
    assert not figures(app)
    assert "Both sides are compiled: one step is laid out" in text
    assert "nothing was trained, so there is no loss" in text
    assert "both estimated" in text


@pytest.mark.recordings
def test_devices_stand_beside_each_other_where_there_are_several(open_page: Any, recordings: Path) -> None:
    pair = {
        "base": f"{recordings.name}/mi300x_conv_old.xplane.pb",
        "opt": f"{recordings.name}/mi300x_conv_new.xplane.pb",
    }
    app = open_page("steps", paths=(str(recordings),), **pair)
    assert not app.exception
    spread = figures(app)[1]
    assert [len(trace["x"]) for trace in spread["data"]] == [1, 8]
    assert spread["layout"]["yaxis"]["ticktext"][0] == "GPU:7"
    assert "Mean device time of a step" in shown(app)  # the host waits most of the time


@pytest.mark.recordings
def test_a_recording_without_steps_says_so(open_page: Any, recordings: Path) -> None:
    one = f"{recordings.name}/tpu_qwen3_serving_bf16.xplane.pb"
    app = open_page("steps", paths=(str(recordings),), base=one, opt=one)
    assert not app.exception
    assert "No step repeats on either side" in shown(app)
