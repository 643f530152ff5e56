"""What ``profiler hosts`` says: who the others wait for, then every host, device and step."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from profiler.analysis.skewwords import cause_text
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
    Items,
    Line,
    Notes,
    Table,
    capped,
    label,
    limit,
    name,
)
from profiler.report.summary_view import ESTIMATE
from profiler.results_skew import ExpertSpread, HostsReport, SkewDevice, SkewHost, Spikes, Straggler

DEFAULT_ROWS = 20
MOST_NAMES = 8
MATCHED = {
    "names": "put beside each other by their numbers",
    "order": "put beside each other by their order",
    None: "not put beside each other: means alone are compared",
}


def hosts_document(report: HostsReport, top: int | None = None) -> Document:
    """The report as blocks; ``top`` rows per table, None for the default, 0 for all."""
    rows = limit(top, DEFAULT_ROWS)
    blocks: list[Block] = [Line(report.verdict, headline=True), Facts(hosts_facts(report))]
    if report.kind == "compiled":
        blocks.append(Line(ESTIMATE + ".", BAD))
    blocks += [slow_items(report)] if report.stragglers or report.spikes else []
    tables = [
        hosts_table(report) if len(report.hosts) > 1 else None,
        devices_table(report),
        steps_table(report),
        experts_table(report),
    ]
    blocks += [each if rows is None else capped(each, rows, ALL_ROWS) for each in tables if each and each.rows]
    if len(report.devices) > 1 and not report.experts:
        blocks.append(Line("Experts: n/a, no step of all devices has a grouped matmul.", DIM))
    blocks.append(Notes("Warnings", report.warnings))
    return Document(f"profiler hosts: {report.label}", tuple(blocks))


def hosts_facts(report: HostsReport) -> tuple[tuple[str, Cell], ...]:
    """What was put beside each other, and what is not here."""
    several = len(report.devices) > 1
    facts = [
        ("file" if len(report.hosts) < 2 else "folder", name(report.file)),
        ("kind", label(report.kind)),
        ("hosts", name(_hosts(report))),
    ]
    lacking = _lacking(report)
    if lacking:
        facts.append(("not here", name(lacking, BAD)))
    facts.append(("devices", label(f"{len(report.devices):,} that could be timed")))
    if several:
        facts.append((f"{report.unit}s", label(MATCHED[report.matched])))
    facts.append((f"{report.unit} of the median device", label(units.duration(report.step_ps))))
    if several:
        facts.append(("gain without stragglers", label(_gain(report, report.gain_ps))))
    return tuple(facts)


def _hosts(report: HostsReport) -> str:
    counts = [(status, sum(host.status == status for host in report.hosts)) for status in ("damaged", "failed")]
    said = [f"{count:,} {status}" for status, count in counts if count]
    return f"{len(report.hosts):,}" + (f", {', '.join(said)}" if said else "")


def _lacking(report: HostsReport) -> str:
    said = []
    if report.missing_hosts:
        said.append(f"{_some(report.missing_hosts)}, which the numbering of the hosts lacks")
    if report.expected_devices:
        said.append(f"the mesh has {report.expected_devices:,} devices")
    if report.expected_hosts:
        said.append(f"the run had {report.expected_hosts:,} processes")
    return "; ".join(said)


def _gain(report: HostsReport, gain_ps: float | None) -> str:
    if gain_ps is None or not report.step_ps:
        return units.UNKNOWN
    if not gain_ps:
        return "none"
    return f"{units.duration(gain_ps)} of the {report.unit}, {units.percent(gain_ps / report.step_ps)} (estimate)"


# --- who is slow -----------------------------------------------------------------------------------------------------


def slow_items(report: HostsReport) -> Items:
    """The stragglers with their evidence, and the steps that one device spoils."""
    items = [(Cell(_title(each), STRONG, name=True), tuple(_evidence(report, each))) for each in report.stragglers]
    if report.spikes:
        items.append(_spikes(report, report.spikes))
    return Items("Who is slow", tuple(items))


def _title(each: Straggler) -> str:
    amount = f"{units.change(each.ratio)} " if each.ratio is not None else ""
    what = "own time" if each.cause == "input" else "work"
    return f"{each.kind} {each.name}: {amount}{what} in {each.slow_steps} of {each.steps} steps, {cause_text(each)}"


def _evidence(report: HostsReport, each: Straggler) -> Iterable[str]:
    yield f"{units.duration(each.excess_ps)} above the median of all {len(report.devices):,} devices"
    if each.kind == "host":
        yield f"devices: {_some(each.devices)}"
    families = (
        f"{row.family} +{units.duration(row.excess_ps)}" + (f" ({units.change(row.ratio + 1)})" if row.ratio else "")
        for row in each.families
    )
    yield f"more of {', '.join(families)}" if each.families else "no family takes longer"
    alone = "it alone" if len(report.stragglers) > 1 else "it"
    yield f"gain if {alone} ran as the median device: {_gain(report, each.gain_ps)}"
    chance = "p < 0.000001" if each.p_value < 1e-6 else f"p = {units.fixed(each.p_value, 6)}"
    yield f"{chance}: how often noise alone would name any of the devices"


def _spikes(report: HostsReport, spikes: Spikes) -> tuple[Cell, tuple[str, ...]]:
    counts = ", ".join(f"{each.device} ({each.steps})" for each in spikes.devices[:MOST_NAMES])
    more = f" and {len(spikes.devices) - MOST_NAMES:,} more" if len(spikes.devices) > MOST_NAMES else ""
    return (
        label(
            f"single steps: in {spikes.steps} of {spikes.of} one device takes far longer than it mostly does", STRONG
        ),
        (f"devices, with their steps: {counts}{more}", f"gain without such steps: {_gain(report, spikes.gain_ps)}"),
    )


def _some(names: Sequence[str]) -> str:
    more = f" and {len(names) - MOST_NAMES:,} more" if len(names) > MOST_NAMES else ""
    return ", ".join(names[:MOST_NAMES]) + more


# --- the tables ------------------------------------------------------------------------------------------------------


def hosts_table(report: HostsReport) -> Table:
    """Every host, the slowest first, then those that could not be timed."""
    known = [host for host in report.hosts if host.excess_ps is not None]
    ordered = sorted(known, key=lambda host: -(host.excess_ps or 0.0))
    ordered += [host for host in report.hosts if host.excess_ps is None]
    scale = units.time_scale(host.step_ps for host in known)
    slow = {each.name for each in report.stragglers if each.kind == "host"}
    starts = any(host.start_ps is not None for host in known)
    own_clock = units.time_scale(host.start_spread_ps for host in known)
    columns = (
        *_columns("host", report, scale),
        *([Column(f"start moves {own_clock.unit}", minor=True)] if starts else []),
        Column("file", numeric=False),
    )

    def row(host: SkewHost) -> tuple[Cell, ...]:
        moves = "–" if host.start_spread_ps is None else own_clock.show(host.start_spread_ps)
        return (
            name(host.host, STRONG if host.host in slow else ""),
            *_times(host, scale),
            *([label("–" if host.longest_steps is None else str(host.longest_steps))] if report.steps else []),
            *([label(moves)] if starts else []),
            name(f"{host.status}: {host.why}", BAD) if host.why else label(host.status, DIM),
        )

    caption = "means over the devices of a host"
    if starts:
        caption += "; start moves: how far the begin of its steps moves against the median device's (10 % to 90 %)"
    return Table("Hosts, the slowest first", columns, tuple(map(row, ordered)), caption=caption)


def devices_table(report: HostsReport) -> Table:
    """Every device that could be timed, the slowest first."""
    scale = units.time_scale(device.step_ps for device in report.devices)
    slow = {device for each in report.stragglers for device in each.devices}
    return Table(
        "Devices, the slowest first",
        _columns("device", report, scale),
        tuple(
            (
                name(device.name, STRONG if device.name in slow else ""),
                *_times(device, scale),
                *([label(str(device.longest_steps))] if report.steps else []),
            )
            for device in sorted(report.devices, key=lambda device: -device.excess_ps)
        ),
        caption="own: "
        + ("work, and what its host kept it from; " if report.waits_seen else "work, as no communication is seen; ")
        + "work: compute and exposed transfers; host: idle or input; waiting: exposed communication and waits",
    )


def _columns(title: str, report: HostsReport, scale: units.Scale) -> tuple[Column, ...]:
    est = " (est.)" if report.kind == "compiled" else ""
    return (
        Column(title, numeric=False, kept=True),
        Column(f"{report.unit} {scale.unit}{est}"),
        Column("work"),
        Column("host"),
        Column("waiting"),
        Column("own above median"),
        *([Column("longest in")] if report.steps else []),
    )


def _times(row: SkewHost | SkewDevice, scale: units.Scale) -> tuple[Cell, ...]:
    if row.step_ps is None:
        return (label(units.UNKNOWN, DIM),) * 5
    return (
        *(label(scale.show(time)) for time in (row.step_ps, row.work_ps, row.host_ps, row.wait_ps)),
        label(scale.delta(row.excess_ps)),
    )


def steps_table(report: HostsReport) -> Table:
    """Every step with the device that the others wait for."""
    scale = units.time_scale(step.own_ps for step in report.steps)
    return Table(
        "Who the others wait for, step by step",
        (
            Column("step", numeric=False),
            Column(f"step {scale.unit}"),
            Column("longest device", numeric=False, kept=True),
            Column("own"),
            Column("median own"),
            Column("median waiting"),
            Column("", numeric=False),
        ),
        tuple(
            (
                name(step.step),
                label(scale.show(step.step_ps)),
                name(step.longest, STRONG if step.clear else ""),
                label(scale.show(step.own_ps)),
                label(scale.show(step.median_own_ps)),
                label(scale.show(step.wait_ps)),
                label("stands out" if step.clear else "within noise", "" if step.clear else DIM),
            )
            for step in report.steps
        ),
    )


def experts_table(report: HostsReport) -> Table:
    """How unequal the grouped matmuls are."""
    scale = units.time_scale(row.mean_ps for row in report.experts)

    def row(each: ExpertSpread) -> tuple[Cell, ...]:
        return (
            name(each.family),
            label(scale.show(each.mean_ps)),
            label(f"{units.fixed(each.imbalance, 3)}×"),
            name(each.worst),
            label(f"{each.worst_steps} of {each.steps}"),
        )

    return Table(
        "Load of the experts",
        (
            Column("family", numeric=False),
            Column(f"mean {scale.unit}"),
            Column("longest / mean"),
            Column("longest device", numeric=False),
            Column("in steps"),
        ),
        tuple(map(row, report.experts)),
        caption="time of the grouped matmuls per step, over all devices; the spread per layer is not in these figures",
    )
