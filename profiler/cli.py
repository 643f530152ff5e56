"""The ``profiler`` command: arguments in, one rendered result out.

Data goes to stdout, notes to stderr. Exit codes: 0 fine, 1 a --fail-on threshold hit, 2 usage, 3 unreadable, 4 not
comparable, 70 a bug of ours, 130 interrupted, 141 the reader of our output went away. Every failure prints one line;
``--debug`` adds the traceback.

Nothing heavy is imported at the top: ``profiler --help`` must answer at once.
"""

from __future__ import annotations

import argparse
import contextlib
import os
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, TextIO, TypeVar

from profiler.cli_options import (
    DASHBOARD_PATH_HELP,
    FIGURES,
    HISTORY_METRICS,
    MANY,
    PATH_HELP,
    Parser,
    Version,
    add_comparison_options,
    add_fact_options,
    add_output_options,
    add_reduce_options,
    add_selection_options,
    add_server_options,
    add_step_options,
    add_threshold_options,
    check_outputs,
    figure,
    file_or_url,
    options,
    step_number,
)
from profiler.errors import ProfilerError, ThresholdHit, UsageError

if TYPE_CHECKING:
    from profiler.results import Diff, Note

Result = TypeVar("Result")

EXIT_BUG = 70  # sysexits' EX_SOFTWARE: not to be taken for a failed --fail-on threshold, which is 1
EXIT_INTERRUPTED = 130
EXIT_BROKEN_PIPE = 141


