"""The headline figures of the HTML report as cards: what both sides have, the change, and how sure it is."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

from profiler.gate.metrics import METRICS
from profiler.report import units
from profiler.report.model import BAD, GOOD
from profiler.report.summary_view import impossible, mfu_text
from profiler.report.wording import EQUAL_WORK
from profiler.results import Diff, Summary
from profiler.runinfo import number

BAND = "range of the estimate"
UNCLEAR = "estimates_differ"  # a warning: a difference in time may be that of the method
SAME_WORK = 0.005  # amounts of work that differ by less are one


@dataclass(frozen=True, slots=True)
class Card:
    """One headline figure. ``sure`` is its interval or band, ``note`` what else has to be known."""

    title: str
    baseline: str
    optimized: str
    change: str
    tone: str = ""
    sure: str = ""
    note: str = ""

    @property
    def word(self) -> str:
        """The tone in a word, so that nothing depends on colour."""
        return {GOOD: "better", BAD: "worse"}.get(self.tone, "")


def cards(diff: Diff) -> list[Card]:
    """MFU, time, throughput, memory, loss and re-runs; what is unknown says why."""
    return [_mfu(diff), _time(diff), _rate(diff), _memory(diff), _loss(diff), _reruns(diff)]


def _tone(text: str, better: bool) -> str:
    """Only what does not round to nothing is better or worse."""
    return (GOOD if better else BAD) if text.startswith(("+", units.MINUS)) else ""


def _estimated(diff: Diff, title: str) -> str:
    compiled = [side for side in (diff.baseline, diff.optimized) if side.kind == "compiled"]
    return f"{title} (est.)" if compiled else title


def _mfu(diff: Diff) -> Card:
    base, opt = diff.baseline, diff.optimized
    title = _estimated(diff, "MFU")
    if base.mfu is None and opt.mfu is None:
        return Card(title, units.UNKNOWN, units.UNKNOWN, units.UNKNOWN, note=mfu_text(base).removeprefix("n/a: "))
    known = diff.delta.mfu_points is not None
    change = f"{units.points(diff.delta.mfu_points)} points" if known else units.UNKNOWN
    over = [name for name, side in (("baseline", base), ("optimized", opt)) if impossible(side.mfu)]
    return Card(
        title,
        units.percent(base.mfu, 2),
        units.percent(opt.mfu, 2),
        _noisy(diff, change) if known else change,
        "" if over else _judged(diff, change, (diff.delta.mfu_points or 0) > 0),
        _mfu_bounds(diff),
        f"above 100 % is impossible ({' and '.join(over)})" if over else "",
    )


def _mfu_bounds(diff: Diff) -> str:
    """In points: the interval that ``profiler check`` uses, or the band where it is that of the same model FLOPs."""
    base, band = diff.baseline.mfu, diff.delta.band
    if band is not None and base is not None and diff.normalization == "flop" and all(band):
        low, high = sorted(100 * (base / end - base) for end in band)
        return f"{BAND}: {units.points(low)} to {units.points(high)} points"
    reach = METRICS["mfu"].of(diff).reach
    return f"95 %: {units.points(100 * reach[0])} to {units.points(100 * reach[1])} points" if reach else ""


def _judged(diff: Diff, text: str, better: bool) -> str:
    """The tone of a figure that goes with time: none within the noise, or between estimates made differently."""
    if diff.delta.significant is False or any(note.code == UNCLEAR for note in diff.warnings):
        return ""
    return _tone(text, better)


def _noisy(diff: Diff, text: str) -> str:
    return f"~ {text}" if diff.delta.significant is False else text


def _time(diff: Diff) -> Card:
    delta, base, opt = diff.delta, diff.baseline.steps, diff.optimized.steps
    work = EQUAL_WORK.get(diff.normalization)
    scaled = abs(delta.optimized_time_ps - opt.mean_ps) > SAME_WORK * opt.mean_ps
    title = f"time for equal {work}" if work and scaled else f"{base.unit} time"
    change = units.change(delta.optimized_time_ps / delta.baseline_time_ps if delta.baseline_time_ps else None)
    scale = units.time_scale((delta.baseline_time_ps, delta.optimized_time_ps))
    base_text, opt_text = (
        f"{scale.show(time)} {scale.unit}" for time in (delta.baseline_time_ps, delta.optimized_time_ps)
    )
    note = f"a {base.unit}: {units.duration(base.mean_ps)} → {units.duration(opt.mean_ps)}" if work and scaled else ""
    if base.unit == "run":  # no step repeats: what the devices did is told from what they waited
        busy = [side.steps.mean_ps * side.busy_fraction for side in (diff.baseline, diff.optimized)]
        title, note = "recorded time", f"device time {' → '.join(map(units.duration, busy))}"
    return Card(
        _estimated(diff, title),
        base_text,
        opt_text,
        _noisy(diff, change),
        _judged(diff, change, delta.optimized_time_ps < delta.baseline_time_ps),
        _bounds(diff, units.change) or _noise(diff),
        note,
    )


def _bounds(diff: Diff, show: Callable[[float], str]) -> str:
    """The interval (recorded) or the band (compiled) of the time ratio, as ``show`` puts a ratio of times."""
    ends, words = diff.delta.band, BAND
    if ends is None:
        ends, words = diff.delta.interval, "95 %"
    if ends is None or ends[0] == ends[1]:
        return ""
    low, high = sorted((show(end) for end in ends), key=_signed)
    return f"{words}: {low} to {high}"


def _signed(text: str) -> float:
    return float(text.rstrip(" %×").replace(units.MINUS, "-").replace("+", "").replace("n/a", "nan"))


def _as_rate(ratio: float) -> str:
    """A ratio of times as a change of throughput: 0.5 is +100 %."""
    return units.change(1 / ratio if ratio else None)


def _noise(diff: Diff) -> str:
    """What is known of the spread where there is no interval."""
    ranges = [_range(side) for side in (diff.baseline, diff.optimized)]
    if all(ranges):
        return f"range of each estimate: {' → '.join(ranges)} a {diff.baseline.steps.unit}, correlated"
    if "compiled" in (diff.baseline.kind, diff.optimized.kind):
        return "an estimate without its range"
    return "noise unknown: a side has a single sample" if diff.delta.interval is None else ""


def _range(side: Summary) -> str:
    """What a compiled side says of its own step: from all constants at their fast to all at their slow end."""
    found = (side.run_info or {}).get("estimates") if side.kind == "compiled" else None
    ends = found.get("step_s_band") if isinstance(found, Mapping) else None
    if not isinstance(ends, list | tuple) or len(ends) != 2:
        return ""
    low, high = (number(end) for end in ends)
    if not low or not high:
        return ""
    scale = units.time_scale((high * 1e12,))
    return f"{scale.show(low * 1e12)} to {scale.show(high * 1e12)} {scale.unit}"


def _rate(diff: Diff) -> Card:
    """Tokens per second and device; without tokens, how much more is done in the same time."""
    base, opt = diff.baseline.tokens_per_s, diff.optimized.tokens_per_s
    if base is not None and opt is not None:
        change = units.change(opt / base if base else None)
        sure = _bounds(diff, _as_rate) if diff.normalization in EQUAL_WORK else ""
        title = _estimated(diff, "tokens/s per device")
        return Card(
            title,
            units.grouped(base),
            units.grouped(opt),
            _noisy(diff, change),
            _judged(diff, change, opt > base),
            sure,
        )
    ratio = diff.delta.throughput_ratio
    change = units.change(ratio)
    known = ratio is not None and units.known(ratio)
    return Card(
        _estimated(diff, "throughput"),
        "1×" if known else units.UNKNOWN,
        f"{units.fixed(ratio, 3)}×" if ratio is not None and known else units.UNKNOWN,
        _noisy(diff, change) if known else change,
        _judged(diff, change, (ratio or 1) > 1),
        _bounds(diff, _as_rate) if known else "",
        "tokens per step are unknown (--tokens-per-step)" if known else "the work of a step is unknown",
    )


def _memory(diff: Diff) -> Card:
    """The first of the three peaks that either side has: they are never mixed."""
    pairs = (
        ("HBM peak, static", "static_peak_bytes"),
        ("HBM peak, in the window", "window_peak_bytes"),
        ("HBM peak, lifetime", "lifetime_peak_bytes"),
    )
    sides = diff.baseline.memory, diff.optimized.memory
    for title, field in pairs:
        base, opt = (getattr(side, field) for side in sides)
        if base is None and opt is None:
            continue
        scale = units.byte_scale((base, opt))
        texts = [f"{scale.show(value)} {scale.unit}" if value is not None else units.UNKNOWN for value in (base, opt)]
        if base is None or opt is None:
            return Card(title, texts[0], texts[1], units.UNKNOWN, note=_room(diff, field))
        change = f"{scale.delta(opt - base)} {scale.unit}" if opt != base else "unchanged"
        return Card(title, texts[0], texts[1], change, _tone(change, opt < base), note=_room(diff, field))
    note = "no program carries its buffer assignment, and there are no allocator events"
    return Card("HBM peak", units.UNKNOWN, units.UNKNOWN, units.UNKNOWN, note=note)


def _room(diff: Diff, field: str) -> str:
    """What the optimized side leaves free."""
    memory = diff.optimized.memory
    limit = memory.capacity_bytes
    held = memory.static_allocated_bytes if field == "static_peak_bytes" else getattr(memory, field)
    if limit is None or held is None:
        return "the device's capacity is unknown" if limit is None else ""
    left = limit - held
    words = f"{units.size(left)} left" if left >= 0 else f"{units.size(-left)} too much"
    return (
        f"{words} of {units.size(limit)}, gaps of packing counted"
        if field == "static_peak_bytes"
        else (f"{words} of {units.size(limit)}")
    )


def _loss(diff: Diff) -> Card:
    loss = diff.loss
    if loss is None:
        compiled = diff.baseline.kind == diff.optimized.kind == "compiled"
        note = "a compile trains nothing" if compiled else "no run info with metrics on both sides"
        return Card("loss", units.UNKNOWN, units.UNKNOWN, "not compared", note=note)
    word = {True: "unchanged", False: "differs", None: "no verdict"}[loss.unchanged]
    texts = [units.number(ends[1]) if ends else units.UNKNOWN for ends in (loss.baseline_loss, loss.optimized_loss)]
    return Card("loss", texts[0], texts[1], word, BAD if loss.unchanged is False else "", note=loss.text)


def _reruns(diff: Diff) -> Card:
    base, opt = diff.baseline.remat, diff.optimized.remat
    change = opt.rerun_calls_per_step - base.rerun_calls_per_step
    text = ("+" if change > 0 else "") + units.number(change)
    times = [units.duration(side.rerun_time_ps_per_step) for side in (base, opt)]
    shares = [units.percent(side.fraction) for side in (base, opt)]
    mark = " (est.)" if "compiled" in (diff.baseline.kind, diff.optimized.kind) else ""
    note = f"{times[0]} ({shares[0]}) → {times[1]} ({shares[1]}) a {diff.baseline.steps.unit}{mark}"
    counts = units.number(base.rerun_calls_per_step), units.number(opt.rerun_calls_per_step)
    if not base.rerun_calls_per_step and not opt.rerun_calls_per_step:
        return Card("re-run calls", *counts, "none", note="nothing is seen to run again in the backward pass")
    return Card(f"re-run calls a {diff.baseline.steps.unit}", *counts, text, _tone(text, change < 0), note=note)
