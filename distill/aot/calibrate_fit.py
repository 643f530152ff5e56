"""From measured ops to constants, with the model that estimates them.

Every estimate is linear in a constant or, for a rate, in its inverse. So ops that hang on the same constants are linear
equations in these: their solution with the least sum of absolute errors is what the recording says. It stands against a
few wild values, and counts a long op more than a short one, as the time of a step does.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

import numpy as np
from numpy.typing import NDArray

from distill.aot.calibrate_samples import Sample, without_cycles
from distill.aot.model_constants import Constant, Constants
from distill.aot.timing import Timer
from distill.aot.timing_traffic import traffic
from profiler.analysis.opfacts import INDEXED
from profiler.hlo import Instruction

_KERNEL = (
    "gmm_mxu_share",
    "splash_forward_cycles",
    "splash_backward_cycles",
    "kernel_hbm_share",
    "splash_partial_block",
    "splash_row",
    "step_overhead",
)
# What the ops of an estimate's source can tell. Constants of a block are solved for together, blocks one after another.
TELLS: Sequence[Mapping[str, tuple[str, ...]]] = (
    {"compiler cycles": ("compiler_cycles",)},
    {
        "kernel code": ("clock", *_KERNEL),
        "kernel bundles": ("clock", *_KERNEL),
        "kernel model": _KERNEL,  # here the clock cannot be told from the cycles
    },
    {"roofline": ("xla_hbm_share", "xla_peak_share")},
    {"sorting network": ("sort_cycles",)},
    {"link bytes": ("all_gather", "all_reduce", "permute", "collective_latency")},
    {"host link bytes": ("host_link",)},
    {"sparsecore bytes": ("sparsecore",)},
)
_RATES_WITHOUT_RANGE = frozenset({"compiler_cycles", "clock"})

CALLS = 3  # fewer say nothing
SIZES = 3  # fewer different ops have no spread; a range by percentiles would look certain
SHARE = 0.1  # an op tells a constant that makes up this much of its time
LOW, HIGH = 0.1, 0.9  # percentiles of the range
MODEL_ERROR = 0.05  # the equations are no better, however alike the calls are
TOLD = 0.5  # a constant is told if it is known this much better than before
UNKNOWN = 3 * MODEL_ERROR  # how well, at best, a default is taken to be known
WIDEST = 1.0  # of a range against its value, for constants without a range of their own
_NORMAL = 1.28  # standard deviations to these percentiles
_STEP = 0.01
_PASSES = 8  # the model has maxima and products: its slopes change with the constants
_SWEEPS = 100

Floats = NDArray[np.float64]


@dataclass(frozen=True, slots=True)
class Finding:
    """What a recording says about one constant.

    Attributes:
        default: before.
        measured: after; None where the recording cannot tell.
        ops, sizes, calls: that it rests on: instructions, different estimates among them, executions.
        reason: why the default stays, or what to know of the value; "" if there is nothing to say.
    """

    default: Constant
    measured: Constant | None
    ops: int
    sizes: int
    calls: int
    reason: str = ""


def calibrated(samples: Sequence[Sample], timer: Timer, source: str) -> dict[str, Finding]:
    """A finding for every constant that some op could tell, in the order of ``TELLS``.

    Args:
        samples: of a recording of the timer's chip.
        timer: with the constants to improve on.
        source: names the recording in the constants' sources.
    """
    stripped = {module: without_cycles(module) for module in {sample.instruction.module for sample in samples}}
    plain = [
        replace(sample, instruction=stripped[sample.instruction.module].instructions[sample.instruction.name])
        for sample in samples
    ]
    found: dict[str, Finding] = {}
    for block in TELLS:
        # Where the compiler knows the cycles of an op, its estimate does not hang on anything else.
        fit = _Fit(samples if "compiler cycles" in block else plain, timer, block)
        found |= fit.findings(source)
        timer = fit.timer
    return found


@dataclass
class _Fit:
    """The equations of one block: a row per op, a column per constant."""

    samples: Sequence[Sample]
    timer: Timer
    block: Mapping[str, tuple[str, ...]]
    refused: dict[str, str] = field(default_factory=dict)  # name → why its solution is not taken
    untold: dict[str, str] = field(default_factory=dict)  # name → why it was not solved for

    def __post_init__(self) -> None:
        told = [(each, self.block.get(_told(each.instruction, self.timer), ())) for each in self.samples]
        told = [(each, names) for each, names in told if names]
        self.samples, self.tells = [each for each, _ in told], [names for _, names in told]
        self.start = self.timer.constants
        self.names = [
            n for n in dict.fromkeys(n for names in self.block.values() for n in names) if n in self.start.table
        ]
        self.calls = np.array([each.calls for each in self.samples], np.float64)
        self.seconds = np.array([each.seconds for each in self.samples], np.float64)

    def findings(self, source: str) -> dict[str, Finding]:
        """Solves, leaves out what turns out not to be told, and solves again."""
        if not self.samples:
            return {}
        while True:
            ranges = self._solve()
            doubts = {name: why for name in ranges if (why := self._doubt(name, *ranges[name]))}
            if not doubts:
                break
            last = max(doubts, key=self.names.index)  # one at a time: without it the others may be certain
            self.refused[last] = doubts[last]
        estimates, shares = self._equations()
        found = {}
        for column, name in enumerate(self.names):
            rows = shares[:, column] > SHARE * estimates
            if not rows.any() and name not in self.refused:
                continue  # nothing in the recording hangs on it
            counts = int(rows.sum()), len(set(estimates[rows].tolist())), int(self.calls[rows].sum())
            default = self.start.table[name]
            if name not in ranges:
                found[name] = Finding(default, None, *counts, self.refused.get(name) or self.untold[name])
                continue
            value, fast, slow = ranges[name]
            low, high = sorted((default.fast, default.slow))
            reasons = ["outside the default's range"] if low < high and not low <= value <= high else []
            if counts[1] < SIZES and default.fast != default.slow:
                fast, slow = value * default.fast / default.value, value * default.slow / default.value
                reasons.append(f"{_count(counts[1], 'size')} only: the range keeps the default's width")
            text = f"measured on {source}, {_count(counts[0], 'op')}, {_count(counts[2], 'call')}"
            found[name] = Finding(default, Constant(value, fast, slow, default.unit, text), *counts, "; ".join(reasons))
        return found

    def _solve(self) -> dict[str, tuple[float, float, float]]:
        """(value, fast, slow) of every constant that is told; the timer then has the values."""
        self.timer, self.untold = replace(self.timer, constants=self.start), {}
        ranges: dict[str, tuple[float, float, float]] = {}
        for _ in range(_PASSES):
            estimates, shares = self._equations()
            columns, errors = self._told_apart(estimates, shares)
            if not columns:
                self.timer = replace(self.timer, constants=self.start)
                return {}
            matrix = shares[:, columns]
            rest = estimates - matrix.sum(axis=1)
            solution = _least_absolute(matrix * self.calls[:, None], (self.seconds - rest) * self.calls)
            ranges = {}
            for place, column in enumerate(columns):
                own, value = matrix[:, place], float(solution[place])
                rows = own > SHARE * estimates
                others = rest + matrix @ solution - own * value
                implied, weights = (self.seconds - others)[rows] / own[rows], (own * self.calls)[rows]
                low, high = (_quantile(implied, weights, share) for share in (LOW, HIGH))
                error = errors[place] * _NORMAL
                ranges[self.names[column]] = self._constant(
                    self.names[column], value, min(low, value * (1 - error)), max(high, value * (1 + error))
                )
            table = dict(self.start.table)
            for name, (value, *_) in ranges.items():
                if value > 0 and math.isfinite(value):
                    table[name] = replace(table[name], value=value)
            self.timer = replace(self.timer, constants=Constants(table))
            if np.allclose(solution, 1, atol=1e-4):
                break
        return ranges

    def _equations(self) -> tuple[Floats, Floats]:
        """The estimates, and what of each hangs on each constant, in seconds."""
        estimates = np.array([self.timer.estimate(each.instruction).duration_ps for each in self.samples]) / 1e12
        shares = np.zeros((len(self.samples), len(self.names)))
        table = self.timer.constants.table
        for column, name in enumerate(self.names):
            factor = 1 / (1 + _STEP) if self._is_rate(name) else 1 + _STEP
            moved = replace(table[name], value=table[name].value * factor)
            timer = replace(self.timer, constants=Constants({**table, name: moved}))
            for row, (each, tells) in enumerate(zip(self.samples, self.tells, strict=True)):
                if name in tells:
                    estimate = timer.estimate(each.instruction).duration_ps / 1e12
                    shares[row, column] = max(0.0, (estimate - estimates[row]) / _STEP)
        return estimates, shares

    def _told_apart(self, estimates: Floats, shares: Floats) -> tuple[list[int], list[float]]:
        """The columns that the ops tell, and how certainly: a standard deviation, against the value.

        As in a Bayesian regression whose prior is the default range: what a constant can be, given that all the others
        are only known so well. Ops with the same estimate are one equation, since they share the model's error.
        """
        sizes = np.unique(estimates, return_index=True)[1]
        slopes = shares[sizes] / estimates[sizes, None]
        prior = np.array([max(UNKNOWN, self._usual(name) / 2) for name in self.names])
        after = np.sqrt(np.diag(np.linalg.inv(slopes.T @ slopes / MODEL_ERROR**2 + np.diag(prior**-2))))
        columns = []
        for column, name in enumerate(self.names):
            rows = shares[:, column] > SHARE * estimates
            if self.calls[rows].sum() < CALLS:
                self.untold[name] = f"fewer than {CALLS} calls"
            elif after[column] > TOLD * prior[column]:
                self.untold[name] = "its ops hang on other constants as much"
            elif name not in self.refused:
                columns.append(column)
        return columns, [float(after[column]) for column in columns]

    def _constant(self, name: str, value: float, low: float, high: float) -> tuple[float, float, float]:
        """Multiples of the time that hangs on a constant, as (value, fast, slow) of the constant itself."""
        now = self.timer.constants.table[name].value
        if self._is_rate(name):
            value, low, high = (now / each if each > 0 else math.inf for each in (value, low, high))
            return value, low, high
        return now * value, now * max(0.0, low), now * high

    def _doubt(self, name: str, value: float, fast: float, slow: float) -> str:
        """Why a solution is not taken; "" if it is."""
        if not (value > 0 and math.isfinite(value)):
            return "its ops take less time than they would without it"
        if self._width(name, value, fast, slow) > max(self._usual(name), 2 * UNKNOWN):
            return f"its ops disagree: {LOW:.0%} to {HIGH:.0%} of their time say {fast:.3g} to {slow:.3g}"
        return ""

    def _usual(self, name: str) -> float:
        default = self.start.table[name]
        return self._width(name, default.value, default.fast, default.slow) or WIDEST

    def _width(self, name: str, value: float, fast: float, slow: float) -> float:
        """A range against its value, in time."""
        return value / slow - value / fast if self._is_rate(name) else (slow - fast) / value

    def _is_rate(self, name: str) -> bool:
        default = self.start.table[name]
        return default.fast > default.slow or name in _RATES_WITHOUT_RANGE


def _told(instruction: Instruction, timer: Timer) -> str:
    """The source of an op's estimate, "" for ops that say nothing about it."""
    estimate = timer.estimate(instruction)
    source = estimate.source if estimate.duration_ps else ""
    if source != "roofline":
        return source
    inside = instruction.fused_opcodes | {instruction.opcode}
    moved = traffic(instruction)
    # Gathers and their like are bound by neither bytes nor FLOPs; VMEM has a bandwidth of its own.
    regular = inside.isdisjoint(INDEXED | {"custom-call"}) and moved.hbm >= moved.vmem
    return source if regular else ""


def _least_absolute(matrix: Floats, target: Floats) -> Floats:
    """The solution with the least sum of absolute errors, by iteratively reweighted least squares."""
    scale = float(np.abs(target).max()) or 1.0
    weights = np.ones(len(target))
    solution = np.zeros(matrix.shape[1])
    for _ in range(_SWEEPS):
        before = solution
        norms = np.linalg.norm(matrix * weights[:, None], axis=0)
        solution = np.linalg.lstsq(matrix * weights[:, None] / norms, target * weights, rcond=None)[0] / norms
        if np.allclose(solution, before, rtol=1e-9, atol=0):
            break
        weights = 1 / np.sqrt(np.maximum(np.abs(matrix @ solution - target), 1e-9 * scale))
    return np.asarray(solution)


def _quantile(values: Floats, weights: Floats, share: float) -> float:
    """The value below which this share of the weight lies."""
    if not len(values):
        return math.nan
    order = np.argsort(values)
    reached = np.cumsum(weights[order])
    return float(values[order][np.searchsorted(reached, share * reached[-1])])


def _count(number: int, what: str) -> str:
    return f"{number:,} {what}{'' if number == 1 else 's'}"
