"""A straggler on one side that explains a part of the change: it is no effect of a knob."""

from __future__ import annotations

from profiler.analysis.skew import MIN_EXCESS, skew
from profiler.analysis.skewwords import cause_text
from profiler.analysis.summary import Measured
from profiler.results import Note

MOST_NAMES = 3


def straggler_notes(baseline: Measured, optimized: Measured) -> list[Note]:
    """What stragglers cost each side, where they cost one of them 1 % of its step more than the other.

    Of runs of several hosts, of which all devices are known.
    """
    sides = {"baseline": baseline.trace, "optimized": optimized.trace}
    if any(trace.run_fleet is None or trace.recordings > 1 for trace in sides.values()):
        return []
    reports = {side: skew(trace) for side, trace in sides.items()}
    shares = {
        side: (report.gain_ps or 0.0) / report.step_ps if report.step_ps else 0.0 for side, report in reports.items()
    }
    worse = max(shares, key=lambda side: shares[side])
    report = reports[worse]
    if shares[worse] - min(shares.values()) < MIN_EXCESS or not report.stragglers:
        return []
    named = [f"{each.kind} {each.name} ({cause_text(each)})" for each in report.stragglers[:MOST_NAMES]]
    more = len(report.stragglers) - MOST_NAMES
    who = ", ".join(named) + (f" and {more:,} more" if more > 0 else "")
    cost, other = (f"{100 * share:.1f} %" for share in (shares[worse], min(shares.values())))
    return [
        Note(
            "straggler",
            f"in the {worse} run the others wait for {who}: without, its step would be about {cost} shorter, the other "
            f"side's {other} (estimates); this part of the change is not of the knobs",
            tuple(dict.fromkeys(each.host for each in report.stragglers[:MOST_NAMES])),
        )
    ]