def build_parser() -> argparse.ArgumentParser:
    """The whole command line; every command sets ``run``."""
    parser = Parser(
        prog="profiler",
        description="Reads JAX .xplane.pb profiles and explains why a run got faster or slower.",
        epilog="exit codes: 0 fine, 1 a --fail-on threshold hit, 2 usage, 3 unreadable, 4 not comparable (--force)",
    )
    parser.add_argument("--version", action=Version, help="print the version and exit")
    parser.add_argument("--debug", action="store_true", default=False, help="show tracebacks")
    commands = parser.add_subparsers(title="commands", metavar="COMMAND", parser_class=Parser)

    summary = commands.add_parser("summary", help="what one recording says")
    summary.add_argument("path", metavar="PATH", help=PATH_HELP)
    add_output_options(summary, ("text", "json", "markdown", "csv"), "rows per table (default: 15)")
    add_selection_options(summary)
    add_fact_options(summary, 1)
    summary.set_defaults(run=run_summary)

    ops = commands.add_parser("ops", help="the per-op table, largest self time first")
    ops.add_argument("path", metavar="PATH", help=PATH_HELP)
    add_output_options(
        ops,
        ("text", "json", "markdown", "csv", "parquet"),
        "rows (default: 30 in text and markdown, all in the data formats)",
    )
    add_selection_options(ops, steps=False)  # the table counts the whole recording, as XProf's does
    ops.set_defaults(run=run_ops)

    kernels = commands.add_parser("kernels", help="custom kernels: calls, time, share of the chip's peak, tiles")
    kernels.add_argument("path", metavar="PATH", help=PATH_HELP)
    add_output_options(kernels, ("text", "json", "markdown", "csv"), "rows per table (default: 20)")
    add_selection_options(kernels)
    add_fact_options(kernels, 1)
    kernels.set_defaults(run=run_kernels)

    remat = commands.add_parser(
        "remat", help="what runs again in the backward pass, and what keeping tensors would save"
    )
    remat.add_argument("path", metavar="PATH", help=PATH_HELP)
    add_output_options(remat, ("text", "json", "markdown", "csv"), "rows per table (default: 20)")
    add_selection_options(remat)
    add_fact_options(remat, 1)
    remat.set_defaults(run=run_remat)

    roofline = commands.add_parser("roofline", help="how far each op is from the chip's roof: wasted time, MFU and HFU")
    roofline.add_argument("path", metavar="PATH", help=PATH_HELP)
    add_output_options(
        roofline,
        ("text", "json", "markdown", "csv"),
        "rows per table (default: 15 in text and markdown, all in the data formats)",
    )
    add_selection_options(roofline)
    add_fact_options(roofline, 1)
    roofline.add_argument(
        "--hbm-gb-per-s",
        metavar="N",
        type=figure(FIGURES),
        help="HBM bandwidth per device; for chips `peaks` lacks",
    )
    roofline.set_defaults(run=run_roofline)

    memory = commands.add_parser("memory", help="HBM: the peaks, what is alive at the peak, headroom, host memory")
    memory.add_argument("path", metavar="PATH", help=PATH_HELP)
    add_output_options(memory, ("text", "json", "markdown", "csv"), "rows per table (default: 20)")
    add_selection_options(memory, steps=False)
    memory.set_defaults(run=run_memory)

    comm = commands.add_parser("comm", help="communication, transfers and waiting: in flight, exposed, hidden, GB/s")
    comm.add_argument("path", metavar="PATH", help=PATH_HELP)
    add_output_options(comm, ("text", "json", "markdown", "csv"), "rows per table (default: 20)")
    add_selection_options(comm)
    add_fact_options(comm, 1)
    comm.set_defaults(run=run_comm)

    health = commands.add_parser("health", help="how far to trust the figures: what is known, lost, lacking, assumed")
    health.add_argument("path", metavar="PATH", help=PATH_HELP)
    add_output_options(health, ("text", "json", "markdown", "csv"), "devices (default: 20)")
    add_selection_options(health)
    add_fact_options(health, 1)
    health.set_defaults(run=run_health)

    hosts = commands.add_parser("hosts", help="all devices of a run: which host or chip the others wait for")
    hosts.add_argument("path", metavar="PATH", help=PATH_HELP)
    add_output_options(hosts, ("text", "json", "markdown", "csv"), "rows per table (default: 20 in text and markdown)")
    add_step_options(hosts)
    hosts.set_defaults(run=run_hosts)

    diff = commands.add_parser("diff", help="explain why OPT is faster or slower than BASE (main job)")
    diff.add_argument("baseline", metavar="BASE", help=PATH_HELP)
    diff.add_argument("optimized", metavar="OPT", help="the same for the other side")
    add_output_options(
        diff,
        ("text", "json", "markdown", "csv"),
        "rows per table (default: 15 in text and markdown, all in the data formats)",
    )
    diff.add_argument("--html", metavar="FILE", type=Path, help="also write a self-contained HTML report")
    add_selection_options(diff)
    add_fact_options(diff, 2)
    add_comparison_options(diff)
    diff.set_defaults(run=run_diff)

    check = commands.add_parser("check", help="diff as a gate for CI: exit code 1 where a threshold is hit")
    check.add_argument("baseline", metavar="BASE", help=PATH_HELP)
    check.add_argument("optimized", metavar="OPT", help="the same for the other side")
    add_threshold_options(check)
    add_output_options(check, ("text", "json", "markdown"), "thresholds in the table (default: all)")
    add_selection_options(check)
    add_fact_options(check, 2)
    add_comparison_options(check)
    check.set_defaults(run=run_check)

    report = commands.add_parser("report", help="the HTML report of a pair: one file that opens anywhere")
    report.add_argument("baseline", metavar="BASE", help=PATH_HELP)
    report.add_argument("optimized", metavar="OPT", help="the same for the other side")
    add_output_options(report, ("html",), None, required=True)
    add_selection_options(report)
    add_fact_options(report, 2)
    add_comparison_options(report)
    report.set_defaults(run=run_report)

    timeline = commands.add_parser("timeline", help="the spans of a step, of one recording or two, for ui.perfetto.dev")
    timeline.add_argument("path", metavar="PATH", help=PATH_HELP)
    timeline.add_argument("optimized", metavar="OPT", nargs="?", help="another side beside it; both steps begin at 0")
    timeline.add_argument(
        "--step", metavar="N|all", type=step_number, help="which steady step (default: nearest the median length)"
    )
    add_output_options(timeline, ("perfetto",), None, required=True)
    add_selection_options(timeline, steps=False)
    timeline.set_defaults(run=run_timeline)

    ladder = commands.add_parser("ladder", help="a chain of runs, each against the one before and the first")
    ladder.add_argument("paths", metavar="PATH", nargs="+", help=PATH_HELP)
    add_output_options(ladder, ("text", "json", "markdown", "csv"), "rows (default: 15)")
    add_selection_options(ladder)
    add_fact_options(ladder, MANY)
    add_comparison_options(ladder)
    ladder.set_defaults(run=run_ladder)

    reduce = commands.add_parser("reduce", help="the hosts of a run as one small folder, a PATH as any other")
    reduce.add_argument("path", metavar="PATH", help=PATH_HELP)
    add_reduce_options(reduce)
    reduce.set_defaults(run=run_reduce)

    history = commands.add_parser("history", help="the runs of a folder over time: levels, and what changed them")
    history.add_argument("folder", metavar="FOLDER", type=Path, help="a folder of recordings or reduced runs")
    history.add_argument(
        "--metric",
        metavar="NAME",
        choices=HISTORY_METRICS,
        help=f"{', '.join(HISTORY_METRICS)} (default: mfu if known)",
    )
    add_output_options(history, ("text", "json", "markdown", "csv"), "runs per series (default: 20, the newest)")
    history.set_defaults(run=run_history)

    config = commands.add_parser("config", help="what differs between two configurations, without traces")
    config.add_argument("base_config", metavar="BASE.yml", type=file_or_url, help="MaxText YAML as it is, or run info")
    config.add_argument("opt_config", metavar="OPT.yml", type=file_or_url, help="the same for the other side")
    add_output_options(config, ("text", "json", "markdown", "csv"), "rows (default: 30, one for keys that go together)")
    config.set_defaults(run=run_config)

    dashboard = commands.add_parser("dashboard", help="explore recordings in the browser; needs the extra dashboard")
    dashboard.add_argument("paths", metavar="PATH", nargs="*", help=DASHBOARD_PATH_HELP)
    add_server_options(dashboard)
    dashboard.set_defaults(run=run_dashboard)

    peaks = commands.add_parser("peaks", help="the chip table with sources")
    add_output_options(peaks, ("text", "json", "markdown", "csv"), None, redact=False)
    peaks.set_defaults(run=run_peaks)
    return parser


