"""Runs: the history of the folders, the figures of the runs that are chosen, and the ladder of the sidebar."""

from __future__ import annotations

from pathlib import PurePosixPath

import polars as pl
import streamlit as st

from dashboard import elements, history, loading, picker, plots_runs, points, shell
from dashboard.points import Point
from dashboard.sources import Root, Sources
from dashboard.theme import palette
from profiler.api import Options
from profiler.errors import ProfilerError
from profiler.report import ladder_view, units
from profiler.report.model import Column, Table, label, name
from profiler.results import Note
from profiler.xplane.runs import Run

ROWS = 50  # a page of the table; the facts of more take their time
MOST_MEASURED = 60
CHOSEN, FOLDER, FILTER = "runs", "folder", "filter"
_DRAWN = "_runs_drawn"  # counts the times that the table has to take its selection from elsewhere


def page() -> None:
    """The page."""
    sources = shell.sources()
    st.header("Runs")
    root = _root(sources)
    found = history.below(root)
    elements.notes(found.notes, "What the search left out")
    if not found.runs:
        elements.empty(
            f"There is no .xplane.pb file below {root.name}.",
            "jax.profiler.trace writes one; the page looks again every half minute, or at once with Look again.",
        )
    wanted = st.session_state.get(FILTER, st.query_params.get(FILTER, "")).lower()
    shown = [run for run in found.runs if wanted in run.name.lower()]
    with st.container(horizontal=True, vertical_alignment="bottom"):
        if len(found.runs) > 10:
            st.text_input(
                "Filter by name", key=FILTER, bind="query-params", placeholder="part of a folder's or file's name"
            )
        st.button("Look again", on_click=history.look_again, icon=":material/refresh:")
    if found.runs and not shown:
        elements.empty(f"None of the {len(found.runs):,} runs has {wanted} in its name.", "Clear the filter.")
    if shown:
        _table(sources, shown)
    chosen = _chosen(sources, shown)
    _use(chosen)
    if chosen:
        _figures(chosen, sources)
    _ladder(sources)


def _root(sources: Sources) -> Root:
    """The folder whose runs are listed."""
    by_name = {root.name: root for root in sources.roots}
    if len(by_name) == 1:
        return sources.roots[0]
    picked = st.selectbox("Folder", list(by_name), key=FOLDER, bind="query-params")
    return by_name.get(picked, sources.roots[0])


# --- which runs there are --------------------------------------------------------------------------------------------


