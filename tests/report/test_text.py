"""What a terminal shows: everything that matters, in 100 columns, with nothing that acts."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
from rich.cells import cell_len

from profiler import results
from profiler.report import render_ops, render_peaks, render_summary
from profiler.report.output import Style


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


def test_plain_output_has_no_escape_sequence(make: Any, render_text_of: Callable[..., str]) -> None:
    text = render_text_of(make.evil())
    assert all(char == "\n" or char.isprintable() for char in text)


def test_colour_is_only_added_never_relied_on(make: Any, render_text_of: Callable[..., str]) -> None:
    import re

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
        "Ops that changed most",
        "Matched or replaced: 98.1 %",
        "Configuration that differs",
        "Findings",
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
    assert "noise unknown" in text


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
