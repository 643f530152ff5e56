"""What the knobs did: each part of the change goes to the knobs that move it at first hand, the rest is named as such.

A contribution has two parts, its number of calls and its time per call, and they have different causes: a remat key
changes how often a kernel runs again, a tile how long it takes. So the parts of all groups, with what no knob explains,
sum to the change exactly (a part that two groups can move is counted for both and said to be shared).
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace

from profiler.compare.knob_table import CALLS, TIME, Entry, entry
from profiler.compare.phrases import amount, arrow, calls, duration
from profiler.compare.price import Price, price_text
from profiler.results import Contribution, Knob, KnobEffect
from profiler.runinfo import number

SMALL = 0.005  # a part below this share of the step is no visible effect
MOST_CLUSTERS = 3
MOST_VALUE = 40  # characters of a value within a sentence
RERUN = "re-run"
REST = "rest"


@dataclass(frozen=True)
class Group:
    """Knobs that mean something only together."""

    name: str
    knobs: tuple[Knob, ...]
    entries: tuple[Entry | None, ...]
    unseen: str | None = None  # why no estimate can see it

    def moves(self, each: Contribution, part: str) -> bool:
        """Whether the group moves this part of a contribution at first hand."""
        return any(
            target.holds(each, part) and (not target.amortised or _amortises(knob, each))
            for knob, known in zip(self.knobs, self.entries, strict=True)
            if known
            for target in known.moves
        )

    def amortises(self, each: Contribution) -> bool:
        """Whether all that the group does to the time of a call is to have more or less work share it."""
        targets = [target for known in self.entries if known for target in known.moves if target.holds(each, TIME)]
        return bool(targets) and all(target.amortised for target in targets)

    @property
    def memory(self) -> bool:
        """Whether it moves what fills HBM."""
        return any(known.memory for known in self.entries if known)

    @property
    def rest(self) -> bool:
        """Whether it may be behind what no knob moves at first hand; so may keys that nobody knows."""
        return any(known is None or known.rest for known in self.entries)


@dataclass(frozen=True)
class Per:
    """What counts and times are per: ``unit`` "step" or "run"; ``equal_work`` where the amounts of work differ."""

    unit: str = "step"
    equal_work: bool = False

    @property
    def work(self) -> str:
        """What is said beside a time."""
        return " for equal work" if self.equal_work else ""


@dataclass(frozen=True)
class Part:
    """One part of a contribution and who moves it; ``sure`` at first hand."""

    of: Contribution
    kind: str  # CALLS | TIME
    time_ps: float
    mfu_points: float | None
    owners: tuple[str, ...]
    sure: bool


def _amortises(knob: Knob, each: Contribution) -> bool:
    """Whether a time per call changed as it does when more (or less) work shares it."""
    before, after = number(knob.baseline), number(knob.optimized)
    return not before or not after or (after - before) * each.per_call_time_ps < 0


def groups_of(knobs: Sequence[Knob], unseen: Mapping[str, str]) -> tuple[Group, ...]:
    """The knobs by group; ``unseen`` has the keys whose effect estimates leave out, with the reason."""
    found: dict[str, list[Knob]] = {}
    for knob in knobs:
        found.setdefault(knob.group or knob.key, []).append(knob)
    made = []
    for name, members in found.items():
        reasons = [unseen.get(knob.key) for knob in members]
        known = tuple(entry(knob.key, knob.source) for knob in members)
        made.append(Group(name, tuple(members), known, reasons[0] if all(reasons) else None))
    return tuple(made)


def parts_of(contributions: Iterable[Contribution], groups: Sequence[Group]) -> tuple[Part, ...]:
    """Both parts of every contribution, with the groups that move them; empty parts are left out."""
    rest = tuple(group.name for group in groups if group.rest and group.unseen is None)
    found = []
    for each in contributions:
        halves = (
            (CALLS, each.calls_time_ps, each.calls_points),
            (TIME, each.per_call_time_ps, each.per_call_points),
        )
        for kind, time, value in halves:
            if time:
                owners = tuple(group.name for group in groups if group.unseen is None and group.moves(each, kind))
                found.append(Part(each, kind, time, value, owners or rest, bool(owners)))
    return tuple(found)


def effects(
    groups: Sequence[Group], parts: Sequence[Part], price: Price, reference_ps: float, per: Per
) -> tuple[KnobEffect, ...]:
    """What was seen of every group, and last what no knob moves at first hand.

    Args:
        groups: the knobs that differ.
        parts: of all contributions.
        price: what HBM says.
        reference_ps: a step's time, of which a visible effect is a share.
        per: what counts and times are per.
    """
    found = [_effect(group, parts, price, reference_ps, per, len(groups)) for group in groups]
    left = [part for part in parts if not part.sure]
    if left and sum(abs(part.time_ps) for part in left) >= SMALL * reference_ps:
        owners = left[0].owners
        may = f"may come from {' or '.join(owners)}" if owners else "no knob that differs explains it"
        text = f"{clusters_text(left, per)}: {may}"
        status = "no knob"
        keys = tuple(knob.key for group in groups if group.name in owners for knob in group.knobs)
        found.append(KnobEffect(REST, keys, status, text, _points(left), sum(part.time_ps for part in left)))
    return tuple(found)


def with_effects(knobs: Iterable[Knob], found: Iterable[KnobEffect]) -> tuple[Knob, ...]:
    """The knobs with what was seen of their group."""
    by_group = {each.group: each for each in found if each.group != REST}
    return tuple(
        replace(knob, effect=seen.text, mfu_points=seen.mfu_points, time_ps=seen.time_ps)
        if (seen := by_group.get(knob.group or knob.key))
        else knob
        for knob in knobs
    )


def _effect(group: Group, parts: Sequence[Part], price: Price, reference_ps: float, per: Per, count: int) -> KnobEffect:
    keys = tuple(knob.key for knob in group.knobs)
    if group.unseen is not None:
        return KnobEffect(group.name, keys, "not estimated", f"not estimated: {group.unseen}", None, None)
    if all(known is None for known in group.entries):
        return KnobEffect(group.name, keys, "unknown", "a key that is not known here: tied to nothing", None, None)
    if not group.rest and not group.memory and not any(known.moves for known in group.entries if known):
        learns = any(known.learns for known in group.entries if known)
        text = "changes what is learned, not the time" if learns else "no part of the step"
        return KnobEffect(group.name, keys, "no time", text, None, None)
    mine = [part for part in parts if part.sure and group.name in part.owners]
    shared = tuple(dict.fromkeys(name for part in mine for name in part.owners if name != group.name))
    memory, memory_text = price_text(price, group.name, keys) if group.memory else (None, "")
    visible = [part for part in mine if abs(part.time_ps) >= SMALL * reference_ps / 10]
    large = sum(abs(part.time_ps) for part in mine) >= SMALL * reference_ps
    texts = [clusters_text(visible, per)] if large and visible else []
    value, time = _points(mine), sum(part.time_ps for part in mine)
    if texts:
        texts.append(amount(value, time).replace(" points", " MFU points"))
    if shared:
        texts.append(f"shared with {', '.join(shared)}")
    if memory_text:
        texts.append(memory_text)
    if not large:
        texts.insert(0, "no visible effect on time")
    alone = count == 1 and group.rest
    if group.rest and not alone:
        texts.append("may be behind the rest too")
    status = "seen" if large or memory else "none seen"
    return KnobEffect(group.name, keys, status, ", ".join(texts), value, time, memory, shared)


def clusters_text(parts: Sequence[Part], per: Per) -> str:
    """The largest parts, like parts together: "splash forward re-runs 48 → 0 per step, gmm forward 4.08 → 3.18 ms"."""
    clusters: dict[tuple[str, str, bool], list[Part]] = {}
    for part in parts:
        rerun = part.kind == CALLS and part.of.phase == RERUN
        clusters.setdefault((part.of.family, part.kind, rerun), []).append(part)
    ordered = sorted(clusters.items(), key=lambda each: -abs(sum(part.time_ps for part in each[1])))
    texts = [cluster_text(*key, members, per) for key, members in ordered[:MOST_CLUSTERS]]
    if len(ordered) > MOST_CLUSTERS:
        left = [part for _, members in ordered[MOST_CLUSTERS:] for part in members]
        texts.append(f"{len(ordered) - MOST_CLUSTERS} more ({amount(_points(left), sum(p.time_ps for p in left))})")
    return ", ".join(texts)


def cluster_text(family: str, kind: str, rerun: bool, parts: Sequence[Part], per: Per) -> str:
    """One family's parts of one kind: its calls, or its time per call over all phases."""
    before, after = (sum(getattr(part.of, f"{side}_calls") or 0.0 for part in parts) for side in _SIDES)
    if kind == CALLS:
        return f"{family} {'re-runs' if rerun else 'calls'} {arrow(calls(before), calls(after))} per {per.unit}"
    times = [sum(getattr(part.of, f"{side}_time_ps") for part in parts) for side in _SIDES]
    if before and after:
        return f"{family} {arrow(*duration(times[0] / before, times[1] / after))} a call{per.work}"
    return f"{family} {arrow(*duration(*times))}{per.work}"


_SIDES = ("baseline", "optimized")


def _points(parts: Iterable[Part]) -> float | None:
    values = [part.mfu_points for part in parts]
    return None if not values or None in values else sum(value for value in values if value is not None)


def knobs_text(knobs: Sequence[Knob]) -> str:
    """Knobs of one group in a few words: "context=device", "12 grouped matmul tiles"."""
    kept = [knob for knob in knobs if knob.key == "model_name"]
    kept = kept or [knob for knob in knobs if knob.key != "remat_policy"] or list(knobs)
    if len(kept) <= 2:
        return ", ".join(_setting(knob) for knob in kept)
    group = knobs[0].group or "knobs"
    return f"{len(kept)} {group if group.endswith('s') else f'{group} keys'}"


def _setting(knob: Knob) -> str:
    """ "context=device"; a long value is cut."""
    if knob.optimized is None:
        return knob.key
    text = str(knob.optimized).lower() if isinstance(knob.optimized, bool) else str(knob.optimized)
    return f"{knob.key}={text if len(text) <= MOST_VALUE else text[:MOST_VALUE] + '…'}"