def _table(sources: Sources, runs: list[Run]) -> None:
    """One page of the runs, newest first; the rows that are ticked are the chosen runs."""
    pages = -(-len(runs) // ROWS)
    number = min(st.pagination(pages, key="page", bind="query-params"), pages) if pages > 1 else 1
    here = runs[(number - 1) * ROWS : number * ROWS]
    texts = [sources.short(run.path) for run in here]
    first = (number - 1) * ROWS
    which = f"; {first + 1:,} to {first + len(here):,}" if pages > 1 else ""
    elements.text(f"{len(runs):,} {'runs' if len(runs) > 1 else 'run'}, newest first{which}")
    key = f"_runs_{st.session_state.get(_DRAWN, 0)}_{number}_{len(runs)}"
    rows = _rows(here)
    st.dataframe(
        rows,
        key=key,
        on_select=lambda: _ticked(key, texts),
        selection_mode="multi-row",
        selection_default={"selection": {"rows": [at for at, text in enumerate(texts) if text in _current()]}},
        hide_index=True,
        width="stretch",
        column_order=[column for column in rows.columns if any(rows[column])],
        column_config={"started": st.column_config.DatetimeColumn(format="YYYY-MM-DD HH:mm")},
        alt="The runs of the folder with what each says about itself",
    )


def _rows(runs: list[Run]) -> pl.DataFrame:
    with st.spinner("Reading what the runs say about themselves …"):
        said = [history.described(run) for run in runs]
    return pl.DataFrame(
        {
            "run": [run.name for run in runs],
            "started": [
                ((what.started or run.started).replace(tzinfo=None)) for run, what in zip(runs, said, strict=True)
            ],
            "kind": [what.kind or "cannot be read" for what in said],
            "model": [what.model or "" for what in said],
            "chips": [history.chip_text(what) for what in said],
            "mesh": [", ".join(f"{axis} {size}" for axis, size in what.mesh.items() if size > 1) for what in said],
            "batch × tokens": [history.batch_text(what) for what in said],
            "hosts": [what.hosts for what in said],
            "commit": [(what.commit or "")[:10] for what in said],
            "jax": [what.versions.get("jax", "") for what in said],
            "size": [units.size(run.bytes) for run in runs],
            "problem": [what.error or "" for what in said],
        },
        schema_overrides={"hosts": pl.Int64},
    )


def _current() -> list[str]:
    return list(st.session_state.get(CHOSEN) or st.query_params.get_all(CHOSEN))


def _ticked(key: str, texts: list[str]) -> None:
    """The rows of this page that are ticked, and what was chosen on others."""
    rows = st.session_state[key]["selection"]["rows"]
    elsewhere = [text for text in _current() if text not in texts]
    st.session_state[CHOSEN] = [*elsewhere, *(texts[row] for row in rows if row < len(texts))]


def _changed() -> None:
    st.session_state[_DRAWN] = st.session_state.get(_DRAWN, 0) + 1


def _chosen(sources: Sources, runs: list[Run]) -> list[str]:
    listed = [sources.short(run.path) for run in runs[: history.MOST_LISTED]]
    return st.multiselect(
        "Chosen runs",
        list(dict.fromkeys([*_current(), *listed])),
        key=CHOSEN,
        bind="query-params",
        accept_new_options=True,
        select_all=False,
        max_selections=MOST_MEASURED,
        placeholder="tick rows above, or type a path",
        on_change=_changed,
    )


def _use(chosen: list[str]) -> None:
    """What the chosen runs can become."""
    with st.container(horizontal=True):
        one, many = len(chosen) == 1, len(chosen) > 1
        first = chosen[0] if chosen else ""
        st.button("Use as baseline", on_click=picker.use, args=("base", first), disabled=not one)
        st.button("Use as optimized", on_click=picker.use, args=("opt", first), disabled=not one)
        st.button(
            "As ladder",
            on_click=picker.use_ladder,
            args=(chosen,),
            disabled=not many,
            help="In the order of the chosen runs: each against the one before",
        )


# --- what the chosen ones measured -----------------------------------------------------------------------------------


def _figures(chosen: list[str], sources: Sources) -> None:
    found = sorted(points.points(chosen, sources, _options()), key=lambda point: point.started)
    elements.notes([Note("unreadable", point.error) for point in found if point.error], "Cannot be read", expanded=True)
    found = [point for point in found if point.summary]
    if not found:
        return
    names = _names(found)
    st.subheader("What they measured")
    compiled = sum(point.kind == "compiled" for point in found)
    if compiled:
        elements.text(f"{compiled} of {len(found)} are compiled, not recorded: their times are estimates.", "estimate")
    known = _known(found)
    picked = st.segmented_control(
        "Figure", list(known), key="figure", bind="query-params",
        default=max(known, key=lambda each: known[each]), label_visibility="collapsed",
    )  # fmt: skip
    if picked and known[picked]:
        metric = plots_runs.METRICS[picked]
        series = points.levels(found, names, metric.name)
        changes = [change for each in series for change in each.changes]
        figure = plots_runs.history(found, names, metric, palette(), changes)
        elements.plot(figure, "history", plots_runs.described(found, names, metric))
        for each in series:
            if each.noise is not None or each.changes:  # of fewer runs nothing can be said
                which = " · ".join(part for part in (each.model, each.chip, each.kind) if part)
                said = each.verdict[:1].upper() + each.verdict[1:]
                elements.text(f"{which}: {said}" if len(series) > 1 else said, "because")
        elements.text("In the order of time. Recorded and compiled runs share no line, nor do models or chips.")
    elif picked:
        elements.empty(f"None of the chosen runs says its {picked}.", "The sidebar can give what MFU and tokens need.")
    elements.table(_measured(found, names))
    _keys(found, names)


def _known(found: list[Point]) -> dict[str, int]:
    """How many of the runs have each figure."""
    return {
        title: sum(point.summary is not None and metric.value(point.summary) is not None for point in found)
        for title, metric in plots_runs.METRICS.items()
    }


def _options() -> Options:
    """As the sidebar reads both sides; facts that it gives to one of them do not hold for a history."""
    chosen = shell.choice()
    if chosen is None or chosen.base_options != chosen.opt_options:
        return Options()
    return chosen.base_options


def _names(found: list[Point]) -> list[str]:
    """The texts without the folders that all of them share; no two are the same."""
    parts = [PurePosixPath(history.short(point.text)).parts for point in found]
    same = 0
    while all(len(each) > same + 1 and each[same] == parts[0][same] for each in parts):
        same += 1
    names = ["/".join(each[same:]) for each in parts]
    return [name if names.count(name) == 1 else f"{name} ({at})" for at, name in enumerate(names, 1)]


def _measured(found: list[Point], names: list[str]) -> Table:
    """The figures of every run."""
    summaries = [point.summary for point in found if point.summary]
    scale = units.time_scale(run.steps.mean_ps for run in summaries)
    rows = []
    for point, title, run in zip(found, names, summaries, strict=True):
        est = " (est.)" if run.kind == "compiled" else ""
        peak = run.memory.static_peak_bytes
        rows.append(
            (
                name(title),
                label(run.kind),
                name(point.model or units.UNKNOWN),
                label(units.percent(run.mfu, 2) + (est if run.mfu is not None else "")),
                label(scale.show(run.steps.mean_ps) + est),
                label(f"{run.steps.count:,} {run.steps.unit}s" if run.steps.count != 1 else f"1 {run.steps.unit}"),
                label(units.number(run.tokens_per_s, 5) + (est if run.tokens_per_s is not None else "")),
                label(units.size(peak) if peak is not None else units.UNKNOWN),
            )
        )
    return Table(
        "Figures",
        (
            Column("run", numeric=False),
            Column("kind", numeric=False),
            Column("model", numeric=False),
            Column("MFU"),
            Column(f"step, mean {scale.unit}"),
            Column("of"),
            Column("tokens/s per device"),
            Column("HBM peak"),
        ),
        tuple(rows),
    )


def _keys(found: list[Point], names: list[str]) -> None:
    """The keys of the configurations that differ, one column per run."""
    known = [(point, name) for point, name in zip(found, names, strict=True) if point.config]
    keys = points.differing([point for point, _ in known])
    st.subheader("Configuration keys that differ")
    if len(known) < 2:
        elements.empty("Fewer than two of the chosen runs carry their configuration.")
    elif not keys:
        elements.text("None: the configurations are the same.")
    else:
        columns = {name: [_shown(point.config.get(key)) for key in keys] for point, name in known}
        table = pl.DataFrame({"configuration key": keys, **columns})
        st.dataframe(table, hide_index=True, width="stretch", alt="Configuration keys that differ")


def _shown(value: object) -> str:
    return "" if value is None else units.shorten(str(value), 80)


# --- the ladder ------------------------------------------------------------------------------------------------------


def _ladder(sources: Sources) -> None:
    chosen = shell.choice()
    if chosen is None or not chosen.ladder:
        return
    st.subheader(f"Ladder of {len(chosen.ladder)} runs")
    try:
        found = loading.ladder(chosen, sources)
    except ProfilerError as error:
        elements.failure(error)
        return
    elements.text(found.verdict, "because")
    elements.plot(plots_runs.ladder(found, palette()), "ladder_figure", plots_runs.ladder_described(found))
    elements.blocks(ladder_view.ladder_document(found).blocks[1:])


if __name__ == "__main__":
    page()