# --- commands ------------------------------------------------------------------------------------------------------


def run_summary(args: argparse.Namespace) -> None:
    """``profiler summary PATH``."""
    from profiler import api, report

    _answer(args, lambda: api.summary(args.path, options(args)), report.render_summary)


def run_ops(args: argparse.Namespace) -> None:
    """``profiler ops PATH``."""
    from profiler import api, report

    _answer(args, lambda: api.ops(args.path, options(args)), report.render_ops)


def run_kernels(args: argparse.Namespace) -> None:
    """``profiler kernels PATH``."""
    from profiler import api, report

    _answer(args, lambda: api.kernels(args.path, options(args)), report.render_kernels)


def run_memory(args: argparse.Namespace) -> None:
    """``profiler memory PATH``."""
    from profiler import api, report

    _answer(args, lambda: api.memory(args.path, options(args)), report.render_memory)


def run_remat(args: argparse.Namespace) -> None:
    """``profiler remat PATH``."""
    from profiler import api, report

    _answer(args, lambda: api.remat(args.path, options(args)), report.render_remat)


def run_roofline(args: argparse.Namespace) -> None:
    """``profiler roofline PATH``."""
    from profiler import api, report

    bandwidth = args.hbm_gb_per_s
    _answer(args, lambda: api.roofline(args.path, options(args), hbm_gb_per_s=bandwidth), report.render_roofline)


def run_comm(args: argparse.Namespace) -> None:
    """``profiler comm PATH``."""
    from profiler import api, report

    _answer(args, lambda: api.comm(args.path, options(args)), report.render_comm)


def run_health(args: argparse.Namespace) -> None:
    """``profiler health PATH``."""
    from profiler import api, report

    _answer(args, lambda: api.health(args.path, options(args)), report.render_health, lambda health: health.problems)


def run_hosts(args: argparse.Namespace) -> None:
    """``profiler hosts PATH``."""
    from profiler import api, report

    _answer(args, lambda: api.hosts(args.path, options(args)), report.render_hosts)


def run_diff(args: argparse.Namespace) -> None:
    """``profiler diff BASE OPT``."""
    from profiler.report import output, render_diff, render_html

    target = output.target(args.format, args.output, args.formats)
    page = output.target("html", args.html, ("html",)) if args.html else None
    check_outputs(args)
    result = _diff(args)
    # Both are rendered before either is written: a failure leaves no half of the answer behind.
    data = render_diff(result, target.format, target.style, args.top)
    html = render_html(result, _typed(args)) if page else b""
    if page:
        page.write(html)
        _say(f"wrote {args.html}")
    target.write(data)
    if target.format == "csv":
        _warn((*result.warnings, *result.baseline.warnings, *result.optimized.warnings))


