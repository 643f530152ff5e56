"""Trace health: the answers, warnings and shares are those of ``profiler health``."""

from __future__ import annotations

import html
import re
from pathlib import Path
from typing import Any

import pytest

from profiler import api
from profiler.report import health_diff
from sample_profiles import path

TINY = {side: f"samples/tiny-qwen3/{name}.xplane.pb.gz" for side, name in (("base", "baseline"), ("opt", "optimized"))}
CPU = {side: f"samples/cpu-remat/{name}.xplane.pb.gz" for side, name in (("base", "baseline"), ("opt", "optimized"))}


def markup(app: Any) -> str:
    return "\n".join(str(element.proto.body) for element in app.get("html"))


def shown(app: Any) -> str:
    """All HTML of the page, as text."""
    return html.unescape(re.sub(r"<[^>]+>", " ", markup(app)))


def found(pair: dict[str, str]) -> list[tuple[str, Any]]:
    names = (name.removeprefix("samples/") for name in pair.values())
    return [(title, api.health(str(path(name)))) for title, name in zip(("baseline", "optimized"), names, strict=True)]


def test_both_sides_answers_stand_beside_each_other_with_their_reasons(open_page: Any) -> None:
    app = open_page("health", **TINY)
    assert not app.exception
    text, sides = shown(app), found(TINY)
    assert health_diff.verdict(sides) in text
    for _, health in sides:
        for grade in health.grades:
            assert grade.question in text
            assert grade.reason in text
            assert grade.remedy is None or grade.remedy in text


def test_what_is_the_same_on_both_sides_stands_once(open_page: Any) -> None:
    body = markup(open_page("health", **TINY))
    assert 'colspan="2"' in body
    assert body.count("the run&#x27;s configuration is known") == 1


def test_warnings_stand_under_their_group_with_what_they_are_about(open_page: Any) -> None:
    text = shown(open_page("health", **CPU))
    assert text.index("Worth knowing") < text.index("the first step took")
    assert re.search(r"the first step took 13%[^!]*baseline", text)
    assert re.search(r"the first step took 22%[^!]*optimized", text)


def test_an_answer_does_not_rest_on_a_colour(open_page: Any) -> None:
    body = markup(open_page("health", **TINY))
    for mark, answer in (("✓", "yes"), ("!", "with care"), ("✗", "no")):
        assert f'<span aria-hidden="true">{mark}</span> {answer}</span>' in body


def test_one_recording_is_shown_once(open_page: Any) -> None:
    one = CPU["base"]
    app = open_page("health", base=one, opt=one)
    assert not app.exception
    assert "about its figures" in shown(app)
    assert '<th scope="col">optimized</th>' not in markup(app)


def test_compiled_sides_are_said_to_be_estimates(open_page: Any) -> None:
    app = open_page("health")  # without arguments, the compiled sample pair
    assert "Estimate." in shown(app)
    assert "times are estimates" in shown(app)


@pytest.mark.recordings
def test_a_file_that_cannot_be_read_is_one_clear_line(open_page: Any, recordings: Path) -> None:
    app = open_page(
        "health", paths=(str(recordings),), base=f"{recordings.name}/corrupt_utf8.xplane.pb", opt=CPU["opt"]
    )
    assert not app.exception
    assert "was rewritten as UTF-8 text" in shown(app)


@pytest.mark.recordings
def test_recordings_of_others_are_explained_too(open_page: Any, recordings: Path) -> None:
    pair = {
        "base": f"{recordings.name}/mi300x_conv_old.xplane.pb",
        "opt": f"{recordings.name}/mi300x_conv_new.xplane.pb",
    }
    app = open_page("health", paths=(str(recordings),), **pair)
    assert not app.exception
    text = shown(app)
    assert text.index("Lost or lacking") < text.index("ops were recorded on 1 of 8 devices;") < text.index("Assumed")
    assert re.search(r"sums over devices would mislead\s+comparison", text)
