"""What a change costs in memory: the static peak of both sides, and what is kept for the backward pass at it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from profiler.analysis.hbm import Held
from profiler.analysis.summary import Measured
from profiler.compare.phrases import gib

_KEPT = "saved for backward"
REMAT = "rematerialisation"


@dataclass(frozen=True)
class Price:
    """Bytes of one device, (baseline, optimized); None where a side does not say.

    Attributes:
        peak, allocated, host: the static peak in device memory, the same with gaps, and what lies in host memory.
        kept: tensor → bytes at the peak that a forward pass kept for the backward pass.
        batch: optimized × batch is for the tokens of one baseline step; None where tokens are unknown.
        movers: the groups of knobs that move memory.
    """

    peak: tuple[int, int] | None = None
    allocated: tuple[int, int] | None = None
    host: tuple[int, int] | None = None
    kept: Mapping[str, tuple[int, int]] = field(default_factory=dict)
    batch: float | None = None
    movers: tuple[str, ...] = ()

    @property
    def change(self) -> int | None:
        """Optimized − baseline peak."""
        return None if self.peak is None else self.peak[1] - self.peak[0]

    @property
    def new(self) -> dict[str, tuple[int, int]]:
        """Tensors that one side keeps and the other does not."""
        return {tensor: sizes for tensor, sizes in self.kept.items() if 0 in sizes}


def price(
    baseline: Measured, optimized: Measured, movers: tuple[str, ...], at_peak: tuple[Held | None, Held | None]
) -> Price:
    """The price of the change.

    Args:
        baseline, optimized: the sides.
        movers: the groups of knobs that move memory.
        at_peak: what each side holds at its static peak.
    """
    sides = baseline, optimized
    peaks = [side.summary.memory.static_peak_bytes for side in sides]
    allocated = [side.summary.memory.static_allocated_bytes for side in sides]
    hosts = [side.summary.memory.static_host_bytes for side in sides]
    before, after = (_kept(side) if REMAT in movers else None for side in at_peak)
    kept = (
        {}
        if before is None or after is None
        else {name: (before.get(name, 0), after.get(name, 0)) for name in before | after}
    )
    tokens = baseline.tokens, optimized.tokens
    return Price(
        peak=_both(peaks),
        allocated=_both(allocated),
        host=_both(hosts),
        kept=kept,
        batch=tokens[0] / tokens[1] if tokens[0] and tokens[1] else None,
        movers=movers,
    )


def price_text(found: Price, group: str, keys: tuple[str, ...]) -> tuple[int | None, str]:
    """(bytes of HBM that a group costs, in words); None where several groups move memory and nothing tells them apart.

    For rematerialisation the price is what is kept for the backward pass on one side only.
    """
    new = found.new if group == REMAT else {}
    if new:
        cost = sum(after - before for before, after in new.values())
        largest = max(new, key=lambda tensor: max(new[tensor]))
        text = f"HBM {gib(cost, True)} kept for the backward pass ({_short(largest)})"
        if found.batch is not None and abs(found.batch - 1) > 0.005:
            scaled = sum(after * found.batch - before for before, after in new.values())
            text += f", {gib(scaled, True)} at the baseline's batch" if gib(scaled) != gib(cost) else ""
        return cost, text + _host(found)
    if found.change is None or abs(found.change) < 1 << 20:
        return None, _host(found).removeprefix(", ") if group == REMAT else ""
    if len(found.movers) == 1:
        return found.change, f"HBM peak {gib(found.change, True)}" + (_host(found) if group == REMAT else "")
    others = ", ".join(name for name in found.movers if name != group)
    return None, f"HBM peak {gib(found.change, True)} together with {others}"


def _host(found: Price) -> str:
    change = found.host[1] - found.host[0] if found.host else 0
    return f", host memory {gib(change, True)}" if abs(change) >= 1 << 20 else ""


def _short(tensor: str) -> str:
    """The innermost scope of a tensor's name."""
    return tensor.rpartition("/")[2] or "unnamed"


def _both(values: list[int | None]) -> tuple[int, int] | None:
    before, after = values
    return None if before is None or after is None else (before, after)


def _kept(found: Held | None) -> dict[str, int] | None:
    """Tensor → bytes kept for the backward pass; None where nothing says."""
    if found is None:
        return None
    sizes: dict[str, int] = {}
    for live in found.live:
        if live.place.part.endswith(_KEPT):
            sizes[live.place.tensor] = sizes.get(live.place.tensor, 0) + live.bytes
    return sizes
