"""A GitHub comment: within the limit whatever comes in, and nothing of a trace acts in it."""

from __future__ import annotations

import re
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from markdown_it import MarkdownIt
from markdown_it.token import Token

from profiler import results
from profiler.api import check
from profiler.redact import redacted
from profiler.report import render_check, render_diff, render_ops, render_peaks, render_summary
from profiler.report.comment_view import MARKER
from profiler.report.markdown import GATE_LIMIT, LIMIT, escape, name, prose, sentence
from profiler.report.output import Style

OURS = re.compile(r"</?details>|</?summary>|<br>|\A<!-- profiler-diff -->\s*\Z")
NASTY = st.text(alphabet=st.sampled_from("|`<>@#*_[]()!\\~$&:\n\r-=+1.{}\"'/ ahtpsw\u202e\u200f\x1b"), max_size=60)


def parse(text: str) -> list[Token]:
    flat: list[Token] = []
    for token in MarkdownIt("commonmark").enable(["table", "strikethrough"]).parse(text):
        flat.append(token)
        flat.extend(token.children or ())
    return flat


def shown(tokens: list[Token]) -> str:
    return "".join(token.content for token in tokens if token.type in ("text", "code_inline", "text_special"))


def assert_harmless(text: str) -> None:
    tokens = parse(text)
    assert not {"link_open", "image", "html_block_open"} & {token.type for token in tokens}
    for token in tokens:
        if token.type in ("html_inline", "html_block"):
            assert OURS.sub("", re.sub(r"(?s)<summary>.*?</summary>", "", token.content)).strip() == ""
    outside_code = re.sub(r"(?s)```text\n.*?\n```|`[^`\n]*`", "", text)
    assert not re.search(r"@[A-Za-z0-9]", outside_code)
    assert "<script" not in outside_code
    # What GitHub makes a link or a reference of by itself.
    assert not re.search(r"(?i)(?<!&)#\d|\bgh-\d|\bwww\.|https?://", outside_code)


@given(NASTY)
def test_escaped_text_shows_exactly_itself(text: str) -> None:
    from profiler.report.units import clean

    for how in (escape, prose, sentence, name):
        tokens = parse(f"x {how(text)} x")
        visible = shown(tokens).replace("\u200b", "")
        assert visible.split() == f"x {clean(text)} x".split()
        assert {token.type for token in tokens} <= {
            "paragraph_open", "paragraph_close", "inline", "text", "code_inline", "text_special",
        }  # fmt: skip


@given(NASTY)
def test_a_sentence_cannot_start_a_block(text: str) -> None:
    tokens = parse("- item\n- " + (sentence(text) or "x"))
    kinds = {token.type for token in tokens}
    assert not kinds & {
        "heading_open",
        "hr",
        "ordered_list_open",
        "blockquote_open",
        "fence",
        "code_block",
        "table_open",
    }
    assert sum(token.type == "bullet_list_open" for token in tokens) == 1


@given(st.lists(NASTY, min_size=1, max_size=4))
def test_a_name_cannot_leave_its_cell(names: list[str]) -> None:
    row = "| " + " | ".join(name(text) or " " for text in names) + " |"
    head = "| " + " | ".join("h" for _ in names) + " |\n|" + "---|" * len(names)
    tokens = parse(f"{head}\n{row}\n")
    assert sum(token.type == "td_open" for token in tokens) == len(names)
    assert sum(token.type == "tr_open" for token in tokens) == 2


@pytest.mark.parametrize("kind", ["training", "serving", "evil"])
def test_a_diff_is_harmless_and_within_the_limit(make: Any, kind: str) -> None:
    text = render_diff(getattr(make, kind)(), "markdown", Style()).decode()
    assert len(text) <= LIMIT
    assert_harmless(text)
    assert text.index("**") < text.index("| baseline |")


