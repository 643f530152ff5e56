"""What the commands, the dashboard and scripts call: summary(), ops(), diff().

Every function takes a PATH argument, or a side that ``measured`` has read already: so one reading serves many analyses.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    import polars as pl

    from profiler.analysis.summary import Measured
    from profiler.analysis.timelineexport import Step
    from profiler.reduced.write import Reduced
    from profiler.results import Check, CommReport, ConfigDelta, Diff, Ladder, MemoryReport, Note, Summary
    from profiler.results_efficiency import Kernels, RematReport, Roofline
    from profiler.results_health import Health
    from profiler.results_history import History
    from profiler.results_skew import HostsReport
    from profiler.results_timeline import TimelineExport
    from profiler.trace import Trace
    from profiler.xplane.locate import Side


@dataclass(frozen=True, slots=True)
class Options:
    """How to read one side.

    Attributes:
        host, device: keep only this host, this device ("TPU:0").
        steps: keep the steady steps [A, B); None is open.
        skip_first: leave out this many steady steps first.
        tokens_per_step: tokens per device and step.
        model_tflops: model TFLOPs per device and step.
        peak_tflops: dense peak per device, instead of the chip table's.
        config: YAML of the run, a path or a URL: knobs, and model FLOPs or tokens where it has them.
        normalize: "auto", "token", "flop", "step" or "run".
        force: compare what is not comparable.
        all_devices: of a run of several hosts all devices, in memory at once, and the means over them; else its median
            device (docs/fleet.md).
    """

    host: str | None = None
    device: str | None = None
    steps: tuple[int | None, int | None] | None = None
    skip_first: int | None = None
    tokens_per_step: float | None = None
    model_tflops: float | None = None
    peak_tflops: float | None = None
    config: Path | str | None = None
    normalize: str = "auto"
    force: bool = False
    all_devices: bool = False


@dataclass(frozen=True, slots=True)
class OpTable:
    """The per-op table, as XProf counts.

    ``ops`` columns: program, program_id, op, category, family, phase, occurrences, total_time_ps, self_time_ps, flops,
    bytes_accessed (sums over occurrences), name_stack, source; largest self time first. ``unattributed`` has the same
    columns for device activity without an HLO op. Sums over ``devices`` devices.
    """

    file: str
    ops: pl.DataFrame
    unattributed: pl.DataFrame
    devices: int
    warnings: tuple[Note, ...]


def load(path: str | Side, options: Options = Options(), *, timelines: bool = True, label: str | None = None) -> Trace:
    """Reads and reduces what a PATH argument names; see profiler.xplane.locate; ``label`` instead of its own.

    A side that is located already must be fetched too.
    """
    from profiler.reduce import load as reduce
    from profiler.runinfo import with_config

    side = _here([path])[0] if isinstance(path, str) else path
    trace = reduce(
        side if label is None else replace(side, label=label),
        host=options.host,
        device=options.device,
        timelines=timelines,
        all_devices=options.all_devices,
    )
    return with_config(trace, options.config)


def _here(paths: Sequence[str]) -> list[Side]:
    """The sides that PATH arguments name; those of URLs are fetched, all at once."""
    from profiler.xplane.locate import locate

    sides = [locate(path) for path in paths]
    recordings = [recording for side in sides for recording in side.recordings]
    if any(recording.remote for recording in recordings):
        from profiler.xplane.fetch import fetch

        fetch(recordings)
    return sides


def measured(path: str | Side | Measured, options: Options = Options(), *, label: str | None = None) -> Measured:
    """Reads one side and times its steady steps; a side that is measured already is given back as it is."""
    from profiler.analysis.summary import Measured, measure

    return path if isinstance(path, Measured) else measure(load(path, options, label=label), options)


def reduce(
    path: str,
    output: Path,
    *,
    keep: str = "median",
    engine: str = "local",
    workers: int | None = None,
    progress: Callable[[int, int], None] = lambda done, of: None,
) -> Reduced:
    """Writes the reduced form of the run that a PATH argument names; see profiler.reduced.

    Args:
        path: one recording.
        output: the folder to write.
        keep: whose spans are kept, those of the "median" device or of "all".
        engine: who reads the hosts, "local" processes or a "ray" cluster.
        workers: how many are read at once; None for as many as there are cores and memory for.
        progress: called after each host: how many are done, of how many.

    Raises:
        UnreadableError: no host can be read.
        UsageError: something else is at ``output``, or the argument names several recordings or a reduced run.
    """
    from profiler.errors import UsageError
    from profiler.reduce.engines import engine as named
    from profiler.reduced.write import reduce_run

    reader = named(engine)
    recordings = _here([path])[0].recordings
    if len(recordings) > 1:
        raise UsageError(
            "names several recordings", file=path, remedy="reduce each, and join the reduced runs by commas"
        )
    return reduce_run(recordings[0], output, keep=keep, engine=reader, workers=workers, progress=progress)


def summary(path: str | Measured, options: Options = Options()) -> Summary:
    """What one recording says."""
    return measured(path, options).summary


def ops(path: str | Measured, options: Options = Options()) -> OpTable:
    """The per-op table of one recording."""
    from profiler.analysis.ops import op_table

    trace = load(path, replace(options, config=None), timelines=False) if isinstance(path, str) else path.trace
    listed, unattributed = op_table(trace)
    return OpTable(", ".join(trace.files), listed, unattributed, len(trace.devices), trace.warnings)


def kernels(path: str | Measured, options: Options = Options()) -> Kernels:
    """How often, how long and how fast the custom kernels of one recording run."""
    from profiler.analysis.kernels import kernels as analyse

    return analyse(measured(path, options))


def config(base: Path | str, opt: Path | str) -> ConfigDelta:
    """What differs between two configurations (paths or URLs), without any trace."""
    from profiler.compare.knobs import config_delta
    from profiler.runinfo import config_info
    from profiler.xplane.urls import shown

    return config_delta(config_info(base), config_info(opt), (shown(str(base)), shown(str(opt))))


def memory(path: str | Measured, options: Options = Options()) -> MemoryReport:
    """HBM of one recording: its peaks, and what fills the static one."""
    from profiler.analysis.hbm import report

    return report(load(path, options) if isinstance(path, str) else path.trace)


def remat(path: str | Measured, options: Options = Options()) -> RematReport:
    """What one recording runs again in the backward pass, and what keeping tensors would cost and save."""
    from profiler.analysis.rerun import remat as analyse

    return analyse(measured(path, options))


def roofline(path: str | Measured, options: Options = Options(), *, hbm_gb_per_s: float | None = None) -> Roofline:
    """How far the compute ops of one recording are from what the chip can do.

    Args:
        path, options: the recording, and how to read it.
        hbm_gb_per_s: HBM bandwidth per device, instead of the chip table's.
    """
    from profiler.analysis.roofline import roofline as analyse

    return analyse(measured(path, options), hbm_bytes_per_s=hbm_gb_per_s * 1e9 if hbm_gb_per_s else None)


def health(path: str | Measured, options: Options = Options()) -> Health:
    """How far the figures of one recording can be trusted: what it covers, lacks, lost and assumes."""
    from profiler.analysis.health import health as analyse

    return analyse(measured(path, options))


def hosts(path: str | Measured, options: Options = Options()) -> HostsReport:
    """All devices of all hosts of a run beside each other: which host or chip the others wait for, and what it costs.

    Raises:
        UsageError: the argument names several recordings, or no step is left.
    """
    from profiler.analysis.skew import skew
    from profiler.errors import UsageError

    trace = load(path, replace(options, config=None)) if isinstance(path, str) else path.trace
    if trace.recordings > 1:
        raise UsageError("names several recordings", file=trace.label, remedy="give one run at a time")
    return skew(trace, options.steps, options.skip_first or 0)


def ladder(paths: Sequence[str | Measured], options: Sequence[Options]) -> Ladder:
    """Explains a chain of runs, each against the one before and against the first; ``options`` one for each.

    Raises:
        NotComparableError: two neighbours cannot be compared, and ``force`` is not set.
    """
    from profiler.compare.ladder import ladder as compare_all

    return compare_all(_sides(paths, options), normalize=options[0].normalize, force=options[0].force)


def history(
    folder: Path, metric: str | None = None, progress: Callable[[int, int], None] = lambda done, of: None
) -> History:
    """A figure of every run below a folder in the order of time, where its level changed, and what changed with it.

    Args:
        folder: of reduced runs, which are read at once, or of recordings, which are measured.
        metric: one of profiler.history.METRICS; None for MFU where most runs know it, else the mean step.
        progress: called after each run: how many are read, of how many.

    Raises:
        UnreadableError: no run in it can be read.
        UsageError: there is no such metric.
    """
    from profiler.history import history as tell

    return tell(folder, metric, progress)


def comm(path: str | Measured, options: Options = Options()) -> CommReport:
    """Communication, transfers and waiting of one recording: in flight, exposed and hidden."""
    from profiler.analysis.comm import report

    return report(measured(path, options))


def timeline(paths: Sequence[str | Measured], options: Options = Options(), step: Step = None) -> TimelineExport:
    """The spans of a steady step of one recording, or of baseline and optimized, for profiler.report.perfetto.

    Args:
        paths: one recording, or two.
        options: how to read them.
        step: a steady step by its number, "all" of them, or None for the one nearest the median length.

    Raises:
        UsageError: a side has no such step.
    """
    from profiler.analysis.timelineexport import export

    return export(_sides(paths, [options] * len(paths)), step)


def diff(
    base: str | Measured, opt: str | Measured, base_options: Options = Options(), opt_options: Options | None = None
) -> Diff:
    """Explains the change from ``base`` to ``opt``.

    Raises:
        NotComparableError: the sides differ in a way that makes the comparison meaningless, and ``force`` is not set.
    """
    from profiler.compare import compare

    baseline, optimized = _sides((base, opt), (base_options, opt_options or base_options))
    return compare(baseline, optimized, normalize=base_options.normalize, force=base_options.force)


def _sides(paths: Sequence[str | Measured], options: Sequence[Options]) -> list[Measured]:
    """All sides, read side by side; those of paths get labels that tell them apart.

    Sides of several hosts are read one after the other: each takes all cores and the memory for itself.
    """
    from concurrent.futures import ThreadPoolExecutor

    from profiler.xplane.locate import labels

    located = _here([path for path in paths if isinstance(path, str)])
    here = iter(zip(located, labels(located), strict=True))
    sides = [next(here) if isinstance(path, str) else (path, None) for path in paths]
    if any(len(recording.files) > 1 for side in located for recording in side.recordings):
        return [measured(side, each, label=label) for (side, label), each in zip(sides, options, strict=True)]
    with ThreadPoolExecutor(2) as pool:
        return list(pool.map(lambda side, each: measured(side[0], each, label=side[1]), sides, options))


def check(diff: Diff, fail_on: Sequence[str], warn_on: Sequence[str] = (), *, allow_unknown: bool = False) -> Check:
    """Holds a diff against thresholds such as "mfu<-1%"; docs/commands/check.md has the grammar.

    Raises:
        UsageError: an expression is none.
    """
    from profiler.gate import check as judge
    from profiler.gate import collect

    return judge(diff, *collect(fail_on, warn_on), allow_unknown=allow_unknown)
