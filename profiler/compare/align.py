"""Matches ops across two compiles.

Instruction names are not stable: fusions are renumbered, module hashes and tile sizes change. Ops are matched by
evidence, the strongest first: program role, phase and name stack, what kind of op it is, shapes, source line; then by
the scope that it serves and its purpose; at last by family. Ops are matched one for one: where one side has more
instructions of a kind, the rest stays for weaker evidence, and what nothing explains is added or removed.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Any

import polars as pl

from profiler.analysis.summary import Measured
from profiler.compare.attribute import split_columns

# Levels of evidence: what two ops must share, what that is called, and how sure a match on it is.
LEVELS: tuple[tuple[tuple[str, ...], str, float], ...] = (
    (("role", "phase", "stack", "kind", "shape", "source"), "name stack, kind, shape and source", 1.0),
    (("role", "phase", "stack", "kind", "shape"), "name stack, kind and shape", 0.95),
    (("role", "phase", "stack", "kind"), "name stack and kind", 0.9),
    (("role", "phase", "stack", "family"), "name stack and family", 0.85),
    (("role", "phase", "scope", "family", "shape"), "scope, family and shape", 0.8),
    (("role", "phase", "scope", "purpose"), "scope and purpose", 0.7),
    (("phase", "kernel"), "kernel", 0.65),
    (("role", "phase", "family", "base", "kind", "shape"), "instruction name, kind and shape", 0.6),
    (("role", "phase", "family", "shape"), "family and shape", 0.5),
    (("role", "phase", "family", "base"), "family and instruction name", 0.45),
    (("role", "phase", "work"), "purpose", 0.4),
)
SAME_CONFIDENCE = 0.95
# The last levels know little: they hold only where both sides run about as often.
CALLS_MUST_AGREE_BELOW = 0.6
CALLS_TOLERANCE = 0.25

_PURPOSES = {
    "dense matmul": "matmul",
    "quantized matmul": "matmul",
    "gmm forward": "grouped matmul",
    "gmm dlhs": "grouped matmul",
    "tgmm": "grouped matmul",
    "splash forward": "attention",
    "attention": "attention",
    "splash backward (dq)": "attention backward",
    "splash backward (dkv)": "attention backward",
    "splash backward (fused)": "attention backward",
}
_REMAT_SEGMENTS = frozenset({"checkpoint", "rematted_computation", "remat", "closed_call"})
FACTS = (
    "program",
    "family",
    "phase",
    "opcode",
    "category",
    "kernel",
    "name_stack",
    "near_stack",
    "shape",
    "source",
)
_NUMBER = re.compile(r"\d+")
_TRAILING = re.compile(r"([._]\d+|\.clone|\.remat\d*|\.kd)+$")
_LAYOUT = re.compile(r"\{[^{}]*\}")
# Segments that JAX and the kernels add; they say how something was called, not what part of the model it serves.
_WRAPPER = re.compile(
    r"^(jit\(.*\)|pjit|shard_map|pallas_call|vmap\(.*\)|while|body|cond|closed_call|custom_(jvp|vjp)_call.*|.*->.*|)$"
)

OPS_SCHEMA = {
    "baseline_op": pl.String,
    "optimized_op": pl.String,
    "family": pl.String,
    "phase": pl.String,
    "match": pl.String,
    "confidence": pl.Float64,
    "evidence": pl.String,
    "baseline_time_ps": pl.Float64,
    "optimized_time_ps": pl.Float64,
    "baseline_calls": pl.Float64,
    "optimized_calls": pl.Float64,
    "baseline_mean_ps": pl.Float64,
    "optimized_mean_ps": pl.Float64,
    "baseline_instructions": pl.Int64,
    "optimized_instructions": pl.Int64,
    "baseline_family": pl.String,
    "program": pl.String,
    "name_stack": pl.String,
    "source": pl.String,
}


@dataclass(slots=True)
class Op:
    """One op of one side, with what it can be matched by. ``time_ps``, ``calls`` and ``span_ps`` per device, step.

    ``op_ids`` are its rows in Trace.ops, one per host.
    """

    name: str
    time_ps: float
    calls: float
    span_ps: float
    keys: dict[str, Any]
    facts: dict[str, Any]
    op_ids: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Members:
    """The ops of both sides that a row holds, as ``op_id`` of each side's Trace.ops; the most time first."""

    baseline: tuple[int, ...]
    optimized: tuple[int, ...]


@dataclass(frozen=True)
class Alignment:
    """Aligned rows (see results.Diff.ops), the ops of each row, and the shares of op time that were matched."""

    ops: pl.DataFrame
    matched_fraction: float
    baseline_fraction: float
    optimized_fraction: float
    members: tuple[Members, ...] = ()


@dataclass
class _Row:
    match: str
    confidence: float
    evidence: str
    baseline: list[Op] = field(default_factory=list)
    optimized: list[Op] = field(default_factory=list)