def _typed(args: argparse.Namespace) -> tuple[str, ...] | None:
    """The arguments after the command's name, for a report; None where they may say too much."""
    from profiler.xplane.urls import shown_argument

    return None if args.redact else tuple(map(shown_argument, args.argv[1:]))


def run_check(args: argparse.Namespace) -> None:
    """``profiler check BASE OPT``; what hits a threshold is said before it fails."""
    from profiler import gate
    from profiler.report import output, render_check

    target = output.target(args.format, args.output, args.formats)
    rules = gate.collect(args.fail_on, args.warn_on, args.thresholds)
    check_outputs(args)
    result = gate.check(_diff(args), *rules, allow_unknown=args.allow_unknown)
    target.write(render_check(result, target.format, target.style, args.top))
    if not result.passed:
        raise ThresholdHit(gate.failure(result))


def run_report(args: argparse.Namespace) -> None:
    """``profiler report BASE OPT``."""
    from profiler.report import output, render_html

    target = output.target("html", args.output, args.formats)
    check_outputs(args)
    target.write(render_html(_diff(args), _typed(args)))
    _say(f"wrote {args.output}")


def run_timeline(args: argparse.Namespace) -> None:
    """``profiler timeline PATH [OPT]``; gzipped where the name ends in ``.gz``."""
    from profiler import api
    from profiler.report import output, perfetto

    target = output.target("perfetto", args.output, args.formats)
    check_outputs(args)
    paths = [path for path in (args.path, args.optimized) if path is not None]
    result = _hidden(args, api.timeline(paths, options(args), args.step))
    pieces = perfetto.trace_events(result)
    target.write(perfetto.packed(pieces) if args.output.suffix.lower() == ".gz" else pieces)
    _say(f"wrote {args.output}")
    _warn(result.warnings)


def run_ladder(args: argparse.Namespace) -> None:
    """``profiler ladder PATH PATH …``."""
    from profiler import api, report

    count = len(args.paths)
    if count < 2:
        raise UsageError("a ladder needs two runs or more", remedy="profiler summary says what one says")
    for option in ("config", "tokens_per_step", "model_tflops", "peak_tflops"):
        given = getattr(args, option)
        if given is not None and len(given) not in (1, count):
            raise UsageError(f"--{option.replace('_', '-')} has {len(given)} values for {count} runs")
    _answer(
        args,
        lambda: api.ladder(args.paths, [options(args, index) for index in range(count)]),
        report.render_ladder,
        lambda ladder: (*ladder.warnings, *(note for run in ladder.runs for note in run.warnings)),
    )


def run_history(args: argparse.Namespace) -> None:
    """``profiler history FOLDER``; how far it is stands on stderr where that is a terminal."""
    from profiler import api, report

    _answer(args, lambda: api.history(args.folder, args.metric, _progress("runs")), report.render_history)


def _progress(what: str) -> Callable[[int, int], None]:
    """Counts on a terminal's stderr, says nothing elsewhere."""
    terminal = sys.stderr is not None and sys.stderr.isatty()

    def progress(done: int, of: int) -> None:
        if terminal:
            _write_stderr(f"\r{done:,} of {of:,} {what}" + "\n" * (done == of))

    return progress


def run_reduce(args: argparse.Namespace) -> None:
    """``profiler reduce PATH``."""
    from profiler import api
    from profiler.report import units

    made = api.reduce(
        args.path,
        args.output,
        keep=args.keep,
        engine=args.engine,
        workers=args.workers,
        progress=_progress("hosts"),
    )
    resumed = f" ({made.hosts_resumed:,} of them were done before)" if made.hosts_resumed else ""
    share = units.percent(made.bytes / made.source_bytes, 2) if made.source_bytes else units.UNKNOWN
    _say(
        f"wrote {made.path}: {made.hosts_read:,} of {made.hosts:,} hosts{resumed}, {made.devices:,} devices, "
        f"{units.size(made.bytes)} ({share} of {units.size(made.source_bytes)})"
    )
    _warn(made.warnings)


def run_config(args: argparse.Namespace) -> None:
    """``profiler config BASE.yml OPT.yml``."""
    from profiler import api, report

    args.config = [args.base_config, args.opt_config]
    _answer(args, lambda: api.config(args.base_config, args.opt_config), report.render_config)


