"""Some kernels of both sides (attention, the grouped matmuls): headline figures, time per call, share of the peak.

Pure functions on a diff, like ``figures``. They count per step, whatever the diff is normalised by.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

from profiler.report import units
from profiler.report.html_kpis import Card
from profiler.report.kernels_diff import Pair, kernel_pairs
from profiler.report.wording import kernel_title, sides
from profiler.results import Diff, KernelRow, Summary

MOST_ROWS = 16
SAME_WORK = 0.005


def is_attention(row: KernelRow) -> bool:
    """Splash attention, or another attention kernel."""
    return (row.family or "").startswith(("splash", "attention"))


def is_grouped_matmul(row: KernelRow) -> bool:
    """The experts' matmuls: gmm forward, gmm dlhs, tgmm."""
    return (row.family or "").startswith(("gmm", "tgmm"))


def only(diff: Diff, keep: Callable[[KernelRow], bool]) -> Diff:
    """The diff with these kernels alone; everything else stays."""
    base, opt = (replace(side, kernels=tuple(filter(keep, side.kernels))) for _, side in sides(diff))
    return replace(diff, baseline=base, optimized=opt)


def cards(diff: Diff, title: str) -> list[Card]:
    """Time per step, share of the peak and calls of all kernels of the diff together.

    A longer time is not worse where a step does more work, so that no figure is called better or worse.
    """
    both = [side for _, side in sides(diff)]
    if not any(side.kernels for side in both):
        return []
    times = [sum(row.time_ps_per_step for row in side.kernels) for side in both]
    calls = [sum(row.calls_per_step for row in side.kernels) for side in both]
    base, opt = (_share_of_step(time, side) for time, side in zip(times, both, strict=True))
    scale, unit = units.time_scale(times), both[0].steps.unit
    estimated = " (est.)" if any(side.kind == "compiled" for side in both) else ""
    found = [
        Card(
            f"{title}, time per {unit}{estimated}",
            f"{scale.show(times[0])} {scale.unit}",
            f"{scale.show(times[1])} {scale.unit}",
            units.change(times[1] / times[0] if times[0] else None),
            note=f"{base} → {opt} of the {unit}",
        ),
        _speed(title, estimated, both),
        Card(
            f"{title}, calls per {unit}",
            units.number(calls[0]),
            units.number(calls[1]),
            units.fixed(calls[1] - calls[0], 0, sign=True) if calls[0] != calls[1] else "unchanged",
        ),
    ]
    return [card for card in found if card is not None]


def _share_of_step(time_ps: float, side: Summary) -> str:
    return units.percent(time_ps / side.steps.mean_ps if side.steps.mean_ps else None)


def _speed(title: str, estimated: str, both: Sequence[Summary]) -> Card | None:
    """FLOPs of all calls over their time, against the peak where that is known; None where no FLOPs are."""
    rates = [_rate(side.kernels) for side in both]
    shares = [
        rate / side.mfu_inputs.peak_tflops if rate and side.mfu_inputs.peak_tflops else None
        for rate, side in zip(rates, both, strict=True)
    ]
    if not any(rates):
        return None
    base, opt = shares
    if base is None and opt is None:
        ratio = rates[1] / rates[0] if rates[0] and rates[1] else None
        texts = [units.number(rate) for rate in rates]
        return Card(f"{title}, TFLOP/s{estimated}", texts[0], texts[1], units.change(ratio), note="the peak is unknown")
    change = f"{units.points(100 * (opt - base), 1)} points" if base is not None and opt is not None else units.UNKNOWN
    texts = [f"{units.number(rate)} TFLOP/s" for rate in rates if rate]
    name = f"{title}, share of the peak{estimated}"
    return Card(name, units.percent(base), units.percent(opt), change, note=" → ".join(texts))


def _rate(rows: Sequence[KernelRow]) -> float | None:
    """TFLOP/s over all calls; a sum with an unknown part is unknown."""
    time = sum(row.time_ps_per_step for row in rows)
    works = [row.calls_per_step * row.flops_per_call if row.flops_per_call else None for row in rows]
    known = [work for work in works if work is not None]
    return sum(known) / time if time and len(known) == len(works) else None


@dataclass(frozen=True, slots=True)
class CallRow:
    """One kernel in one phase; a side without it is None."""

    title: str
    phase: str | None
    baseline: KernelRow | None
    optimized: KernelRow | None

    @property
    def both(self) -> Pair:
        """Baseline, optimized."""
        return self.baseline, self.optimized

    @property
    def work(self) -> float | None:
        """FLOPs of a call, optimized / baseline; None where one is not known."""
        base, opt = (row.flops_per_call if row else None for row in self.both)
        return opt / base if base and opt else None


@dataclass(frozen=True, slots=True)
class CallsFigure:
    """Time per call and share of the peak, most time per step first; ``hidden`` rows are left out."""

    rows: tuple[CallRow, ...]
    hidden: int
    scale: units.Scale
    estimated: bool

    @property
    def has_shares(self) -> bool:
        """Whether any share of the peak is known."""
        return any(row.peak_fraction is not None for pair in self.rows for row in pair.both if row)

    @property
    def work(self) -> str | None:
        """What a reader must know to compare times: a call does another amount of work on the other side."""
        ratios = [row.work for row in self.rows if row.work is not None]
        if all(abs(ratio - 1) <= SAME_WORK for ratio in ratios):
            return None
        text = f"{units.number(min(ratios), 3)}×"
        if max(ratios) - min(ratios) > SAME_WORK:
            text += f" to {units.number(max(ratios), 3)}×"
        return f"A call of the optimized side does {text} the FLOPs: the share of the peak compares, the time does not."

    def text(self, row: KernelRow) -> str:
        """The time of a call with its unit."""
        return f"{self.scale.show(row.mean_time_ps)} {self.scale.unit}"

    def described(self) -> str:
        """The figure in words."""
        lines = []
        for row in self.rows:
            texts = [
                f"{title} {self.text(one)}" + ("" if share is None else f" ({units.percent(share, 0)} of the peak)")
                for title, one in zip(("baseline", "optimized"), row.both, strict=True)
                if one
                for share in (one.peak_fraction,)
            ]
            lines.append(f"{row.title}, {row.phase or 'no phase'}: {', '.join(texts)}")
        return "; ".join(lines)


def calls_figure(diff: Diff, most: int = MOST_ROWS) -> CallsFigure | None:
    """None where no kernel ran."""
    pairs = kernel_pairs(diff)
    rows = []
    for base, opt in pairs[:most]:
        first = base or opt
        if first is not None:
            rows.append(CallRow(kernel_title(first.kernel, first.family), first.phase, base, opt))
    if not rows:
        return None
    scale = units.time_scale(one.mean_time_ps for row in rows for one in row.both if one)
    estimated = any(side.kind == "compiled" for _, side in sides(diff))
    return CallsFigure(tuple(rows), len(pairs) - len(rows), scale, estimated)
