"""One place decides how a number looks."""

from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from profiler.report import units

MINUS = units.MINUS


@pytest.mark.parametrize(
    ("picoseconds", "text"),
    [
        (None, "n/a"),
        (math.nan, "n/a"),
        (0.0, "0"),
        (850.0, "850.0 ps"),
        (390_200_000.0, "390.2 µs"),
        (67_209_000_000.0, "67.21 ms"),
        (999_960_000_000.0, "1.000 s"),
        (5_292_000_000_000.0, "5.292 s"),
    ],
)
def test_a_time_gets_the_unit_that_reads_best(picoseconds: float | None, text: str) -> None:
    assert units.duration(picoseconds) == text


def test_a_column_shares_the_unit_of_its_largest_value() -> None:
    scale = units.time_scale([67.2e9, 0.3e6, None])
    assert [scale.unit, scale.show(67.2e9), scale.show(0.3e6), scale.show(None)] == ["ms", "67.20", "0.00", "n/a"]


def test_a_delta_has_its_sign_and_zero_has_none() -> None:
    scale = units.time_scale([3e9])
    assert scale.delta(3e9) == "+3.000"
    assert scale.delta(-3e9) == f"{MINUS}3.000"
    assert scale.delta(-1.0) == "0.000"
    assert units.points(-0.001) == "0.00"
    assert units.change(0.949) == f"{MINUS}5.1 %"


@pytest.mark.parametrize(
    ("value", "text"),
    [(48.0, "48"), (0.5, "0.5"), (3.7, "3.7"), (0.025, "0.025"), (1153.5, "1154"), (1e7, "10000000"), (None, "n/a")],
)
def test_a_count_shows_no_more_digits_than_it_has(value: float | None, text: str) -> None:
    assert units.number(value) == text


def test_what_no_float_holds_is_not_known_and_what_is_absurd_is_short() -> None:
    assert units.number(10**400) == units.duration(10**400) == units.percent(float("inf")) == "n/a"
    assert units.number(1e300) == "1.000e+300"
    assert units.grouped(24778.4) == "24,778"


def test_sizes_and_flops_have_units_of_their_own() -> None:
    assert units.size(96 * units.GIB) == "96.00 GiB"
    assert units.flops(1219.56e12) == "1.220 PFLOP"
    assert units.size(None) == units.flops(None) == "n/a"


def test_a_long_name_keeps_both_ends() -> None:
    assert units.shorten("quantized_matmul_kernel_512_6400_1024.95", 20) == "quantized_…0_1024.95"


@given(st.text(), st.integers(1, 60))
def test_a_shortened_name_fits_and_cannot_act(text: str, width: int) -> None:
    short = units.shorten(text, width)
    assert len(short) <= width
    assert short.isprintable()


@given(st.text(max_size=200))
def test_clean_text_is_one_printable_line(text: str) -> None:
    assert units.clean(text).isprintable()


def test_controls_and_direction_marks_become_visible() -> None:
    assert units.clean("a\x1b[31m\n\u202eb\u200f\ud800") == r"a\x1b[31m\n\u202eb\u200f\ud800"


SHOWS = (
    units.duration, units.size, units.flops, units.percent, units.points, units.change, units.number, units.grouped,
    lambda value: units.fixed(value, 2), lambda value: units.time_scale([value]).delta(value),
)  # fmt: skip


@given(st.floats(allow_nan=True, allow_infinity=True) | st.integers() | st.integers(0, 400).map(lambda n: 10**n))
def test_no_number_breaks_the_formats(value: float) -> None:
    for show in SHOWS:
        text = show(value)
        assert len(text) < 30
        assert text.isprintable()
        assert "nan" not in text
        assert "inf" not in text