def align(baseline: Measured, optimized: Measured, scale: float) -> Alignment:
    """Matches the ops of two sides; optimized times are multiplied by ``scale`` (see attribute.Work)."""
    left, right = described(baseline), described(optimized, scale)
    total_left, total_right = _time(left), _time(right)
    rows: list[_Row] = []
    for names, evidence, confidence in LEVELS:
        matched, left, right = _match(left, right, names, evidence, confidence)
        rows += matched
    matched_left = sum(_time(row.baseline) for row in rows)
    matched_right = sum(_time(row.optimized) for row in rows)
    rows += _unmatched(left, "removed") + _unmatched(right, "added")
    frame = split_columns(pl.DataFrame([_record(row) for row in rows], schema=OPS_SCHEMA, orient="row"))
    frame = frame.with_row_index("row").sort(pl.col("delta_time_ps").abs(), descending=True, maintain_order=True)
    order = frame["row"].to_list()

    def share(part: float, whole: float) -> float:
        return part / whole if whole else 1.0

    return Alignment(
        frame.drop("row"),
        share(matched_left + matched_right, total_left + total_right),
        share(matched_left, total_left),
        share(matched_right, total_right),
        tuple(Members(_op_ids(rows[index].baseline), _op_ids(rows[index].optimized)) for index in order),
    )


def described(measured: Measured, scale: float = 1.0) -> list[Op]:
    """The ops of a side, those of equal name and program on several hosts added up, in a stable order."""
    table = measured.times.ops.join(measured.trace.ops, on="op_id", how="left", maintain_order="left")
    step_program = dominant_program(table)
    merged = (
        table.group_by("program_id", "op", "hlo", maintain_order=True)
        .agg(
            pl.col("time_ps").sum(),
            pl.col("calls").sum(),
            pl.col("span_ps").sum(),
            *(pl.col(name).first() for name in FACTS),
            pl.col("op_id").unique(maintain_order=True).alias("op_ids"),
        )
        .filter((pl.col("time_ps") > 0) | (pl.col("calls") > 0))
    )
    found = []
    for facts in merged.iter_rows(named=True):
        near = facts["near_stack"] and f"{facts['near_stack']}/"
        stack, base = stable_stack(facts["name_stack"] or near), stable_name(facts["op"])
        kind = facts["kernel"] or facts["opcode"] or facts["category"]
        keys = {
            "role": "main" if facts["program_id"] == step_program else stable_name(facts["program"] or ""),
            "phase": facts["phase"] or "",
            "family": facts["family"],
            "purpose": _PURPOSES.get(facts["family"], facts["family"]),
            "work": _PURPOSES.get(facts["family"], ""),
            # Without a name stack the instruction's own name is all there is.
            "stack": stack or f"op {base}",
            "scope": scope(facts["name_stack"] or near),
            "kind": kind or base,
            "kernel": facts["kernel"] or "",
            "shape": stable_shape(facts["shape"]),
            "source": facts["source"] or "",
            "base": base,
        }
        times = facts["time_ps"] * scale, facts["calls"], facts["span_ps"] * scale
        found.append(Op(facts["op"], *times, keys, facts, tuple(facts["op_ids"])))
    return found


def dominant_program(table: pl.DataFrame) -> str | None:
    """The id of the program that takes the most time: the step itself."""
    totals = (
        table.filter(pl.col("program_id").is_not_null())
        .group_by("program_id")
        .agg(pl.col("time_ps").sum())
        .sort(["time_ps", "program_id"], descending=[True, False])
    )
    return totals["program_id"][0] if totals.height else None


@lru_cache(maxsize=1 << 16)
def stable_name(name: str) -> str:
    """An instruction, kernel or program name without what changes between compiles: suffixes and all numbers."""
    return _NUMBER.sub("#", _TRAILING.sub("", name))


@lru_cache(maxsize=1 << 16)
def stable_stack(stack: str | None) -> str:
    """A name stack without numbers (layer indices, tile sizes) and without what rematerialisation alone puts there.

    Of several joined stacks the first. The phase tells a re-run; a bare ``checkpoint`` is in every backward op of a
    rematerialised layer and says nothing.
    """
    segments = _NUMBER.sub("#", (stack or "").split(";", 1)[0]).split("/")
    return "/".join(segment for segment in segments if segment not in _REMAT_SEGMENTS)


@lru_cache(maxsize=1 << 16)
def scope(stack: str | None) -> str:
    """The part of the model that a name stack names: its segments without wrappers, kernel names and the primitive."""
    segments = stable_stack(stack).split("/")
    segments = segments[:-2] if segments[-1] == "pallas_call" else segments[:-1]
    return "/".join(segment for segment in segments if not _WRAPPER.match(segment))


@lru_cache(maxsize=1 << 16)
def stable_shape(shape: str | None) -> str:
    """A shape without layouts, tilings and memory spaces."""
    return _LAYOUT.sub("", shape or "").replace(" ", "")


