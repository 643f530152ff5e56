"""What a finding is told by: how often, how long, which ops, how surely."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import polars as pl

from profiler.analysis.summary import Measured
from profiler.compare.align import Alignment
from profiler.compare.effects import Group, Part, Per
from profiler.compare.phrases import arrow, calls, signed
from profiler.compare.price import Price
from profiler.results import Contribution, Delta, Finding
from profiler.runinfo import fact

NEGLIGIBLE = 1e-3  # of a change: a part below this is rounding, not a part
MOST_OPS = 3
ALIKE, DIFFERENT = "alike", "different"
FORWARD = ("forward", "student forward")


@dataclass(frozen=True)
class Cause:
    """One cause of the change: its name in the verdict, and the finding that explains it."""

    label: str
    finding: Finding


@dataclass(frozen=True)
class Context:
    """What all findings are told by.

    Attributes:
        groups, parts: the knobs that differ and what each moves.
        price: what HBM says.
        per: what counts and times are per.
        reference_ps: a step's device time.
        noise_ps: half the interval of the step's change; None where the noise is unknown.
        points_per_ps: MFU points per ps saved; None where the MFU delta is not split.
        layers: of the model, where the run says so.
        estimates: ALIKE or DIFFERENT, how the times of two compiled profiles were made; None where a time is recorded.
    """

    alignment: Alignment
    groups: Sequence[Group]
    parts: Sequence[Part]
    price: Price
    per: Per
    reference_ps: float
    noise_ps: float | None
    points_per_ps: float | None
    layers: float | None = None
    estimates: str | None = None

    def sure(self, confidence: str, counted: bool = False) -> str:
        """How sure a finding can be where times are estimates: the compiler's counts are exact, its times are not."""
        if self.estimates is None or confidence == "low":
            return confidence
        if self.estimates == DIFFERENT:
            return "medium" if counted else "low"
        return confidence if counted else "medium"


def noise_of(delta: Delta) -> float | None:
    """How far the whole step's change is uncertain, ps."""
    return None if delta.interval is None else (delta.interval[1] - delta.interval[0]) / 2 * delta.baseline_time_ps


def layers(side: Measured) -> float | None:
    """Layers of the model, where the run says so."""
    return fact(side.trace, "layers")


def phases(members: Sequence[Contribution]) -> str:
    """ " (teacher, re-run)"; nothing where no phase can be told."""
    phases = dict.fromkeys(each.phase for each in members)
    return f" ({', '.join(phase or 'other' for phase in phases)})" if any(phases) else ""


def halved(each: Contribution, contributions: Sequence[Contribution], context: Context) -> list[str]:
    """How often the re-run kernel runs with its forward pass: what "halved" means."""
    forward = [other for other in contributions if other.family == each.family and other.phase in FORWARD]
    if not forward or any(other.baseline_calls is None or other.optimized_calls is None for other in forward):
        return []
    before = (each.baseline_calls or 0.0) + sum(other.baseline_calls or 0.0 for other in forward)
    after = (each.optimized_calls or 0.0) + sum(other.optimized_calls or 0.0 for other in forward)
    text = f"with the forward pass {arrow(calls(before), calls(after))} calls per {context.per.unit}"
    if before and abs(after / before - 0.5) < 0.005:
        text += ", half as many"
    if context.layers:
        text += f"; per layer {arrow(calls(before / context.layers), calls(after / context.layers))}"
    return [text]


def counts(members: Sequence[Contribution], context: Context) -> list[str]:
    """How often the members run, and what of their change comes from that and what from the time per call."""
    counted = [each for each in members if each.baseline_calls is not None and each.optimized_calls is not None]
    if not counted:
        return []
    before, after = (sum(getattr(each, f"{side}_calls") for each in counted) for side in ("baseline", "optimized"))
    return [f"calls {arrow(calls(before), calls(after))} per {context.per.unit}", *split_text(members)]


def split_text(members: Sequence[Contribution]) -> list[str]:
    """What of a change comes from how often, and what from how long; nothing where it is one of them."""
    by_calls, by_time = sum(e.calls_time_ps for e in members), sum(e.per_call_time_ps for e in members)
    if min(abs(by_calls), abs(by_time)) <= NEGLIGIBLE * abs(by_calls + by_time):
        return []
    own, per_call = signed(by_calls, by_time)
    return [f"{own} from the number of calls, {per_call} from the time per call"]


def own_test(members: Sequence[Contribution]) -> bool | None:
    """Whether what makes most of a cause is more than the noise of its own times."""
    return max(members, key=lambda each: abs(each.time_ps)).significant


def confidence_of(time: float, noise: float | None, match: float = 1.0, own: bool | None = None) -> str:
    """How sure a finding is; docs/matching.md.

    "high" needs a change of more than the uncertainty of the whole step's change, and sure matches; "low" is one within
    that uncertainty; "medium" is the rest, and all where the noise is unknown. ``own``: what the test of its own times
    says, which is finer than that of the whole step.
    """
    if own is not None:
        return "low" if not own else "high" if match >= 0.7 else "medium"
    if noise is None:
        return "medium" if match >= 0.6 else "low"
    if abs(time) <= noise:
        return "low"
    return "high" if match >= 0.7 else "medium"


def ops_texts(members: Sequence[Contribution], alignment: Alignment) -> list[str]:
    """The aligned ops that carry the change."""
    wanted = pl.lit(False)
    for each in members:
        phase = pl.col("phase").is_null() if each.phase is None else pl.col("phase") == each.phase
        wanted |= ((pl.col("family") == each.family) | (pl.col("baseline_family") == each.family)) & phase
    texts = []
    for row in alignment.ops.filter(wanted).head(MOST_OPS).iter_rows(named=True):
        names = " → ".join(dict.fromkeys(name for name in (row["baseline_op"], row["optimized_op"]) if name))
        texts.append(f"{row['match']}: {names} ({signed(row['delta_time_ps'])[0]})")
    return texts
