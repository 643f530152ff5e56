"""The health of two recordings beside each other."""

from __future__ import annotations

from dataclasses import replace

import pytest

import sample_profiles
from profiler import api
from profiler.report import health_diff
from profiler.results_health import Health, Problem

LOST = Problem("lost", "truncated", "the file ends inside a message", "copy it again")


@pytest.fixture(scope="module")
def sides() -> list[tuple[str, Health]]:
    pair = (("baseline", "tiny-qwen3"), ("optimized", "cpu-remat"))
    return [(title, api.health(str(sample_profiles.path(f"{name}/baseline.xplane.pb.gz")))) for title, name in pair]


def test_the_verdict_counts_the_plain_answers_of_each_side(sides: list[tuple[str, Health]]) -> None:
    assert health_diff.verdict(sides) == (
        "A plain yes to 4 of 7 questions about the baseline's figures, 1 of 6 about the optimized side's"
    )
    same = [("baseline", sides[0][1]), ("optimized", sides[0][1])]
    assert health_diff.verdict(same) == "A plain yes to 4 of 7 questions about the figures of both sides"
    assert health_diff.verdict(sides[:1]) == "A plain yes to 4 of 7 questions about its figures"


def test_every_row_has_a_cell_for_each_side(sides: list[tuple[str, Health]]) -> None:
    for shown in (sides, sides[:1]):
        table = health_diff.coverage_table(shown)
        assert {len(row) for row in table.rows} == {len(table.columns)}
        assert {len(row) for row in health_diff.facts_rows(shown)} == {1 + len(shown)}
        assert {len(row) for row in health_diff.assumption_rows(shown)} == {1 + len(shown)}
        assert {len(row) for row in health_diff.presence_rows(shown)} == {2 + len(shown)}


def test_one_recording_has_no_bars_of_two(sides: list[tuple[str, Health]]) -> None:
    assert any(column.bar for column in health_diff.coverage_table(sides).columns)
    assert not any(column.bar for column in health_diff.coverage_table(sides[:1]).columns)


def test_what_only_one_side_can_have_is_shown_and_what_neither_has_is_not(sides: list[tuple[str, Health]]) -> None:
    names = {row[0].text for row in health_diff.coverage_table(sides).rows}
    assert "groups" in names
    assert "groups" not in {row[0].text for row in health_diff.coverage_table(sides[1:]).rows}


def test_an_unknown_figure_says_that_nobody_says_it(sides: list[tuple[str, Health]]) -> None:
    rows = {name: cells for name, *cells in health_diff.assumption_rows(sides)}
    assert rows["tokens per step"][0].startswith("2,048, from the run info")
    assert rows["tokens per step"][1] == "n/a: nobody says it"


def test_a_warning_of_both_sides_stands_once_under_its_group() -> None:
    other = replace(LOST, group="assumed", code="x", message="y", remedy=None)
    found = health_diff.warned([("baseline", [LOST, other]), ("optimized", [LOST])])
    assert [title for title, _ in found] == ["Lost or lacking", "Assumed"]
    (row,) = found[0][1]
    assert (row.about, row.remedy) == ("baseline and optimized", "copy it again")
    assert health_diff.warned([("baseline", [])]) == ()


def test_every_device_has_a_row(sides: list[tuple[str, Health]]) -> None:
    for _, health in sides:
        assert len(health_diff.devices_table(health).rows) == len(health.devices)
