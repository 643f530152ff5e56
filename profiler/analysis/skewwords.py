"""What the comparison of all devices says in a sentence, and what to keep in mind."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

from profiler.analysis.skewtable import Table
from profiler.fleet import Fleet
from profiler.results import Note
from profiler.results_skew import HostsReport, Straggler

INPUT, ALL_COMPUTE, ONE, SEVERAL = "input", "all compute", "one family", "several families"
MOST_NAMES = 5


def verdict(report: HostsReport) -> str:
    """Who the others wait for, and what it costs."""
    if len(report.devices) < 2:
        return "n/a: one device" if report.devices else "n/a: no device could be timed"
    if report.stragglers:
        return _slow(report)
    found = f"None of {len(report.devices):,} devices is slow by more than noise"
    spikes = report.spikes
    if spikes is None:
        return found + "."
    who = f"always {spikes.devices[0].device}" if len(spikes.devices) == 1 else f"{len(spikes.devices)} different ones"
    one = "step" if report.unit == "step" else "unit"
    return (
        f"{found} all the time, but in {spikes.steps} of {spikes.of} {one}s one is far slower, {who}"
        f"{_cost(report, spikes.gain_ps, 'Without such steps')}."
    )


def cause_text(straggler: Straggler) -> str:
    """Why it may be slow, as far as the times tell."""
    if straggler.cause == INPUT:
        return "its host gives it work late"
    if straggler.cause == ALL_COMPUTE:
        return "all compute alike: clocks, power or heat"
    family = straggler.families[0].family if straggler.families else "other"
    return f"in {family}: other work or other data" if straggler.cause == ONE else f"in several families, {family} most"


def _slow(report: HostsReport) -> str:
    first, more = report.stragglers[0], len(report.stragglers) - 1
    amount = f" by {_percent(first.ratio - 1)}" if first.ratio is not None else ""
    others = f"; {more} more {'is' if more == 1 else 'are'} slow" if more else ""
    without = "If they ran as the median device" if more else "If it ran as the median device"
    return (
        f"{first.kind.capitalize()} {first.name} is slow{amount} in {first.slow_steps} of {first.steps} "
        f"{report.unit}s, {cause_text(first)}{others}{_cost(report, report.gain_ps, without)}."
    )


def _cost(report: HostsReport, gain_ps: float | None, without: str) -> str:
    if gain_ps is None or not report.step_ps or not report.waits_seen:
        return ""
    shorter = _percent(gain_ps / report.step_ps)
    return f". {without}, the {report.unit} would be about {shorter} shorter (estimate)"


def _percent(share: float) -> str:
    return f"{share * 100:.1f} %"


def notes(fleet: Fleet, every: Table) -> list[Note]:
    """Steps that cannot be compared, and what cannot be told."""
    if len(every) < 2:
        return []
    found = []
    names = [fleet.devices[index].name for index in every.index]
    if every.matched is None:
        usual = Counter(len(each) for each in every.work).most_common(1)[0][0]
        odd = [f"{name} ({len(each)})" for name, each in zip(names, every.work, strict=True) if len(each) != usual]
        found.append(
            Note(
                "steps_out_of_step",
                f"{_some(odd)} recorded another number of steps than the others ({usual}), and steps have no names: "
                "no step is put beside another device's, means alone are compared",
            )
        )
    left_out = [f"{name} ({count})" for name, count in zip(names, every.left_out, strict=True) if count]
    if left_out:
        found.append(Note("steps_out_of_step", f"steps that not all devices recorded are left out: {_some(left_out)}"))
    if max(len(each) for each in every.work) < 2:
        found.append(
            Note("skew_noise_unknown", f"a single {fleet.unit} per device: nobody can be named, since noise is unknown")
        )
    if not every.waits_seen:
        found.append(
            Note("no_waits_seen", "no communication takes time on these devices: none is seen to wait for another")
        )
    return found


def _some(names: Sequence[str]) -> str:
    more = f" and {len(names) - MOST_NAMES:,} more" if len(names) > MOST_NAMES else ""
    return ", ".join(names[:MOST_NAMES]) + more
