"""Overview: the verdict, the headline figures, where the change comes from, what was configured differently."""

from __future__ import annotations

from dataclasses import replace
from html import escape

import streamlit as st

from dashboard import elements, plots, shell
from dashboard.loading import Comparison
from dashboard.theme import palette
from profiler.redact import redacted
from profiler.report import diff_tables, diff_view, findings_view, html_kpis, html_parts, html_tables, knobs_view, units
from profiler.report.figures import waterfall
from profiler.report.output import Style
from profiler.report.wording import sides
from profiler.results import Diff

MOST_FAMILIES = 20
MOST_FINDINGS = 5  # the others are in a fold
NAME_WIDTH = 90  # of a side, above the verdict


def page(comparison: Comparison) -> None:
    """The page."""
    diff = comparison.diff
    _verdict(comparison)
    elements.html(html_parts.cards(html_kpis.cards(diff)))
    elements.text(f"{diff_view.noise_text(diff).capitalize()}.")
    with st.expander("All headline figures"):
        elements.table(diff_view.headline_table(diff), title=False)
    elements.notes(diff.warnings, "Warnings about the comparison", expanded=not diff.comparable)
    _change(comparison)
    _configuration(comparison)
    _words(comparison)
    st.subheader("Where the time goes")
    elements.html(html_parts.sections(html_tables.phases_table(diff, MOST_FAMILIES)))
    for title, side in sides(diff):
        elements.notes(diff_view.side_warnings(diff, side), f"Warnings about the {title} recording")


def _verdict(comparison: Comparison) -> None:
    diff, choice = comparison.diff, comparison.choice
    texts = [choice.base] if choice.alone else [choice.base, choice.opt]
    named = " → ".join(units.shorten(text, NAME_WIDTH) for text in texts)
    verdict, stop, because = diff.verdict.partition(". ")
    left, right = st.columns([5, 1], vertical_alignment="top")
    with left:
        elements.html(
            f'<p class="kicker"><bdi>{escape(named)}</bdi></p>'
            f'<h1 class="verdict"><bdi>{escape((verdict + stop).strip())}</bdi></h1>'
            + (f'<p class="because"><bdi>{escape(because)}</bdi></p>' if because else "")
        )
    with right:
        _reports(comparison)
    elements.estimate_banner(sides(diff))
    if not diff.comparable:
        elements.html('<p class="estimate"><strong>Not comparable.</strong> Compared all the same, as you asked.</p>')


def _reports(comparison: Comparison) -> None:
    """The comparison as a file to attach: made when it is asked for."""
    from profiler import report

    style = Style()
    with st.popover("Report", icon=":material/download:", width="stretch"):
        hide = st.checkbox("Hide names of hosts, folders and users", key="redact", help="As profiler --redact does")
        diff = comparison.diff

        def shown() -> Diff:
            return redacted(diff) if hide else diff

        for title, name, mime, make in (
            ("HTML page", "report.html", "text/html", lambda: report.render_html(shown())),
            ("Markdown comment", "report.md", "text/markdown", lambda: report.render_diff(shown(), "markdown", style)),
            ("JSON", "diff.json", "application/json", lambda: report.render_diff(shown(), "json", style)),
        ):
            st.download_button(title, make, name, mime, key=f"report-{name}", on_click="ignore", width="stretch")


def _change(comparison: Comparison) -> None:
    diff, figure = comparison.diff, waterfall(comparison.diff)
    st.subheader("From baseline to optimized")
    elements.text(f"{figure.title}; the parts sum to the change. Solid is better, hatched is worse.")
    described = "; ".join(f"{bar.label} {figure.text(bar)}" for bar in figure.bars)
    elements.plot(plots.waterfall(figure, palette()), "waterfall", described)
    with st.expander("The parts as a table: fewer calls and cheaper calls apart"):
        elements.table(html_tables.marked(diff_tables.contributions_table(diff, None), diff), title=False)


def _configuration(comparison: Comparison) -> None:
    diff = comparison.diff
    st.subheader("What changed in the configuration")
    if diff.knobs:
        estimated = any(side.kind == "compiled" for _, side in sides(diff))
        elements.html(html_parts.knobs(html_tables.knob_groups(diff), estimated=estimated))
        with st.expander(f"All {len(diff.knobs)} keys, one by one"):
            elements.table(knobs_view.knobs_table(diff, all_keys=True), title=False)
    elif all(html_tables.configured(side) for _, side in sides(diff)):
        elements.text("The configurations are the same: no knob explains a change.")
    else:
        elements.empty(
            "The configurations are not both known.",
            "A recording that distill makes carries its own; for others, name a YAML file on the left.",
        )


def _words(comparison: Comparison) -> None:
    found = findings_view.findings_items(comparison.diff)
    if found.items:
        st.subheader("Findings")
        elements.html(html_parts.items(replace(found, items=found.items[:MOST_FINDINGS])))
        rest = found.items[MOST_FINDINGS:]
        if rest:
            with st.expander(f"{len(rest)} smaller findings" if len(rest) > 1 else "1 smaller finding"):
                elements.html(html_parts.items(replace(found, items=rest), MOST_FINDINGS + 1))
    ideas = findings_view.suggestions_items(comparison.diff)
    if ideas.items:
        st.subheader("What to try next")
        elements.text("On the optimized side; what each can gain at most, by itself.")
        elements.html(html_parts.items(ideas))


if __name__ == "__main__":
    shell.show(page)