def _match(
    left: list[Op], right: list[Op], names: tuple[str, ...], evidence: str, confidence: float
) -> tuple[list[_Row], list[Op], list[Op]]:
    """One level: (matched rows, what is left of each side)."""
    groups_left, loose_left = _grouped(left, names)
    groups_right, loose_right = _grouped(right, names)
    rows: list[_Row] = []
    for key, ours in groups_left.items():
        theirs = groups_right.pop(key, None)
        if theirs is None:
            loose_left += ours
            continue
        ours, rest_left, theirs, rest_right = _one_for_one(ours, theirs)
        calls_left, calls_right = _calls(ours), _calls(theirs)
        agree = abs(calls_left - calls_right) <= CALLS_TOLERANCE * max(calls_left, calls_right)
        if confidence < CALLS_MUST_AGREE_BELOW and not agree:
            loose_left += ours + rest_left
            loose_right += theirs + rest_right
            continue
        loose_left += rest_left
        loose_right += rest_right
        rows.append(_Row(_kind_of_match(ours, theirs, confidence), confidence, evidence, ours, theirs))
    for theirs in groups_right.values():
        loose_right += theirs
    return rows, loose_left, loose_right


def _grouped(ops: list[Op], names: tuple[str, ...]) -> tuple[dict[tuple[Any, ...], list[Op]], list[Op]]:
    """Ops by key, and those for which the distinguishing part of the key is empty: no evidence at all."""
    groups: dict[tuple[Any, ...], list[Op]] = {}
    loose: list[Op] = []
    telling = [name for name in names if name in ("stack", "scope", "shape", "kernel", "base", "work")][:1]
    for op in ops:
        if all(op.keys[name] for name in telling):
            groups.setdefault(tuple(op.keys[name] for name in names), []).append(op)
        else:
            loose.append(op)
    return groups, loose


def _one_for_one(left: list[Op], right: list[Op]) -> tuple[list[Op], list[Op], list[Op], list[Op]]:
    """Cuts the larger side down to as many calls as the smaller has; whole instructions, at least one."""
    target = min(_calls(left), _calls(right))

    def cut(ops: list[Op]) -> tuple[list[Op], list[Op]]:
        if _calls(ops) <= target * (1 + 1e-9):
            return ops, []
        kept, count = 0, 0.0
        for op in ops:
            if kept and count + op.calls > target * (1 + 1e-9):
                break
            kept, count = kept + 1, count + op.calls
        return ops[:kept], ops[kept:]

    (ours, rest_left), (theirs, rest_right) = cut(left), cut(right)
    return ours, rest_left, theirs, rest_right


def _kind_of_match(left: list[Op], right: list[Op], confidence: float) -> str:
    families = {op.keys["family"] for op in left}, {op.keys["family"] for op in right}
    # Replaced is one kernel in another's place; the same arithmetic in a fusion of another make-up has merely changed.
    if families[0].isdisjoint(families[1]) and families[0] | families[1] <= set(_PURPOSES):
        return "replaced"
    return "same" if confidence >= SAME_CONFIDENCE and _named(left) == _named(right) else "changed"


def _named(ops: Iterable[Op]) -> set[str]:
    return {_TRAILING.sub("", op.name) for op in ops}


def _unmatched(ops: list[Op], match: str) -> list[_Row]:
    groups, loose = _grouped(ops, ("role", "phase", "stack", "family", "kind"))
    rows = []
    for group in [*groups.values(), *([op] for op in loose)]:
        row = _Row(match, 0.0, "nothing like it on the other side")
        (row.baseline if match == "removed" else row.optimized).extend(group)
        rows.append(row)
    return rows


def _op_ids(ops: list[Op]) -> tuple[int, ...]:
    return tuple(op_id for op in sorted(ops, key=lambda op: -op.time_ps) for op_id in op.op_ids)


def _time(ops: Iterable[Op]) -> float:
    return sum(op.time_ps for op in ops)


def _calls(ops: Iterable[Op]) -> float:
    return sum(op.calls for op in ops)


def _mean_span(ops: list[Op]) -> float | None:
    """How long a call takes from start to end, ps; None without calls."""
    calls = _calls(ops)
    return sum(op.span_ps for op in ops) / calls if calls else None


def _record(row: _Row) -> dict[str, Any]:
    main = max(row.optimized or row.baseline, key=lambda op: op.time_ps)
    first = max(row.baseline, key=lambda op: op.time_ps) if row.baseline else main

    def label(ops: list[Op]) -> str | None:
        return max(ops, key=lambda op: op.time_ps).name if ops else None

    return {
        "baseline_op": label(row.baseline),
        "optimized_op": label(row.optimized),
        "family": main.keys["family"],
        "phase": main.facts["phase"],
        "match": row.match,
        "confidence": row.confidence,
        "evidence": row.evidence,
        "baseline_time_ps": float(_time(row.baseline)),
        "optimized_time_ps": float(_time(row.optimized)),
        "baseline_calls": float(_calls(row.baseline)),
        "optimized_calls": float(_calls(row.optimized)),
        "baseline_mean_ps": _mean_span(row.baseline),
        "optimized_mean_ps": _mean_span(row.optimized),
        "baseline_instructions": len(row.baseline),
        "optimized_instructions": len(row.optimized),
        "baseline_family": first.keys["family"],
        "program": main.facts["program"],
        "name_stack": main.facts["name_stack"],
        "source": main.facts["source"],
    }
