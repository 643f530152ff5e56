"""What a terminal shows: everything that matters, in 100 columns, with nothing that acts."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import polars as pl
import pytest
from rich.cells import cell_len

from profiler import results
from profiler.api import OpTable
from profiler.report import render_diff, render_ops, render_peaks, render_summary
from profiler.report.diff_view import knobs_table, noise_text
from profiler.report.model import Document, Facts, label
from profiler.report.output import Style
from profiler.report.side_tables import kernels_table
from profiler.report.text import render_text


def lines_of(text: str) -> list[str]:
    return text.splitlines()


@pytest.mark.parametrize("width", [60, 80, 100])
def test_every_line_fits_the_width(make: Any, render_text_of: Callable[..., str], width: int) -> None:
    style = Style(width=width)
    for diff in (make.training(), make.serving(), make.evil()):
        for result in (diff, diff.baseline):
            too_long = [line for line in lines_of(render_text_of(result, style)) if cell_len(line) > max(width, 100)]
            assert too_long == []
    at_full_width = render_text_of(make.evil())
    assert max(map(cell_len, lines_of(at_full_width))) <= 100


def test_op_names_keep_the_numbers_that_tell_them_apart() -> None:
    found = [f"all-gather.{number}.cloned.1.call-done" for number in (285, 301)] + ["splash_mha_dkv_no_residuals.17"]
    ops = pl.DataFrame(
        {"op": found, "family": ["splash backward (fused)"] * 3, "phase": ["student backward"] * 3}
        | {"occurrences": [48] * 3, "self_time_ps": [3.8e11, 3.7e11, 1e9], "total_time_ps": [3.8e11, 3.7e11, 1e9]}
        | {"flops": [5e12] * 3, "bytes_accessed": [1e9] * 3, "category": ["fusion"] * 3}
    )
    text = render_ops(OpTable("a.xplane.pb", ops, ops.clear(), 1, ()), "text", Style(width=100)).decode()
    assert all(part in text for part in ("all-gather.285.", "all-gather.301.", "_residuals.17", "student backward"))


def test_plain_output_has_no_escape_sequence(make: Any, render_text_of: Callable[..., str]) -> None:
    text = render_text_of(make.evil())
    assert all(char == "\n" or char.isprintable() for char in text)


def test_colour_is_only_added_never_relied_on(make: Any, render_text_of: Callable[..., str]) -> None:
    plain = render_text_of(make.training())
    coloured = render_text_of(make.training(), Style(color=True))
    assert "\x1b[" in coloured
    stripped = re.sub(r"\x1b\[[0-9;]*m", "", coloured)
    assert [line.rstrip() for line in lines_of(stripped)] == lines_of(plain)


def test_a_terminal_without_unicode_gets_ascii(make: Any, render_text_of: Callable[..., str]) -> None:
    for diff in (make.training(), make.evil()):
        text = render_text_of(diff, Style(unicode=False))
        assert text.isascii()
    assert "step time (mean)" in render_text_of(make.training(), Style(unicode=False))


def test_the_verdict_comes_first_and_comparability_before_any_figure(
    make: Any, render_text_of: Callable[..., str]
) -> None:
    text = render_text_of(make.training())
    order = [
        "1.30× the throughput",
        "the batch size differs",
        "step time (mean)",
        "What the change is made of",
        "sum = delta",
        "Findings",
        "Configuration that differs",
        "Ops that changed most",
        "Matched or replaced: 98.1 %",
        "Warnings about the baseline",
    ]
    places = [text.index(part) for part in order]
    assert places == sorted(places)
    assert places[0] == 0


def test_the_parts_sum_to_the_delta(make: Any, render_text_of: Callable[..., str]) -> None:
    total = next(line for line in lines_of(render_text_of(make.training())) if line.startswith("sum = delta"))
    headline = next(line for line in lines_of(render_text_of(make.training())) if line.startswith("MFU "))
    assert "+6.02" in total
    assert "+6.02 points" in headline


def test_without_mfu_the_split_is_in_time_and_says_why(make: Any, render_text_of: Callable[..., str]) -> None:
    text = render_text_of(make.serving())
    assert "What the change is made of, in time" in text
    assert "MFU is unknown (model FLOPs are unknown (--model-tflops or --config)" in " ".join(text.split())
    assert "noise unknown: a side has a single sample" in text


@pytest.mark.parametrize("format_name", ["text", "markdown"])
def test_an_mfu_delta_that_is_not_split_leaves_the_split_in_time(make: Any, format_name: str) -> None:
    text = render_diff(make.unsplit(), format_name, Style()).decode()
    assert "What the change is made of, in time" in text
    assert "in time: normalised per step, so the MFU delta is not split" in " ".join(text.split())
    assert "points sum to the MFU delta" not in text
    assert "+6.02 points" in text
    total = next(line for line in lines_of(text) if "sum = delta" in line)
    assert "+0.808" in total, total


def test_noise_is_said_in_the_manner_of_benchstat(make: Any, render_text_of: Callable[..., str]) -> None:
    diff = make.training()
    delta = replace(diff.delta, baseline_time_ps=1e12, optimized_time_ps=0.912e12, interval=(0.894, 0.93))
    assert noise_text(replace(diff, delta=delta)) == "time ratio 0.912, 95 % interval 0.894 to 0.930"
    assert "time ratio 0.912, 95 % interval 0.894 to 0.930" in render_text_of(replace(diff, delta=delta))
    noisy = replace(delta, significant=False, interval=(0.97, 1.04))
    expected = "~ not significant: the interval 0.970 to 1.040 of the time ratio holds 1"
    assert noise_text(replace(diff, delta=noisy)) == expected
    narrow = replace(delta, interval=(0.99931, 0.99985))
    assert noise_text(replace(diff, delta=narrow)).endswith("interval 0.99931 to 0.99985")
    for interval in ((1.0, 1.0), (float("nan"), 1.0), (0.5, float("inf")), None):
        for significant in (True, False, None):
            odd = replace(delta, significant=significant, interval=interval, baseline_time_ps=0.0)
            assert noise_text(replace(diff, delta=odd))


def test_the_captions_say_what_kind_of_time_it_is(make: Any, render_text_of: Callable[..., str]) -> None:
    diff = make.serving()
    text = " ".join(render_text_of(diff).split())
    assert "exclusive time per device and run; rows sum to the device time" in text
    kernel = results.KernelRow("gmm", None, 1.0, None, 1e9, 1e9, None)
    summary = replace(make.training().baseline, kernels=(kernel,))
    caption = "time of the kernels' own spans; overlapping streams may add up to more than the step"
    assert caption in render_text_of(summary)
    assert kernels_table(replace(make.training(), baseline=summary)).caption == f"per device and step: {caption}"


def test_tokens_are_per_device(make: Any, render_text_of: Callable[..., str]) -> None:
    text = render_text_of(replace(make.training().baseline, tokens_per_s=24778.4))
    assert re.search(r"tokens/s per device +24,778", text)


def test_long_configurations_are_cut_and_say_so(make: Any, render_text_of: Callable[..., str]) -> None:
    knobs = tuple(results.Knob(f"key_{i:03}", i, i + 1) for i in range(100))
    diff = replace(make.training(), knobs=knobs)
    text = render_text_of(diff)
    assert "… 70 more rows (--top 0 shows all)" in text
    assert ("key_029" in text, "key_030" in text) == (True, False)
    assert "key_099" in render_text_of(diff, top=0)
    assert "… 95 more rows (--top 0 shows all)" in render_text_of(diff, top=5)


def test_an_absent_key_and_a_null_are_told_apart(make: Any) -> None:
    knobs = (
        results.Knob("absent", None, 1, baseline_set=False),
        results.Knob("known", 512, 1024, baseline_set=False, baseline_default=True),
        results.Knob("--xla_flag", None, "1", baseline_set=False, source="xla_flags"),
        results.Knob("nothing", None, "null"),
        results.Knob("number", 4, "4"),
        results.Knob("switch", True, "true"),
        results.Knob("text", "", "not set"),
    )
    rows = [(row[1].text, row[2].text) for row in knobs_table(replace(make.training(), knobs=knobs)).rows]
    assert rows == [
        ("default (unknown)", "1"), ("default 512", "1024"), ("not set", "1"), ("null", '"null"'),
        ("4", '"4"'), ("true", '"true"'), ('""', '"not set"'),
    ]  # fmt: skip


@pytest.mark.parametrize("format_name", ["text", "markdown"])
def test_hundreds_of_warnings_are_counted_not_listed(make: Any, format_name: str) -> None:
    notes = tuple(results.Note("code", f"warning {i}.") for i in range(300))
    summary = replace(make.training().baseline, warnings=notes)
    text = render_summary(summary, format_name, Style()).decode()
    assert ("warning 19." in text, "warning 20." in text) == (True, False)
    assert "… 280 more; --format json has all" in text


def test_rows_left_out_are_counted_and_summed(make: Any, render_text_of: Callable[..., str]) -> None:
    few = render_text_of(make.training(), top=3)
    assert "14 smaller" in few
    assert "more rows, net" in few
    everything = render_text_of(make.training(), top=0)
    assert "smaller" not in everything
    assert "more rows" not in everything


def test_an_insignificant_change_is_marked_with_a_tilde(make: Any, render_text_of: Callable[..., str]) -> None:
    diff = make.training()
    noisy = replace(diff, delta=replace(diff.delta, significant=False))
    assert "~ not significant" in render_text_of(noisy)
    assert "~ −" in render_text_of(noisy)


def test_an_impossible_mfu_is_flagged(make: Any, render_text_of: Callable[..., str]) -> None:
    diff = make.training()
    base = replace(diff.baseline, mfu=1.34)
    assert "134.00 % = " in render_text_of(base)
    assert "impossible: above 100 %" in render_text_of(base)
    assert "134.00 % (impossible)" in render_text_of(replace(diff, baseline=base))


def test_a_compiled_time_is_called_an_estimate_everywhere(make: Any, render_text_of: Callable[..., str]) -> None:
    diff = make.training()
    compiled = replace(diff.optimized, kind="compiled")
    text = render_text_of(compiled)
    assert "estimate (compiled, not recorded" in text
    assert "ms (est.)" in text or "s (est.)" in text
    both = render_text_of(replace(diff, optimized=compiled))
    assert "optimized is compiled, not recorded: every time is an estimate" in both
    assert "optimized (est.)" in both
    base = replace(diff.baseline, kind="compiled")
    both = render_text_of(replace(diff, baseline=base, optimized=compiled))
    assert both.count("compiled, not recorded") == both.count("Both sides are compiled, not recorded") == 1


def test_forced_comparisons_say_so(make: Any, render_text_of: Callable[..., str]) -> None:
    assert "Not comparable; compared all the same" in render_text_of(replace(make.training(), comparable=False))


def test_a_summary_shows_mfu_with_its_formula(make: Any, render_text_of: Callable[..., str]) -> None:
    text = render_text_of(make.training().baseline)
    assert "19.98 % = 1219.6 model TFLOP / (5.292 s × 1153.5 TFLOP/s)" in text
    assert "12 steady (Steps line): mean 5.292 s, median" in text
    assert "61.00 GiB static, 70.00 GiB in the window, of 94.74 GiB" in text


def test_unknown_figures_read_n_a(render_text_of: Callable[..., str]) -> None:
    bare = results.Summary(
        "x.xplane.pb", "x", "recorded", (results.DeviceInfo("GPU:0", None, None, None),),
        results.StepStats("whole recording", 1, 1e9, 1e9, 1e9, 1e9, "run"), 0.5, None, None,
        results.MfuInputs(None, 1e9, None, None), (), (), results.Remat(0, 0, 0), results.Memory(), None, (),
    )  # fmt: skip
    text = render_text_of(bare)
    assert "1 × unknown device (peak n/a)" in text
    assert "MFU       n/a: model FLOPs are unknown" in text
    assert "HBM peak  n/a" in text


def test_a_replaced_op_keeps_both_of_its_names(make: Any, render_text_of: Callable[..., str]) -> None:
    text = render_text_of(make.training())
    assert "gmm_tile_512_1024_1024.3" in text
    assert "→ gmm_tile_512_2048_768.3" in text


def test_markup_in_a_name_stays_text(make: Any) -> None:
    table = make.op_table(("[bold red]x[/]", "[link=http://e.invalid]y[/link]"))
    text = render_ops(table, "text", Style(color=True)).decode()
    assert "[bold red]x[/]" in text
    assert "[link=http://e.invalid]y[/link]" in text


def test_ops_sum_over_all_rows_and_name_what_is_hidden(make: Any) -> None:
    text = render_ops(make.op_table(), "text", Style(), 1).decode()
    assert "sum of 3 ops" in text
    assert "16.50 ms" in text
    assert "2 more ops, 7.500 ms" in text
    assert "summed over 2 devices" in text


def test_a_kernel_without_flops_has_no_rate(make: Any) -> None:
    row = next(line for line in lines_of(render_ops(make.op_table(), "text", Style()).decode()) if "splash_fwd" in line)
    assert row.split()[-2:] == ["–", "800"]


def test_peaks_are_per_device_with_sources() -> None:
    text = render_peaks("text", Style()).decode()
    v7x = next(line for line in lines_of(text) if line.startswith("TPU v7x"))
    assert v7x.split()[2:6] == ["2307", "2", "1153.5", "96"]
    assert "https://docs.cloud.google.com/tpu/docs/tpu7x" in text


def test_the_same_result_gives_the_same_bytes(make: Any) -> None:
    summary = make.training().baseline
    assert render_summary(summary, "text", Style()) == render_summary(summary, "text", Style())


@pytest.mark.parametrize("name", ["\x1b[31mred", "\u202eabc", "a\nb", "[bold]x[/bold]", "x" * 10**6])
def test_a_fact_named_by_the_trace_is_text_and_short(name: str) -> None:
    text = render_text(Document("d", (Facts(((name, label("1")),)),)), Style(width=100))
    assert not set("\x1b\u202e") & set(text)
    assert "[bold]" in text or not name.startswith("[")
    assert len(text) < 1000
    assert text.count("\n") <= 4
