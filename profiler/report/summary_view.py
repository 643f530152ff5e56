"""What ``profiler summary`` says about one recording, in the order a performance engineer asks."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from typing import Any

from profiler.report import units
from profiler.report.model import (
    ALL_ROWS,
    BAD,
    DIM,
    STRONG,
    Block,
    Cell,
    Column,
    Document,
    Facts,
    Line,
    Notes,
    Table,
    capped,
    label,
    limit,
    name,
)
from profiler.report.wording import kernel_caption, kernel_title
from profiler.results import FleetSummary, Memory, Summary, WholeRecording

DEFAULT_ROWS = 15
WORTH_SAYING = 0.05  # of the recording
ESTIMATE = "compiled, not recorded: every time is an estimate"


def summary_document(summary: Summary, top: int | None = None) -> Document:
    """The summary as blocks.

    Args:
        summary: one recording.
        top: rows per table; None for the default, 0 for all.
    """
    blocks: list[Block] = [Facts(_facts(summary))]
    if summary.kind == "compiled":
        blocks.append(Line(ESTIMATE + ".", BAD))
    rows = limit(top, DEFAULT_ROWS)
    tables = (phases_table(summary), families_table(summary), kernels_table(summary), rerun_table(summary))
    blocks.extend(table if rows is None else capped(table, rows, ALL_ROWS) for table in tables if table.rows)
    run = run_facts(summary.run_info)
    if run:
        blocks.append(Facts(run, "What the run says of itself"))
    blocks.append(Notes("Warnings", summary.warnings))
    return Document(f"profiler summary: {summary.label}", tuple(blocks))


def _facts(summary: Summary) -> tuple[tuple[str, Cell], ...]:
    facts = [("file", name(summary.file)), ("kind", kind_cell(summary)), ("devices", name(devices_text(summary)))]
    facts.append((f"{summary.steps.unit}s", label(steps_text(summary))))
    if summary.fleet is not None:
        facts.append((f"{summary.fleet.unit} by device", name(spread_text(summary.fleet))))
    facts.append(("busy", label(f"{units.percent(summary.busy_fraction)} of the {summary.steps.unit}")))
    if summary.whole is not None and summary.steps.unit != "run":
        facts.append(("whole recording", label(whole_text(summary.whole))))
    facts.append(("MFU", Cell(mfu_text(summary), BAD if impossible(summary.mfu) else STRONG)))
    if summary.tokens_per_s is not None:
        facts.append(("tokens/s per device", label(units.grouped(summary.tokens_per_s))))
    if summary.hfu is not None:
        facts.append(("HFU", label(f"{units.percent(summary.hfu)}, re-runs counted")))
    facts.append(("re-runs", label(rerun_text(summary))))
    facts.append(("HBM peak", label(memory_text(summary.memory))))
    return tuple(facts)


def kind_cell(summary: Summary) -> Cell:
    """ "recorded", or a compiled profile marked as the estimate it is."""
    return label(f"estimate ({ESTIMATE})", BAD) if summary.kind == "compiled" else label(summary.kind)


def devices_text(summary: Summary) -> str:
    """Devices grouped by what they are: "4 × TPU v6 Lite (918 TFLOP/s dense bf16 and 32.0 GiB HBM each)"."""
    groups = Counter((device.type, device.peak_tflops, device.hbm_bytes) for device in summary.devices)
    hosts = {device.host for device in summary.devices if device.host}
    parts = []
    for (kind, peak, hbm), count in groups.items():
        facts = [f"{units.number(peak, 5)} TFLOP/s dense bf16" if peak is not None else "peak n/a"]
        if hbm is not None:
            facts.append(f"{units.size(hbm)} HBM{' each' if count > 1 else ''}")
        parts.append(f"{count} × {kind or 'unknown device'} ({', '.join(facts)})")
    text = "; ".join(parts) or "none recorded"
    if summary.fleet is not None and summary.fleet.choice != "all":
        return f"{text}: {shown_text(summary.fleet)}"
    return f"{text}, {len(hosts)} hosts" if len(hosts) > 1 else text


def shown_text(fleet: FleetSummary) -> str:
    """Which device of the run is shown: "host-3/TPU:1, the median of 256 on 64 hosts"."""
    choice = "the median" if fleet.choice == "median" else "chosen"
    read, lost = fleet.hosts_read, len(fleet.hosts) - fleet.hosts_read
    hosts = f"{read:,} host{'s' * (read != 1)}" + (f" ({lost:,} more cannot be read)" if lost else "")
    return f"{', '.join(fleet.shown)}, {choice} of {fleet.devices:,} on {hosts}"


def spread_text(fleet: FleetSummary) -> str:
    """The spread of the mean step over the devices."""
    figures = [fleet.min_ps, fleet.p10_ps, fleet.median_ps, fleet.p90_ps, fleet.max_ps]
    known = [value for value in figures if value is not None]
    if len(known) < len(figures):
        return units.UNKNOWN
    scale = units.time_scale(known)
    least, p10, median, p90, most = map(scale.show, known)
    unit = scale.unit
    return f"{least} {unit} ({fleet.fastest}), p10 {p10}, median {median}, p90 {p90}, {most} {unit} ({fleet.slowest})"


def steps_text(summary: Summary) -> str:
    """Count, mean, median and spread, with where the steps were found."""
    steps = summary.steps
    scale = units.time_scale((steps.p90_ps, steps.mean_ps))
    mean = f"mean {scale.show(steps.mean_ps)} {scale.unit}"
    if steps.count <= 1:
        return f"{steps.count} ({steps.source}): {mean}; no spread from one sample"
    spread = f"{scale.show(steps.p10_ps)} to {scale.show(steps.p90_ps)}"
    return f"{steps.count} steady ({steps.source}): {mean}, median {scale.show(steps.median_ps)}, p10 to p90 {spread}"


def whole_text(whole: WholeRecording) -> str:
    """How long a device was recorded, how much of that it was busy, and what it waited for."""
    text = f"{units.duration(whole.length_ps)} per device, {units.percent(whole.busy_ps / whole.length_ps)} busy"
    waits = [
        f"{units.percent(row.fraction)} is {row.kind} that no compute hides "
        f"({units.percent(row.busy_fraction)} of busy time)"
        for row in whole.rows
        if row.fraction >= WORTH_SAYING
    ]
    return "; ".join([text, *waits[:2]]) if whole.length_ps else units.UNKNOWN


def impossible(mfu: float | None) -> bool:
    """More FLOPs than the chip can do."""
    return mfu is not None and mfu > 1


def mfu_text(summary: Summary) -> str:
    """MFU with its formula and numbers, or what is missing for it."""
    inputs = summary.mfu_inputs
    if summary.mfu is None:
        missing = [
            text
            for value, text in (
                (inputs.model_tflops_per_device_per_step, "model FLOPs are unknown (--model-tflops or --config)"),
                (inputs.peak_tflops, "the device's peak is unknown (--peak-tflops)"),
                (inputs.step_time_ps, "the step time is unknown"),
            )
            if value is None
        ]
        return f"{units.UNKNOWN}: {' and '.join(missing)}" if missing else units.UNKNOWN
    text = (
        f"{units.percent(summary.mfu, 2)} = {units.number(inputs.model_tflops_per_device_per_step, 5)} model TFLOP / "
        f"({units.duration(inputs.step_time_ps)} × {units.number(inputs.peak_tflops, 5)} TFLOP/s)"
    )
    if inputs.convention:
        text += f"; FLOPs: {inputs.convention}"
    if impossible(summary.mfu):
        text += " — impossible: above 100 %. Check the model FLOPs and the peak"
    return text


def rerun_text(summary: Summary) -> str:
    """Rematerialised work in one phrase."""
    remat = summary.remat
    if not remat.rerun_calls_per_step:
        return "none seen"
    calls, time = units.number(remat.rerun_calls_per_step), units.duration(remat.rerun_time_ps_per_step)
    return f"{calls} calls, {time} per {summary.steps.unit} ({units.percent(remat.fraction)})"


def memory_text(memory: Memory) -> str:
    """The peaks that are known, each with its kind, and the capacity."""
    peaks = [f"{units.size(value)} {kind}" for kind, value in memory_peaks(memory) if value is not None]
    text = ", ".join(peaks) or units.UNKNOWN
    return f"{text}, of {units.size(memory.capacity_bytes)}" if memory.capacity_bytes is not None else text


def memory_peaks(memory: Memory) -> tuple[tuple[str, int | None], ...]:
    """The three peaks that are never mixed."""
    return (
        ("static", memory.static_peak_bytes),
        ("in the window", memory.window_peak_bytes),
        ("lifetime", memory.lifetime_peak_bytes),
    )


def memory_rows(memory: Memory) -> tuple[tuple[str, int | None], ...]:
    """The peaks, and what the program needs beside them."""
    (static, *others) = ((f"HBM peak, {kind}", value) for kind, value in memory_peaks(memory))
    return (
        static,
        ("HBM allocated, static", memory.static_allocated_bytes),
        ("host memory, static", memory.static_host_bytes or None),
        *others,
    )


def estimated(summary: Summary, title: str) -> str:
    """A column title or caption that says when its times are not measured."""
    return f"{title} (est.)" if summary.kind == "compiled" else title


def run_facts(info: Mapping[str, Any] | None) -> tuple[tuple[str, Cell], ...]:
    """Run info in a few lines: the model, plain facts, what the traced steps measured, how many knobs there are.

    How the times of a compiled profile were estimated is for programs, and in the JSON output.
    """
    if not info:
        return ()
    facts = []
    config = info.get("config")
    if isinstance(config, Mapping):
        if config.get("model_name"):
            facts.append(("model", name(str(config["model_name"]))))
        facts.append(("config", label(f"{len(config)} keys (--format json has them all)")))
    for key, value in info.items():
        if key in ("config", "metrics", "estimates") or value in (None, [], {}, ""):
            continue
        title, text = key.replace("_", " "), _phrase(value)
        if key.endswith("_bytes") and isinstance(value, int | float) and not isinstance(value, bool):
            title, text = title.removesuffix(" bytes"), units.size(value) if value else "0"
            title = "host memory" if title == "host" else title
        facts.append((title, name(text)))
    metrics = info.get("metrics")
    if isinstance(metrics, list) and metrics and isinstance(metrics[-1], Mapping):
        last = metrics[-1]
        shown = {key: last[key] for key in ("step", "loss", "perplexity") if isinstance(last.get(key), int | float)}
        facts.append((f"last of {len(metrics)} steps", name(_phrase(shown))))
    return tuple(facts)


def _phrase(value: Any) -> str:
    """A JSON value in a line."""
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, Mapping):
        return ", ".join(f"{key} {_phrase(item)}" for key, item in value.items())
    if isinstance(value, list | tuple):
        return ", ".join(map(_phrase, value))
    return units.number(value, 5) if isinstance(value, float) else str(value)


def phases_table(summary: Summary) -> Table:
    """Forward, backward, re-run …: how the step divides before families."""
    scale = units.time_scale(row.time_ps_per_step for row in summary.phases)
    idle = [row for row in summary.families if row.category == "idle"] if summary.phases else []
    rows = [(row.phase or "not known", row.time_ps_per_step, row.fraction) for row in summary.phases]
    rows += [("idle", row.time_ps_per_step, row.fraction) for row in idle]
    widest = max((fraction for *_, fraction in rows), default=0.0) or 1.0
    return Table(
        "Phases",
        (
            Column("phase", numeric=False),
            Column(estimated(summary, f"{scale.unit}/{summary.steps.unit}")),
            Column("share"),
            Column("", numeric=False, bar=True),
        ),
        tuple(
            (label(phase), label(scale.show(time)), label(units.percent(share)), label(str(share / widest)))
            for phase, time, share in rows
        ),
    )


def families_table(summary: Summary) -> Table:
    """Where the step goes: exclusive categories that sum to the step."""
    rows = sorted(summary.families, key=lambda row: -row.time_ps_per_step)
    scale = units.time_scale(row.time_ps_per_step for row in rows)
    unit = summary.steps.unit
    widest = max((row.fraction for row in rows), default=0.0) or 1.0
    return Table(
        f"Where the {unit} goes",
        (
            Column("family", numeric=False),
            Column("phase", numeric=False),
            Column("kind", numeric=False),
            Column(f"calls/{unit}"),
            Column(estimated(summary, scale.unit)),
            Column("share"),
            Column("", numeric=False, bar=True),
        ),
        tuple(
            (
                label(row.family),
                label(row.phase or "–", DIM),
                label(row.category, DIM),
                label(units.number(row.calls_per_step) if row.calls_per_step is not None else "–"),
                label(scale.show(row.time_ps_per_step)),
                label(units.percent(row.fraction)),
                label(str(row.fraction / widest)),
            )
            for row in rows
        ),
        total=(
            label("sum", STRONG),
            label(""),
            label(""),
            label(""),
            label(scale.show(sum(row.time_ps_per_step for row in rows)), STRONG),
            label(units.percent(sum(row.fraction for row in rows)), STRONG),
            label("0"),
        ),
        caption=f"exclusive time per device and {unit}; overlapped communication counts as the compute that hides it",
    )


def kernels_table(summary: Summary) -> Table:
    """Custom kernels: how often, how long, how fast."""
    rows = sorted(summary.kernels, key=lambda row: -row.time_ps_per_step)
    mean, total = (
        units.time_scale(row.mean_time_ps for row in rows),
        units.time_scale(row.time_ps_per_step for row in rows),
    )
    unit = summary.steps.unit
    return Table(
        estimated(summary, "Kernels"),
        (
            Column("kernel", numeric=False),
            Column("phase", numeric=False),
            Column("calls"),
            Column("/layer"),
            Column(f"mean {mean.unit}"),
            Column(f"{total.unit}/{unit}"),
            Column("TFLOP/s"),
            Column("of peak", minor=True),
        ),
        tuple(
            (
                name(kernel_title(row.kernel, row.family)),
                label(row.phase or "–", DIM),
                label(units.number(row.calls_per_step)),
                label(units.number(row.calls_per_layer)),
                label(mean.show(row.mean_time_ps)),
                label(total.show(row.time_ps_per_step)),
                label(units.number(row.tflops_per_s)),
                label(units.percent(row.peak_fraction, 0)),
            )
            for row in rows
        ),
        caption=kernel_caption(unit),
    )


def rerun_table(summary: Summary) -> Table:
    """Which families rematerialisation runs again."""
    rows = sorted(summary.remat.by_family, key=lambda row: -row.time_ps_per_step)
    scale = units.time_scale(row.time_ps_per_step for row in rows)
    unit = summary.steps.unit
    return Table(
        "Re-run by rematerialisation",
        (Column("family", numeric=False), Column(f"calls/{unit}"), Column(estimated(summary, f"{scale.unit}/{unit}"))),
        tuple(
            (label(row.family), label(units.number(row.calls_per_step)), label(scale.show(row.time_ps_per_step)))
            for row in rows
        ),
    )