@settings(max_examples=15, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(names=st.lists(st.text(max_size=3000), min_size=1, max_size=400))
def test_no_input_makes_a_comment_too_long(make: Any, names: list[str]) -> None:
    diff = make.evil(tuple(names))
    assert len(render_diff(diff, "markdown", Style(), 0).decode()) <= LIMIT
    assert len(render_summary(diff.baseline, "markdown", Style(), 0).decode()) <= LIMIT


def test_megabytes_of_the_worst_names_stay_within_the_limit(make: Any) -> None:
    names = tuple(char * 100_000 for char in "|<&\u202e" for _ in range(20))
    text = render_diff(make.evil(names), "markdown", Style(), 0).decode()
    assert len(text) <= LIMIT
    assert_harmless(text)


def test_thousands_of_ops_give_way_and_say_so(make: Any) -> None:
    text = render_diff(make.many_ops(20_000), "markdown", Style(), 0).decode()
    assert len(text) <= LIMIT
    assert re.search(r"… \d+ more rows", text)


def test_every_row_of_a_table_has_its_cells(make: Any) -> None:
    tokens = parse(render_diff(make.evil(), "markdown", Style()).decode())
    width = cells = 0
    for token in tokens:
        if token.type == "thead_open":
            width = 0
        elif token.type == "th_open":
            width += 1
        elif token.type == "tr_open":
            cells = 0
        elif token.type == "td_open":
            cells += 1
        elif token.type == "tr_close" and cells:
            assert cells == width


def test_the_waterfall_is_drawn_as_text(make: Any) -> None:
    text = render_diff(make.training(), "markdown", Style()).decode()
    fence = text.split("```text\n")[1].split("```")[0]
    assert fence.startswith("baseline")
    assert "splash forward · re-run" in fence
    assert "26.00 %" in fence


def test_the_comment_opens_with_what_a_reviewer_asks(make: Any) -> None:
    text = render_diff(make.training(), "markdown", Style()).decode()
    assert text.startswith(f"{MARKER}\n\n### profiler diff\n\n**1.")
    folded = text.index("<details>")
    order = ["Mind", "| **MFU** |", "Top causes", "Configuration that differs", "<details>"]
    places = [text.index(part) for part in order]
    assert places == sorted(places)
    assert len(text[:folded]) < 4000
    causes = re.findall(r"^\d\. .+$", text[:folded], re.MULTILINE)
    assert 0 < len(causes) <= 5
    assert causes[0].startswith(
        "1. Splash forward runs once per layer instead of twice (+1.62 MFU points; knobs: context"
    )


def test_every_section_of_a_comment_is_folded_once(make: Any) -> None:
    text = render_diff(make.training(), "markdown", Style()).decode()
    titles = re.findall(r"<details><summary>(.*?)</summary>", text)
    assert titles == [
        "Where the change comes from", "What the knobs did", "What to try next", "Kernels", "Ops that changed most",
        "Recordings and 2 warnings about them",
    ]  # fmt: skip
    depth = 0
    for tag in re.findall(r"</?details>", text):
        depth += 1 if tag == "<details>" else -1
        assert depth in (0, 1)


def test_a_worse_figure_is_a_word_and_not_a_colour(make: Any) -> None:
    text = render_diff(make.training(), "markdown", Style()).decode()
    (row,) = re.findall(r"^\| HBM peak, static .+$", text, re.MULTILINE)
    assert row.endswith("| ⚠ worse |")
    assert "| **MFU** |" in text
    assert re.search(
        r"^\| \*\*MFU\*\* .+ points to .+ points \| better \|$|^\| \*\*MFU\*\* .+ \| better \|$", text, re.M
    )


def test_a_change_within_the_noise_says_so(make: Any) -> None:
    diff = make.serving()
    delta = replace(diff.delta, interval=(0.9, 1.05), significant=False)
    text = render_diff(replace(diff, delta=delta), "markdown", Style()).decode()
    assert "within the noise |" in text


def test_compiled_profiles_are_marked_as_estimates(make: Any) -> None:
    diff = make.training()
    base, opt = (replace(side, kind="compiled") for side in (diff.baseline, diff.optimized))
    delta = replace(diff.delta, band=(0.7, 0.9))
    text = render_diff(replace(diff, baseline=base, optimized=opt, delta=delta), "markdown", Style()).decode()
    assert "**⚠ Both sides are compiled, not recorded: every time is an estimate.**" in text
    assert "| baseline (est.) | optimized (est.) |" in text
    assert "−30.0 % to −10.0 % (band of the estimate)" in text


def test_estimates_made_differently_are_not_called_better(make: Any) -> None:
    diff = make.training()
    base, opt = (replace(side, kind="compiled") for side in (diff.baseline, diff.optimized))
    note = results.Note("estimates_differ", "the two estimates are made differently")
    text = render_diff(replace(diff, baseline=base, optimized=opt, warnings=(note,)), "markdown", Style()).decode()
    (row,) = re.findall(r"^\| \*\*MFU\*\* .+$", text, re.MULTILINE)
    assert row.endswith("| unclear |")


def test_a_pair_that_did_not_change_is_short(make: Any) -> None:
    diff = make.training()
    parts = tuple(
        replace(item, mfu_points=0.0, time_ps=0.0, optimized_time_ps=item.baseline_time_ps)
        for item in diff.contributions
    )
    same = replace(
        diff, optimized=diff.baseline, contributions=parts, findings=(), knobs=(), effects=(), suggestions=(),
        loss=None, memory=None, communication=None, ops=diff.ops.clear(), warnings=(),
    )  # fmt: skip
    text = render_diff(same, "markdown", Style()).decode()
    assert "Where the change comes from" not in text
    assert len(text) < 3500


@pytest.mark.parametrize(
    "text", ["www.example.invalid", "GH-12", "see gh-7", "https://example.invalid", "a@b.invalid", "x#1"]
)
def test_bare_links_and_references_are_broken(text: str) -> None:
    for how in (escape, prose, sentence):
        shown_text = how(text)
        assert not re.search(r"(?i)www\.|gh-\d|https?:|@\w|(?<!&)#\d", shown_text)


def test_details_are_folded(make: Any) -> None:
    text = render_diff(make.training(), "markdown", Style()).decode()
    assert "<details><summary>Ops that changed most</summary>\n\n|" in text
    assert text.count("<details>") == text.count("</details>")


def test_a_check_is_harmless_too(make: Any) -> None:
    for diff in (make.evil(), make.training()):
        found = check(diff, ["mfu<-1%", "loss>+0.1%", "remat>0"], ["idle>+1ms"])
        text = render_check(found, "markdown", Style()).decode()
        assert_harmless(text)
        assert len(text) <= GATE_LIMIT


def test_hostile_names_are_redacted_in_time(make: Any) -> None:
    text = render_diff(redacted(make.evil()), "markdown", Style(), 0).decode()
    assert_harmless(text)
    assert len(text) <= LIMIT


def test_other_commands_speak_markdown_too(make: Any) -> None:
    assert_harmless(render_ops(make.op_table(make.hostile), "markdown", Style(), 0).decode())
    assert "| TPU v7x | 2307 | 2 | **1153.5** |" in render_peaks("markdown", Style()).decode()
