"""Stragglers: which host or chip of a run the others wait for, from the steps of all devices alone (the fleet).

What counts as slow is decided by profiler.analysis.skewtest: against the noise from step to step, against how far
devices lie apart anyway, and with all devices that were looked at taken into account.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

import numpy as np

from profiler.analysis.skewcost import gain, spikes
from profiler.analysis.skewhosts import expected, missing_names
from profiler.analysis.skewrows import device_rows, expert_rows, host_rows, step_rows
from profiler.analysis.skewtable import INPUT as INPUT_PHASE
from profiler.analysis.skewtable import Table, means, table
from profiler.analysis.skewtest import effects, holm, lower_median
from profiler.analysis.skewwords import ALL_COMPUTE, INPUT, ONE, SEVERAL, notes, verdict
from profiler.errors import UsageError
from profiler.fleet import Fleet, StepRange
from profiler.results_skew import HostsReport, SkewFamily, Straggler
from profiler.trace import Trace

ALPHA = 0.01  # how often a run without a straggler may seem to have one
MIN_EXCESS = 0.01  # of the step: what is less does not matter
MIN_STEPS = 2 / 3  # of the steps in which a slow device is slower than the median
ALIKE = 0.75  # of the compute time, in families that are at least half as slow as the whole
MIN_ALIKE = 0.01  # of the compute time: what is less is no family to speak of
ONE_FAMILY = 2 / 3  # of the excess
MOST_FAMILIES = 5
NEGLIGIBLE = 0.01  # of the largest excess


def skew(trace: Trace, steps: StepRange | None = None, skip_first: int = 0) -> HostsReport:
    """All devices of a run beside each other, and who is slow; over the steps that are chosen.

    Raises:
        UsageError: no step is left.
    """
    fleet = trace.fleet
    every = table(fleet, steps, skip_first)
    if not len(every) and (steps or skip_first):
        count = max((len(windows.spans) for windows in fleet.windows), default=0)
        raise UsageError("no step is left", file=trace.label, remedy=f"there are {count} steady steps, from 0")
    several = len(every) > 1
    slow = _slow(every) if several else _Slow()
    devices = device_rows(fleet, every)
    # A compiled profile has one device that stands for all.
    devices_expected, hosts_expected = expected(trace.run_info, fleet) if trace.kind == "recorded" else (None, None)
    report = HostsReport(
        file=_place(trace),
        label=trace.label,
        kind=trace.kind,
        verdict="",
        unit=fleet.unit,
        matched=every.matched if several else None,
        step_ps=devices[every.middle].step_ps if every.middle is not None else None,
        waits_seen=every.waits_seen,
        gain_ps=gain(every, slow.p, late=bool(slow.late)) if several else None,
        stragglers=_stragglers(fleet, every, slow),
        spikes=spikes(fleet, every, slow.p) if several else None,
        hosts=host_rows(fleet, every, devices),
        devices=devices,
        steps=step_rows(fleet, every),
        experts=expert_rows(fleet, every),
        missing_hosts=missing_names([host.name for host in fleet.hosts]),
        expected_devices=devices_expected,
        expected_hosts=hosts_expected,
        warnings=(*trace.warnings, *notes(fleet, every)),
    )
    return replace(report, verdict=verdict(report))


def _place(trace: Trace) -> str:
    """The file, or the folder of the files of all hosts."""
    files = [host.file for host in trace.hosts] or list(trace.files)
    folders = {file.rpartition("/")[0] for file in files}
    return folders.pop() or "." if len(files) > 1 and len(folders) == 1 else ", ".join(files)


@dataclass(frozen=True)
class _Slow:
    """The devices that are slow, by place in the table, with the p-value of each; ``late`` are those of a late host."""

    p: Mapping[int, float] = field(default_factory=dict)
    late: frozenset[int] = frozenset()


def _slow(every: Table) -> _Slow:
    """Who works longer than the median device, and who waits longer for its host where waiting for others is seen."""
    kinds = [every.work, *([every.host] if every.waits_seen else [])]
    beside = [[each / every.typical_ps for each in every.beside(kind)] for kind in kinds]
    found = [effects(kind) for kind in beside]
    p = holm(np.concatenate([each.p for each in found])).reshape(len(kinds), -1)
    own = means(every.own) / every.typical_ps
    held_up = own - lower_median(own) >= MIN_EXCESS
    slow: dict[int, float] = {}
    late = set()
    for number, (kind, effect) in enumerate(zip(beside, found, strict=True)):
        level = lower_median(means(kind))
        for place in np.flatnonzero((p[number] < ALPHA) & (effect.excess >= MIN_EXCESS)).tolist():
            # Who is idle because it has less to do keeps nobody waiting.
            if (kind[place] > level).mean() < MIN_STEPS or (number and not held_up[place]):
                continue
            slow[place] = min(float(p[number][place]), slow.get(place, 1.0))
            late |= {place} if number else set()
    return _Slow(slow, frozenset(late))


def _stragglers(fleet: Fleet, every: Table, slow: _Slow) -> tuple[Straggler, ...]:
    """The slow devices, those of one host together where they are most of its devices; the largest excess first."""
    of_host: dict[int, list[int]] = {}
    for place, index in enumerate(every.index):
        of_host.setdefault(fleet.devices[index].host_index, []).append(place)
    found = []
    for places in of_host.values():
        mine = [place for place in places if place in slow.p]
        if len(mine) * 2 > len(places) and len(of_host) > 1:
            found.append(_straggler(fleet, every, slow, mine, "host"))
        else:
            found += [_straggler(fleet, every, slow, [place], "chip") for place in mine]
    return tuple(sorted(found, key=lambda each: (-each.excess_ps, each.name)))


def _straggler(fleet: Fleet, every: Table, slow: _Slow, places: list[int], kind: str) -> Straggler:
    late = 2 * len(slow.late & set(places)) > len(places)
    measure = every.own if late else every.work
    mean, beside = means(measure), every.beside(measure)
    base, mine = lower_median(mean), float(mean[places].mean())
    level = lower_median(means(beside))
    families, cause = _families(fleet, every, places)
    host = fleet.host_of(every.index[places[0]]).name
    devices = tuple(fleet.devices[every.index[place]].name for place in places)
    return Straggler(
        kind=kind,
        name=host if kind == "host" else devices[0],
        host=host,
        devices=devices,
        cause=INPUT if late else cause,
        excess_ps=mine - base,
        ratio=mine / base if base else None,
        slow_steps=round(float(np.mean([(beside[place] > level).sum() for place in places]))),
        steps=round(float(np.mean([len(beside[place]) for place in places]))),
        p_value=min(slow.p[place] for place in places),
        families=families[:MOST_FAMILIES],
        gain_ps=gain(every, places, late=bool(slow.late)),
    )


def _families(fleet: Fleet, every: Table, places: Sequence[int]) -> tuple[tuple[SkewFamily, ...], str]:
    """Where the work of some devices exceeds that of the median device, and what that hints at."""
    times = np.array([each.mean(axis=0) for each in every.groups])
    columns: dict[tuple[str, str], list[int]] = {}
    for column, (category, family, phase) in enumerate(fleet.groups):
        if category in ("compute", "transfer"):
            shown = "waiting for input" if phase == INPUT_PHASE and category == "transfer" else family or "other"
            columns.setdefault((category, shown), []).append(column)
    if every.waits_seen:
        columns["idle", "idle"] = [len(fleet.groups)]
    rows: list[tuple[SkewFamily, float]] = []
    for (category, family), own in columns.items():
        each = times[:, own].sum(axis=1)
        usual = lower_median(each)
        excess = float(each[list(places)].mean()) - usual
        rows.append((SkewFamily(category, family, excess, excess / usual if usual else None), usual))
    most = max((row.excess_ps for row, _ in rows), default=0.0)
    kept = (row for row, _ in rows if row.excess_ps > max(NEGLIGIBLE * most, 0.0))
    slower = sorted(kept, key=lambda row: (-row.excess_ps, row.family))
    return tuple(slower), _cause(slower, [(row, usual) for row, usual in rows if row.category == "compute"])


def _cause(slower: Sequence[SkewFamily], compute: Sequence[tuple[SkewFamily, float]]) -> str:
    """One of the causes that are no late host; ``compute`` has each family with its time on the median device."""
    whole = math.fsum(usual for _, usual in compute)
    excess = math.fsum(row.excess_ps for row, _ in compute)
    alike = [
        usual
        for row, usual in compute
        if usual > MIN_ALIKE * whole and excess > 0 and row.excess_ps * whole >= usual * excess / 2
    ]
    if len(alike) > 1 and math.fsum(alike) >= ALIKE * whole:
        return ALL_COMPUTE
    total = math.fsum(row.excess_ps for row in slower)
    return ONE if slower and slower[0].excess_ps >= ONE_FAMILY * total else SEVERAL
