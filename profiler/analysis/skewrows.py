"""Every device, host and step of a run as a row of figures, and how unequal the experts' work is."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from profiler.analysis.skewcost import above_usual, threshold
from profiler.analysis.skewtable import BY_NAME, Table, means
from profiler.analysis.skewtest import lower_median
from profiler.fleet import Fleet
from profiler.results_skew import ExpertSpread, SkewDevice, SkewHost, SkewStep

EXPERTS = ("gmm forward", "gmm dlhs", "tgmm")
ALL_EXPERTS = "all grouped matmuls"


def device_rows(fleet: Fleet, every: Table) -> tuple[SkewDevice, ...]:
    """The devices that could be timed, in the order of the fleet."""
    usual = lower_median(means(every.own)) if len(every) else 0.0
    longest, ranks = _longest(every), None
    if longest is not None:
        order = np.argsort(-every.matrix(every.own), axis=0, kind="stable")
        ranks = 1 + np.argsort(order, axis=0, kind="stable").mean(axis=1)
    return tuple(
        SkewDevice(
            name=fleet.devices[index].name,
            host=fleet.host_of(index).name,
            steps=len(every.work[place]),
            step_ps=float(every.steps[place].mean()),
            least_ps=float(every.steps[place].min()),
            most_ps=float(every.steps[place].max()),
            work_ps=float(every.work[place].mean()),
            host_ps=float(every.host[place].mean()),
            wait_ps=float(every.wait[place].mean()),
            excess_ps=float(every.own[place].mean()) - usual,
            longest_steps=int((longest == place).sum()) if longest is not None else None,
            mean_rank=float(ranks[place]) if ranks is not None else None,
        )
        for place, index in enumerate(every.index)
    )


def host_rows(fleet: Fleet, every: Table, devices: Sequence[SkewDevice]) -> tuple[SkewHost, ...]:
    """All files of the run; ``devices`` are the rows of the table's devices."""
    places: list[list[int]] = [[] for _ in fleet.hosts]
    for place, index in enumerate(every.index):
        places[fleet.devices[index].host_index].append(place)
    recorded = Counter(device.host_index for device in fleet.devices)
    found = []
    for number, (host, mine) in enumerate(zip(fleet.hosts, places, strict=True)):
        rows = [devices[place] for place in mine]
        step, work, kept, wait, excess = (
            float(np.mean([getattr(row, field) for row in rows])) if rows else None
            for field in ("step_ps", "work_ps", "host_ps", "wait_ps", "excess_ps")
        )
        longest = [row.longest_steps for row in rows if row.longest_steps is not None]
        start, moves = _start(fleet, every, mine)
        found.append(
            SkewHost(
                host=host.name,
                status=host.status,
                why=host.why,
                devices=recorded[number],
                steps=max((row.steps for row in rows), default=None),
                step_ps=step,
                work_ps=work,
                host_ps=kept,
                wait_ps=wait,
                excess_ps=excess,
                longest_steps=sum(longest) if longest else None,
                start_ps=start,
                start_spread_ps=moves,
            )
        )
    return tuple(found)


def step_rows(fleet: Fleet, every: Table) -> tuple[SkewStep, ...]:
    """Every step with the device that the others wait for; empty where steps cannot be put beside each other."""
    longest = _longest(every)
    if longest is None:
        return ()
    own, steps = every.matrix(every.own), every.matrix(every.steps)
    beside = np.array(every.beside(every.own)) / every.typical_ps
    # The noise is that of single steps: what a device always is above the others is none.
    clear = threshold(above_usual(every))
    middle = np.argsort(own, axis=0, kind="stable")[(len(every) - 1) // 2]
    return tuple(
        SkewStep(
            step=name,
            step_ps=float(steps[typical, step]),
            longest=fleet.devices[every.index[place]].name,
            own_ps=float(own[place, step]),
            median_own_ps=float(own[typical, step]),
            wait_ps=float(steps[typical, step] - own[typical, step]),
            clear=bool(beside[place, step] > clear),
        )
        for step, (name, place, typical) in enumerate(zip(every.names, longest.tolist(), middle.tolist(), strict=True))
    )


def expert_rows(fleet: Fleet, every: Table) -> tuple[ExpertSpread, ...]:
    """How unequal the grouped matmuls are over the devices, per family, and all together where there are several."""
    if every.matched is None or len(every) < 2:
        return ()
    here = [family for family in EXPERTS if any(group[1] == family for group in fleet.groups)]
    titles = [*((family, [family]) for family in here), *([(ALL_EXPERTS, here)] if len(here) > 1 else [])]
    found = []
    for title, families in titles:
        columns = [column for column, group in enumerate(fleet.groups) if group[1] in families]
        times = np.array([each[:, columns].sum(axis=1) for each in every.groups])
        usual = times.mean(axis=0)
        if not (usual > 0).all():
            continue
        (worst, count), *_ = Counter(times.argmax(axis=0).tolist()).most_common(1)
        found.append(
            ExpertSpread(
                family=title,
                mean_ps=float(usual.mean()),
                imbalance=float((times.max(axis=0) / usual).mean()),
                worst=fleet.devices[every.index[worst]].name,
                worst_steps=count,
                steps=times.shape[1],
            )
        )
    return tuple(found)


def _longest(every: Table) -> NDArray[np.int64] | None:
    """Of every step the device that takes the longest; None where steps cannot be put beside each other."""
    if every.matched is None or len(every) < 2:
        return None
    longest: NDArray[np.int64] = every.matrix(every.own).argmax(axis=0)
    return longest


def _start(fleet: Fleet, every: Table, mine: Sequence[int]) -> tuple[float | None, float | None]:
    """When the steps of a host begin against those of the median device: the median, and how far it moves, ps."""
    if every.matched != BY_NAME or every.middle is None or not mine:
        return None, None
    one, reference = every.index[mine[0]], every.index[every.middle]
    if fleet.devices[one].host_index == fleet.devices[reference].host_index:
        return None, None
    starts = [
        fleet.windows[every.index[place]].spans[every.rows[place], 0].astype(np.float64)
        for place in (mine[0], every.middle)
    ]
    origins = (fleet.host_of(one).origin_ns - fleet.host_of(reference).origin_ns) * 1000.0
    later = starts[0] - starts[1] + origins
    return float(np.median(later)), float(np.percentile(later, 90) - np.percentile(later, 10))
