"""The rows of a diff's ops as a table to look through, and one row of them in full, as people read it."""

from __future__ import annotations

from collections.abc import Callable

import polars as pl

from profiler.compare.align import stable_name
from profiler.report import units
from profiler.report.model import DIM, Column, Table, delta, label
from profiler.report.wording import basis, sides
from profiler.results import Diff
from profiler.results_ops import CallSummary, OpDetail, OpFacts, OpTotals

NAME_WIDTH = 160  # of a cell; the whole text is in the detail
MOST_NAMED = 12
SMALL = 0.005  # of the change
STATS = (
    ("fastest", "min_ps"),
    ("10th percentile", "p10_ps"),
    ("median", "median_ps"),
    ("mean", "mean_ps"),
    ("90th percentile", "p90_ps"),
    ("slowest", "max_ps"),
)


def listed(rows: pl.DataFrame, diff: Diff) -> tuple[pl.DataFrame, dict[str, str]]:
    """Rows of ``op_rows`` as columns to look at, and the title of each column.

    Times are in one unit, which the titles name; text is clean and short. ``row`` is the row's number in the diff.
    """
    time = units.time_scale(_largest(diff.ops, "baseline_time_ps", "optimized_time_ps"))
    call = units.time_scale(_typical(diff.ops, "baseline_mean_ps", "optimized_mean_ps"))
    base, opt = (" (est.)" if side.kind == "compiled" else "" for _, side in sides(diff))
    frame = rows.select(
        "row",
        op=pl.struct("baseline_op", "optimized_op").map_elements(_both, return_dtype=pl.String),
        family="family",
        phase=pl.col("phase").fill_null("–"),
        match="match",
        delta=pl.col("delta_time_ps") / time.divisor,
        base=pl.col("baseline_time_ps") / time.divisor,
        opt=pl.col("optimized_time_ps") / time.divisor,
        wasted=pl.col("wasted_time_ps") / time.divisor,
        base_calls="baseline_calls",
        opt_calls="optimized_calls",
        base_mean=pl.col("baseline_mean_ps") / call.divisor,
        opt_mean=pl.col("optimized_mean_ps") / call.divisor,
        program=_text(pl.col("program").fill_null("–")),
        scopes=_text(pl.col("name_stack").fill_null("–")),
        source=_text(pl.col("source").fill_null("–")),
    )
    return frame, {
        "op": "op",
        "family": "family",
        "phase": "phase",
        "match": "match",
        "delta": f"Δ {time.unit}{base or opt}",
        "base": f"baseline {time.unit}{base}",
        "opt": f"optimized {time.unit}{opt}",
        "wasted": f"wasted {time.unit}{opt}",
        "base_calls": "calls, baseline",
        "opt_calls": "calls, optimized",
        "base_mean": f"a call, baseline {call.unit}{base}",
        "opt_mean": f"a call, optimized {call.unit}{opt}",
        "program": "program",
        "scopes": "scopes",
        "source": "source",
    }


def _largest(ops: pl.DataFrame, *names: str) -> list[float]:
    return [float(ops[name].abs().max() or 0) for name in names] if ops.height else []  # type: ignore[arg-type]


def _typical(ops: pl.DataFrame, *names: str) -> list[float]:
    return [float(ops[name].median() or 0) for name in names]  # type: ignore[arg-type]


def _both(names: dict[str, str | None]) -> str:
    """The name of a row: both sides' with an arrow, unless the compiler has merely numbered them anew."""
    base, opt = names["baseline_op"], names["optimized_op"]
    if base and opt and stable_name(base) != stable_name(opt):
        half = NAME_WIDTH // 2
        return f"{units.shorten(base, half)} → {units.shorten(opt, half)}"
    return units.shorten(opt or base or "–", NAME_WIDTH)


def _text(column: pl.Expr) -> pl.Expr:
    return column.map_elements(lambda text: units.shorten(text, NAME_WIDTH), return_dtype=pl.String)


def totals_text(found: OpTotals, of: int, diff: Diff) -> str:
    """What the rows that are shown add up to, in one line."""
    rows = f"All {units.grouped(of)}" if found.rows == of else f"{units.grouped(found.rows)} of {units.grouped(of)}"
    if not found.rows:
        return f"{rows} rows"
    scale = units.time_scale((found.baseline_time_ps, found.optimized_time_ps))
    est = ", est." if "compiled" in (diff.baseline.kind, diff.optimized.kind) else ""
    text = f"{rows} rows: {units.duration(found.baseline_time_ps)} → {units.duration(found.optimized_time_ps)} "
    text += f"({scale.delta(found.delta_time_ps)} {scale.unit}{est})"
    if found.share_of_change is not None:
        text += f", {units.percent(found.share_of_change)} of the change of the {diff.baseline.steps.unit}"
        if found.rows == of and abs(found.share_of_change - 1) > SMALL:
            text += "; the rest is idle time"
    if found.wasted_time_ps is not None:
        text += f"; {units.duration(found.wasted_time_ps)} beyond the roof"
    return text


def basis_text(diff: Diff) -> str:
    """What the times of the table are."""
    return (
        f"Exclusive time, {basis(diff)}. Wasted is what the optimized side's calls take beyond the chip's roof, from "
        "start to end; n/a where no roof is known."
    )