def run_dashboard(args: argparse.Namespace) -> None:
    """``profiler dashboard [PATH …]``."""
    try:
        from dashboard.launch import launch
    except ModuleNotFoundError as error:
        raise UsageError("the dashboard is not installed", remedy="pip install 'profiler[dashboard]'") from error
    code = launch(
        args.paths,
        port=args.port,
        host=args.host,
        browser=not args.no_browser,
        max_upload_mb=args.max_upload_mb,
    )
    if code:
        raise SystemExit(code)


def run_peaks(args: argparse.Namespace) -> None:
    """``profiler peaks``."""
    from profiler.report import output, render_peaks

    target = output.target(args.format, args.output, args.formats)
    target.write(render_peaks(target.format, target.style))


def _answer(
    args: argparse.Namespace,
    analyse: Callable[[], Any],
    render: Callable[..., bytes],
    notes_of: Callable[[Any], Sequence[Note]] = lambda result: result.warnings,
) -> None:
    """Analyses and writes what comes of it; the destination is checked before the work."""
    from profiler.report import output

    target = output.target(args.format, args.output, args.formats)
    check_outputs(args)
    result = _hidden(args, analyse())
    target.write(render(result, target.format, target.style, args.top))
    if target.format in ("csv", "parquet"):
        _warn(notes_of(result))


def _diff(args: argparse.Namespace) -> Diff:
    """BASE against OPT, as all options of a comparison ask."""
    from profiler import api

    return _hidden(args, api.diff(args.baseline, args.optimized, options(args, 0), options(args, 1)))


def _hidden(args: argparse.Namespace, result: Result) -> Result:
    """The result as it may be shown: without names of hosts, folders and users where --redact asks for it."""
    if not args.redact:
        return result
    from profiler.redact import redacted

    return redacted(result)


def _warn(notes: Sequence[Note]) -> None:
    """Warnings of a result whose format has no place for them."""
    from profiler.report.model import MOST_NOTES, more_notes

    distinct = list(dict.fromkeys(notes))
    for note in distinct[:MOST_NOTES]:
        _say(f"warning: {note.message}")
    if len(distinct) > MOST_NOTES:
        _say(f"warning: {more_notes(len(distinct) - MOST_NOTES)}")


# --- entry ---------------------------------------------------------------------------------------------------------


def _say(message: str) -> None:
    """One line on stderr whatever the message holds: a file name may contain a newline or an escape sequence."""
    from profiler.xplane.urls import scrubbed

    message = "".join(char if char.isprintable() else ascii(char)[1:-1] for char in scrubbed(message))
    _write_stderr(f"profiler: {message}\n")


def _write_stderr(text: str) -> None:
    """Text on stderr, or nowhere where it is closed or full: the exit code is what is left then."""
    from profiler.report.output import write_all

    stream: TextIO | None = sys.stderr  # None when it is closed
    if stream is not None:
        encoding = getattr(stream, "encoding", None) or "utf-8"
        with contextlib.suppress(OSError, ValueError):
            write_all(stream, text.encode(encoding, "backslashreplace"))


def _fail(message: str, code: int) -> int:
    _say(f"error: {message}")
    return code


def _run(argv: Sequence[str]) -> None:
    parser = build_parser()
    args = parser.parse_args(argv)
    args.argv = tuple(argv)
    if not hasattr(args, "run"):
        parser.print_help()
        return
    args.run(args)


def main(argv: Sequence[str] | None = None) -> int:
    """Runs one command.

    Args:
        argv: arguments without the program's name; those of the process when None.

    Returns:
        The exit code.
    """
    argv = sys.argv[1:] if argv is None else list(argv)
    debug = "--debug" in argv
    try:
        _run(argv)
    except BrokenPipeError:
        # The interpreter flushes stdout once more at exit, which must not fail a second time.
        with contextlib.suppress(AttributeError, OSError, ValueError):
            os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return EXIT_BROKEN_PIPE
    except KeyboardInterrupt:
        return EXIT_INTERRUPTED
    except SystemExit as stop:  # argparse's --help and --version
        return stop.code if isinstance(stop.code, int) else 0
    except ProfilerError as error:
        if debug:
            _print_traceback()
        return _fail(str(error), error.exit_code)
    except Exception as error:
        if debug:
            _print_traceback()
        what = f"{type(error).__name__}: {error}" if str(error) else type(error).__name__
        remedy = "" if debug else "; run again with --debug and report it"
        return _fail(f"unexpected {what} (a bug in profiler{remedy})", EXIT_BUG)
    return 0


def _print_traceback() -> None:
    import traceback

    _write_stderr(traceback.format_exc())
