"""HBM of two recordings beside each other: sums are exact, and nothing that is unknown is a figure."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import polars as pl
import pytest
from hypothesis import given
from hypothesis import strategies as st

from profiler import api, results
from profiler.report import memory_pair, units
from sample_profiles import path


@pytest.fixture(scope="module")
def pair() -> Any:
    sides = [api.measured(str(path(f"qwen3-30b/{side}.xplane.pb"))) for side in ("baseline", "optimized")]
    return api.diff(sides[0], sides[1]), api.memory(sides[0]), api.memory(sides[1])


def test_the_changes_sum_to_the_change_of_the_peak(pair: Any) -> None:
    diff, base, opt = pair
    frame = memory_pair.changes_frame(diff.memory)
    assert frame.height == len(diff.memory.tensors)
    assert frame["delta_bytes"].sum() == opt.memory.static_peak_bytes - base.memory.static_peak_bytes
    sizes = frame["delta_bytes"].abs().to_list()
    assert sizes == sorted(sizes, reverse=True)


def test_the_tensors_sum_to_the_peak(pair: Any) -> None:
    for report in pair[1:]:
        frame = memory_pair.tensors_frame(report)
        assert frame.height == len(report.tensors)
        assert frame["bytes"].sum() == report.memory.static_peak_bytes


def test_the_verdict_names_the_first_peak_that_both_sides_have(pair: Any) -> None:
    _, base, opt = pair
    text = memory_pair.verdict(base, opt)
    peaks = [units.size(report.memory.static_peak_bytes) for report in (base, opt)]
    assert text.startswith(f"HBM at the static peak: {peaks[0]} → {peaks[1]} (+28.06 GiB).")
    room = [units.size(report.static_headroom_bytes) for report in (base, opt)]
    assert f"{room[0]} → {room[1]}" in text
    window = results.Memory(window_peak_bytes=1 << 30)
    only = [replace(report, memory=window, window_headroom_bytes=None) for report in (base, opt)]
    assert memory_pair.verdict(*only) == "HBM at the window's peak: 1.000 GiB → 1.000 GiB (no change)."
    assert memory_pair.verdict(base, only[1]) == "No peak is known of both sides."


def test_facts_are_those_of_either_side(pair: Any) -> None:
    _, base, opt = pair
    found = {title: (left, right) for title, left, right in memory_pair.facts(base, opt)}
    assert "file" not in found
    for side, report in enumerate((base, opt)):
        assert units.size(report.memory.static_peak_bytes) in found["static peak"][side]
        assert found["lifetime peak"][side] == units.UNKNOWN


def test_nothing_at_the_peak_is_an_empty_table(pair: Any) -> None:
    diff, base, _ = pair
    assert memory_pair.changes_frame(replace(diff.memory, tensors=())).is_empty()
    assert memory_pair.tensors_frame(replace(base, tensors=())).is_empty()


def test_hostile_names_are_made_plain(pair: Any) -> None:
    _, base, _ = pair
    row = replace(base.tensors[0], tensor="a\u202eb\nc\x1b[2J")
    (found,) = memory_pair.tensors_frame(replace(base, tensors=(row,)))["tensor"]
    assert found.isprintable()


WORDS = st.text(max_size=12)


@given(st.lists(st.tuples(WORDS, WORDS), max_size=8), st.text(max_size=6))
def test_a_search_finds_the_rows_that_have_every_word(rows: list[tuple[str, str]], text: str) -> None:
    frame = pl.DataFrame(rows, schema={"a": pl.String, "b": pl.String}, orient="row").with_row_index("n")
    found = set(memory_pair.search(frame, text)["n"])
    for number, row in enumerate(rows):
        joined = frame.select((pl.col("a") + " " + pl.col("b")).str.to_lowercase())[number, 0]
        words = [pl.select(pl.lit(word).str.to_lowercase()).item() for word in text.split()]
        assert (number in found) == all(word in joined for word in words), row


def test_a_search_looks_past_unknown_texts_and_is_literal() -> None:
    frame = pl.DataFrame(
        {"a": [None, "bf16[8]", "x.*"], "b": ["Saved", None, None]}, schema={"a": pl.String, "b": pl.String}
    )
    assert memory_pair.search(frame, "saved").height == 1
    assert memory_pair.search(frame, "[8]").height == 1
    assert memory_pair.search(frame, ".*").height == 1
    assert memory_pair.search(frame, "  ").height == 3