def title(detail: OpDetail) -> str:
    """What the row is called: the op that takes the most time, of both sides where they differ."""
    names = [side.instructions[0] for side in (detail.baseline, detail.optimized) if side]
    return units.shorten(" → ".join(dict.fromkeys(names)), NAME_WIDTH)


def matched(detail: OpDetail) -> str:
    """How sure it is that both sides of a row are the same op, and by what."""
    if detail.baseline is None:
        return "Added: nothing like it in the baseline."
    if detail.optimized is None:
        return "Removed: nothing like it on the optimized side."
    words = {"same": "The same", "changed": "Changed", "replaced": "Replaced"}[detail.match]
    return f"{words}: matched by {detail.evidence}, confidence {units.percent(detail.confidence, 0)}."


def facts(detail: OpDetail) -> list[tuple[str, str, str]]:
    """(what it is, the baseline's, the optimized side's); a side without the op has dashes."""

    def both(title: str, show: Callable[[OpFacts], str]) -> tuple[str, str, str]:
        base, opt = (show(side) if side else "–" for side in (detail.baseline, detail.optimized))
        return title, base, opt

    est = " (est.)" if "compiled" in (detail.baseline_kind, detail.optimized_kind) else ""
    return [
        both("instructions", _instructions),
        both("program", lambda side: ", ".join(side.programs) or units.UNKNOWN),
        both("family, phase", lambda side: " · ".join(filter(None, (side.family, side.phase)))),
        both("kind", lambda side: side.kernel or side.category or side.opcode or units.UNKNOWN),
        both("shape", lambda side: side.shape or units.UNKNOWN),
        both("source", lambda side: side.source or units.UNKNOWN),
        both("scopes", _scopes),
        both("FLOPs of a call", lambda side: "0" if side.flops == 0 else units.flops(side.flops)),
        both("bytes of a call", lambda side: units.size(side.bytes_accessed or None)),
        both("calls", lambda side: units.number(side.calls_per_step)),
        both(f"exclusive time{est}", lambda side: units.duration(side.time_ps_per_step)),
    ]


def _instructions(side: OpFacts) -> str:
    if side.instruction_count == 1:
        return side.instructions[0]
    named = ", ".join(side.instructions[:MOST_NAMED])
    more = side.instruction_count - min(len(side.instructions), MOST_NAMED)
    return f"{side.instruction_count}: {named}{f' and {more} more' if more > 0 else ''}"


def _scopes(side: OpFacts) -> str:
    if not side.name_stack:
        return units.UNKNOWN
    return f"{side.name_stack}{' (of its neighbour, it has none)' if side.name_stack_is_near else ''}"


def hlo_caption(detail: OpDetail) -> str:
    """Where the HLO text of both sides comes from, and of which instruction it is."""
    found = [side for side in (detail.baseline, detail.optimized) if side and side.hlo_text]
    if not found:
        return ""
    words = {"recording": "as the recordings spell it", "program": "written out of the programs in the recordings"}
    source = " and ".join(dict.fromkeys(words[side.hlo_source or "program"] for side in found))
    if any(side.hlo_source == "recording" and "\n" in (side.hlo_text or "") for side in found):
        source += ", with what it calls out of their programs"
    several = any(side.instruction_count > 1 for side in found)
    return (
        f"Of the instruction that takes the most time, {source}." if several else f"{source[:1].upper()}{source[1:]}."
    )


def calls_table(detail: OpDetail) -> Table:
    """How long calls take, both sides beside each other; no rows where neither side has calls."""
    base, opt = (side.calls if side else None for side in (detail.baseline, detail.optimized))
    known = [each for each in (base, opt) if each]
    scale = units.time_scale(getattr(each, name) for each in known for _, name in STATS)
    titles = [
        f"{title} {scale.unit}{' (est.)' if kind == 'compiled' else ''}"
        for title, kind in (("baseline", detail.baseline_kind), ("optimized", detail.optimized_kind))
    ]

    def cell(side: CallSummary | None, name: str) -> str:
        return scale.show(getattr(side, name)) if side else "–"

    rows = []
    for title, name in STATS if known else ():
        change = None if base is None or opt is None else getattr(opt, name) - getattr(base, name)
        signed = label("–", DIM) if change is None else delta(scale.delta(change), change)
        rows.append((label(title), label(cell(base, name)), label(cell(opt, name)), signed))
    counts = [units.grouped(each.count) if each else "–" for each in (base, opt)]
    return Table(
        "Time of a call",
        (Column("", numeric=False), *map(Column, titles), Column(f"Δ {scale.unit}")),
        tuple(rows),
        total=(label("calls recorded"), *map(label, counts), label("")) if rows else None,
        caption=_scaled(detail),
    )


def _scaled(detail: OpDetail) -> str:
    text = "from start to end, in the steady steps of all devices"
    if detail.scale != 1:
        text += (
            f"; the optimized side's times are multiplied by {units.number(detail.scale)}, for the work of one "
            "baseline step"
        )
    return text


def without_calls(detail: OpDetail) -> str | None:
    """Why there is no distribution to draw; None where there is one."""
    found = [side.histogram for side in (detail.baseline, detail.optimized) if side and side.histogram]
    if not found:
        return "Nothing here is a call of its own: it is the half of an asynchronous op that waits."
    summaries = [side.calls for side in (detail.baseline, detail.optimized) if side and side.calls]
    if len(found[0].counts) == 1 and all(each.min_ps == each.max_ps for each in summaries):
        return f"Every call takes {units.duration(summaries[0].mean_ps)}."
    return None
