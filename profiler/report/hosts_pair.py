"""The hosts of both sides beside each other: what is known of them, and which are not as the others."""

from __future__ import annotations

from profiler.report.hosts_view import hosts_facts
from profiler.report.model import BAD, DIM, Cell, Column, Table, label, name
from profiler.results_skew import HostsReport

OUT_OF_STEP = "steps_out_of_step"


def facts(baseline: HostsReport | None, optimized: HostsReport | None) -> list[tuple[str, str, str]]:
    """Rows of what it is and each side's; "–" where only the other side has it."""
    base, opt = (dict(hosts_facts(report)) if report else {} for report in (baseline, optimized))

    def text(cell: Cell | None) -> str:
        return cell.text if cell else "–"

    titles = [title for title in dict.fromkeys([*base, *opt]) if title not in ("file", "folder", "kind")]
    return [(title, text(base.get(title)), text(opt.get(title))) for title in titles]


def odd_hosts(report: HostsReport) -> Table | None:
    """Hosts that are missing, cut, could not be read, or recorded other steps than the others; None of none."""
    rows = [
        (
            name(host.host),
            label("cut or damaged" if host.status == "damaged" else "cannot be read", BAD),
            name(host.why),
        )
        for host in report.hosts
        if host.status != "read"
    ]
    rows += [
        (name(host.host), label("without a device", DIM), label("none of its devices could be timed"))
        for host in report.hosts
        if host.status == "read" and host.step_ps is None
    ]
    rows += [
        (name(each), label("missing", BAD), label("the numbering of the others lacks it"))
        for each in report.missing_hosts
    ]
    if report.expected_devices:
        rows.append((label("–"), label("missing", BAD), label(f"the mesh has {report.expected_devices:,} devices")))
    if report.expected_hosts:
        rows.append((label("–"), label("missing", BAD), label(f"the run had {report.expected_hosts:,} processes")))
    rows += [
        (label("–"), label("out of step"), label(note.message)) for note in report.warnings if note.code == OUT_OF_STEP
    ]
    columns = tuple(Column(title, numeric=False) for title in ("host", "what", "how it shows"))
    return Table("Hosts that are missing, cut or out of step", columns, tuple(rows)) if rows else None
