"""Thresholds as people write them: what is read, and what is refused with the way out."""

from __future__ import annotations

import string
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from profiler.errors import UnreadableError, UsageError
from profiler.gate import Rule, collect, parse
from profiler.gate.metrics import METRICS

SIZES = st.floats(-1e18, 1e18, allow_nan=False).map(lambda value: value or 0.0)
RULES = st.one_of(
    st.builds(Rule, st.just(metric), st.sampled_from("<>"), SIZES, st.sampled_from(METRICS[metric].units))
    for metric in sorted(METRICS)
)
SPACE = st.text(" \t", max_size=3)


@given(RULES)
def test_what_is_written_is_read_again(rule: Rule) -> None:
    again = parse(str(rule))
    assert (again.metric, again.operator, again.threshold) == (rule.metric, rule.operator, rule.threshold)
    assert again.unit == rule.unit or (not rule.threshold and not rule.unit)


@given(RULES, SPACE, SPACE, SPACE, SPACE)
def test_spaces_dashes_and_letter_case_do_not_matter(rule: Rule, a: str, b: str, c: str, d: str) -> None:
    text = str(rule)
    name, rest = text[: len(rule.metric)], text[len(rule.metric) + 1 :]
    written = f"{a}{name.upper().replace('_', '-')}{b}{rule.operator}{c}{rest}{d}"
    assert parse(written) == parse(text)


@given(st.text(alphabet=st.sampled_from(string.printable + "µ−≤\u202e"), max_size=40) | st.text(max_size=300))
def test_any_text_is_read_or_refused_in_one_line(text: str) -> None:
    try:
        rule = parse(text)
    except UsageError as error:
        assert error.exit_code == 2
    else:
        assert parse(str(rule)) == rule


@given(RULES, st.floats(-1e6, 1e6))
def test_a_threshold_splits_the_numbers(rule: Rule, value: float) -> None:
    other = Rule(rule.metric, ">" if rule.operator == "<" else "<", rule.threshold, rule.unit)
    assert [rule.holds(value), other.holds(value)].count(True) == (value != rule.threshold)


@pytest.mark.parametrize(
    ("text", "rule"),
    [
        ("mfu<-1%", Rule("mfu", "<", -1.0, "%")),
        ("mfu<-0.5pt", Rule("mfu", "<", -0.5, "pt")),
        ("step_time > +2 %", Rule("step_time", ">", 2.0, "%")),
        ("hbm_peak>+1GiB", Rule("hbm_peak", ">", 1.0, "GiB")),
        ("hbm_peak>+512mib", Rule("hbm_peak", ">", 512.0, "MiB")),
        ("remat>0", Rule("remat", ">", 0.0, "")),
        ("remat>+5calls", Rule("remat", ">", 5.0, "")),
        ("remat>+0ms", Rule("remat", ">", 0.0, "ms")),
        ("idle>+100µs", Rule("idle", ">", 100.0, "us")),
        ("idle>0", Rule("idle", ">", 0.0, "ms")),
        ("mfu<−1%", Rule("mfu", "<", -1.0, "%")),
        ("loss>+1e-1%", Rule("loss", ">", 0.1, "%")),
        ("throughput<-.5%", Rule("throughput", "<", -0.5, "%")),
        ("mfu<-0%", Rule("mfu", "<", 0.0, "%")),
    ],
)
def test_thresholds_are_read(text: str, rule: Rule) -> None:
    assert parse(text) == rule


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("mfx<-1%", "no metric 'mfx' (there are mfu, hfu, throughput, step_time, "),
        ("mfu<-1GiB", "no unit 'GiB' (mfu has pt, %)"),
        ("step_time>+2", "the number needs a unit (step_time has %, ps, ns, us, ms, s)"),
        ("mfu<40%", "a threshold is a change and needs a sign (+40 or -40)"),
        ("mfu<=-1%", "METRIC, < or >, a signed number and a unit"),
        ("mfu<-1%,hfu<-1%", "is no threshold"),
        ("mfu", "is no threshold"),
        ("", "is no threshold"),
        ("mfu<-1e300%", "the number is more than 1e+18"),
        ("m" * 10_000, "is no threshold"),
    ],
)
def test_a_refusal_says_what_would_do(text: str, message: str) -> None:
    with pytest.raises(UsageError) as error:
        parse(text)
    assert message in str(error.value)
    assert len(str(error.value)) < 400


def test_a_file_has_lists_of_thresholds(tmp_path: Path) -> None:
    file = tmp_path / "gate.yml"
    file.write_text("fail-on: [mfu<-1%, remat>0]\nwarn_on: idle>+1ms\n")
    failing, warning = collect(["mfu < -1 %", "hbm_peak>+5%"], [], file)
    assert [str(rule) for rule in failing] == ["mfu<-1%", "remat>0", "hbm_peak>+5%"]
    assert [str(rule) for rule in warning] == ["idle>+1ms"]


@pytest.mark.parametrize(
    ("content", "message"),
    [("fail: [mfu<-1%]", "there are fail-on and warn-on"), ("fail-on: {a: b}", "is no list of thresholds"),
     ("fail-on: [1]", "is no list of thresholds"), ("fail-on: []", "nothing to check")],
)  # fmt: skip
def test_a_file_that_says_something_else_is_a_usage_error(tmp_path: Path, content: str, message: str) -> None:
    file = tmp_path / "gate.yml"
    file.write_text(content)
    with pytest.raises(UsageError, match=message):
        collect([], [], file)


def test_a_file_that_is_not_there_is_unreadable(tmp_path: Path) -> None:
    with pytest.raises(UnreadableError):
        collect([], [], tmp_path / "none.yml")
