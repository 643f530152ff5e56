"""The ``profiler`` command: arguments in, one rendered result out.

Data goes to stdout, notes to stderr. Exit codes: 0 fine, 2 usage, 3 unreadable input, 4 not comparable, 70 a bug of
ours, 130 interrupted, 141 the reader of our output went away. Every failure prints one line; ``--debug`` adds the
traceback.

Nothing heavy is imported at the top: ``profiler --help`` must answer at once.
"""

from __future__ import annotations

import argparse
import contextlib
import math
import os
import re
import sys
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, NoReturn, TextIO

from profiler.errors import ProfilerError, UsageError

if TYPE_CHECKING:
    from profiler.api import Options
    from profiler.results import Note

EXIT_BUG = 70  # sysexits' EX_SOFTWARE: not to be taken for a failed --fail-on threshold, which is 1
EXIT_INTERRUPTED = 130
EXIT_BROKEN_PIPE = 141

PATH_HELP = "an .xplane.pb file (or .gz), a run folder, a log folder (latest run), or label=PATH; a,b for repeats"


class _Parser(argparse.ArgumentParser):
    """Raises usage errors instead of printing the whole usage, and takes no abbreviated options."""

    def __init__(self, *args: Any, **kwargs: Any):
        kwargs.setdefault("allow_abbrev", False)
        kwargs.setdefault("formatter_class", argparse.RawDescriptionHelpFormatter)
        super().__init__(*args, **kwargs)
        # "--steps -3:5" is a range that is wrong, not an option that is unknown.
        self._negative_number_matcher = re.compile(r"-\.?\d")

    def _print_message(self, message: str, file: Any = None) -> None:
        # Argparse ignores what stops its help from being written.
        _print(message)

    def error(self, message: str) -> NoReturn:
        raise UsageError(message, remedy=f"see {self.prog} --help")


class _Version(argparse.Action):
    """Looks the version up only when it is asked for."""

    def __init__(self, option_strings: Sequence[str], dest: str, **kwargs: Any):
        super().__init__(option_strings, dest, nargs=0, **kwargs)

    def __call__(self, parser: argparse.ArgumentParser, *_: Any) -> NoReturn:
        from importlib.metadata import PackageNotFoundError, version

        try:
            number = version("profiler")
        except PackageNotFoundError:
            number = "(not installed)"
        _print(f"profiler {number}\n")
        parser.exit()


def _print(text: str) -> None:
    """Text of ours to stdout, whole or as an error."""
    from profiler.report import output

    encoding = getattr(output.stdout(), "encoding", None) or "utf-8"
    output.write_stdout(text.encode(encoding, "backslashreplace"))


# --- argument types -------------------------------------------------------------------------------------------------

MOST_ROWS = 10**9
MOST_STEPS = 10**15
FIGURES = (1e-9, 1e12)  # of TFLOP and TFLOP/s: beyond it lies a mistake, such as FLOP for TFLOP
TOKENS = (1e-9, 1e18)
MANY = 0  # sides of a command that takes any number of runs


def _shown(text: str) -> str:
    return repr(text if len(text) <= 40 else f"{text[:39]}…")


def _whole(text: str, most: int) -> int:
    """A whole number from 0 to ``most``."""
    try:
        number = int(text) if len(text) <= 40 else most + 1
    except ValueError:
        raise argparse.ArgumentTypeError(f"{_shown(text)} is not a whole number") from None
    if number < 0:
        raise argparse.ArgumentTypeError(f"{text} is negative")
    if number > most:
        raise argparse.ArgumentTypeError(f"{_shown(text)} is more than {most}")
    return number


def _rows(text: str) -> int:
    return _whole(text, MOST_ROWS)


def _steps(text: str) -> int:
    return _whole(text, MOST_STEPS)


def _figure(limits: tuple[float, float]) -> Callable[[str], float]:
    """A number between two limits."""
    low, high = limits

    def parse(text: str) -> float:
        try:
            number = float(text)
        except ValueError:
            number = math.nan
        if not (number > 0 and math.isfinite(number)):
            raise argparse.ArgumentTypeError(f"{_shown(text)} is not a positive number")
        if not low <= number <= high:
            raise argparse.ArgumentTypeError(f"{_shown(text)} is not between {low:g} and {high:g}")
        return number

    return parse


def _one_or_two(parse: Callable[[str], float]) -> Callable[[str], tuple[float, float]]:
    """``V`` for both sides, or ``BASE,OPT``."""

    def parse_both(text: str) -> tuple[float, float]:
        parts = text.split(",")
        if len(parts) > 2:
            raise argparse.ArgumentTypeError(f"{_shown(text)} has more than two values (one, or BASE,OPT)")
        return parse(parts[0]), parse(parts[-1])

    return parse_both


def _one_or_each(parse: Callable[[str], float]) -> Callable[[str], tuple[float, ...]]:
    """``V`` for all runs, or one value for each."""
    return lambda text: tuple(parse(part) for part in text.split(","))


def _step_range(text: str) -> tuple[int | None, int | None]:
    """``A:B``; either end may be left out."""
    first, colon, last = text.partition(":")
    try:
        ends = (int(first) if first else None, int(last) if last else None)
    except ValueError:
        colon = ""
        ends = (None, None)
    if not colon:
        raise argparse.ArgumentTypeError(f"{_shown(text)} is not a range of steps such as 3:8, 3: or :8")
    if any(end is not None and end < 0 for end in ends):
        raise argparse.ArgumentTypeError(f"{_shown(text)} has a negative end: steps count from 0")
    if any(end is not None and end > MOST_STEPS for end in ends):
        raise argparse.ArgumentTypeError(f"{_shown(text)} has an end over {MOST_STEPS}")
    if ends[0] is not None and ends[1] is not None and ends[0] >= ends[1]:
        raise argparse.ArgumentTypeError(f"{_shown(text)} is empty: the first step must lie before the end")
    return ends


# --- the parser ----------------------------------------------------------------------------------------------------


def _add_output_options(parser: argparse.ArgumentParser, formats: tuple[str, ...], rows: str | None) -> None:
    group = parser.add_argument_group("output")
    group.add_argument("--format", choices=formats, help="default: text, or what the name after -o ends in")
    group.add_argument("-o", "--output", metavar="FILE", type=Path, help="write here instead of stdout")
    if rows is not None:
        group.add_argument("--top", metavar="N", type=_rows, help=f"{rows}; 0 for all")
    group.add_argument("--debug", action="store_true", default=argparse.SUPPRESS, help="show tracebacks")
    parser.set_defaults(formats=formats)


def _add_selection_options(parser: argparse.ArgumentParser, steps: bool = True) -> None:
    group = parser.add_argument_group("what to read")
    group.add_argument("--host", metavar="NAME", help="only this host's planes")
    group.add_argument("--device", metavar="NAME", help="only this device, for example TPU:0")
    if not steps:
        return
    group.add_argument(
        "--steps", metavar="A:B", type=_step_range, help="only steady steps from A up to, not including, B"
    )
    group.add_argument("--skip-first", metavar="N", type=_steps, help="leave the first N steady steps out")


def _add_fact_options(parser: argparse.ArgumentParser, sides: int) -> None:
    how = {2: "one value for both sides, or BASE,OPT", MANY: "one value for all runs, or one for each: A,B,C"}
    group = parser.add_argument_group("facts that a trace does not carry", how.get(sides))
    files: Any = ("BASE.yml", "OPT.yml") if sides == 2 else "RUN.yml" if sides == MANY else ("RUN.yml",)
    count = "+" if sides == MANY else sides
    group.add_argument(
        "--config", metavar=files, nargs=count, type=Path, help="run configuration (MaxText YAML as it is)"
    )

    def value(limits: tuple[float, float]) -> Callable[[str], Any]:
        figure = _figure(limits)
        return figure if sides == 1 else _one_or_two(figure) if sides == 2 else _one_or_each(figure)

    metavar = {1: "N", 2: "N[,N]"}.get(sides, "N[,N…]")
    group.add_argument("--tokens-per-step", metavar=metavar, type=value(TOKENS), help="tokens per device and step")
    group.add_argument(
        "--model-tflops",
        metavar=metavar,
        type=value(FIGURES),
        help="model TFLOP per device and step; the numerator of MFU",
    )
    group.add_argument(
        "--peak-tflops",
        metavar=metavar,
        type=value(FIGURES),
        help="dense bf16 TFLOP/s per device; for chips `peaks` lacks",
    )


def _add_comparison_options(parser: argparse.ArgumentParser) -> None:
    group = parser.add_argument_group("comparison")
    group.add_argument(
        "--normalize",
        choices=("auto", "token", "flop", "step", "run"),
        default="auto",
        help="the unit of work that all sides are measured per (default: auto)",
    )
    group.add_argument("--force", action="store_true", help="compare even what is not comparable")


def build_parser() -> argparse.ArgumentParser:
    """The whole command line; every command sets ``run``."""
    parser = _Parser(
        prog="profiler",
        description="Reads JAX .xplane.pb profiles and explains why a run got faster or slower.",
        epilog="exit codes: 0 fine, 2 usage, 3 unreadable input, 4 not comparable without --force",
    )
    parser.add_argument("--version", action=_Version, help="print the version and exit")
    parser.add_argument("--debug", action="store_true", default=False, help="show tracebacks")
    commands = parser.add_subparsers(title="commands", metavar="COMMAND", parser_class=_Parser)

    summary = commands.add_parser("summary", help="what one recording says, on one screen")
    summary.add_argument("path", metavar="PATH", help=PATH_HELP)
    _add_output_options(summary, ("text", "json", "markdown", "csv"), "rows per table (default: 20)")
    _add_selection_options(summary)
    _add_fact_options(summary, 1)
    summary.set_defaults(run=run_summary)

    ops = commands.add_parser("ops", help="the per-op table, largest self time first")
    ops.add_argument("path", metavar="PATH", help=PATH_HELP)
    _add_output_options(
        ops,
        ("text", "json", "markdown", "csv", "parquet"),
        "rows (default: 30 in text and markdown, all in the data formats)",
    )
    _add_selection_options(ops, steps=False)  # the table counts the whole recording, as XProf's does
    ops.set_defaults(run=run_ops)

    kernels = commands.add_parser("kernels", help="custom kernels: calls, time, share of the chip's peak, tiles")
    kernels.add_argument("path", metavar="PATH", help=PATH_HELP)
    _add_output_options(kernels, ("text", "json", "markdown", "csv"), "rows per table (default: 20)")
    _add_selection_options(kernels)
    _add_fact_options(kernels, 1)
    kernels.set_defaults(run=run_kernels)

    remat = commands.add_parser(
        "remat", help="what runs again in the backward pass, and what keeping tensors would save"
    )
    remat.add_argument("path", metavar="PATH", help=PATH_HELP)
    _add_output_options(remat, ("text", "json", "markdown", "csv"), "rows per table (default: 20)")
    _add_selection_options(remat)
    _add_fact_options(remat, 1)
    remat.set_defaults(run=run_remat)

    roofline = commands.add_parser("roofline", help="how far each op is from the chip's roof: wasted time, MFU and HFU")
    roofline.add_argument("path", metavar="PATH", help=PATH_HELP)
    _add_output_options(
        roofline,
        ("text", "json", "markdown", "csv"),
        "rows per table (default: 15 in text and markdown, all in the data formats)",
    )
    _add_selection_options(roofline)
    _add_fact_options(roofline, 1)
    roofline.add_argument(
        "--hbm-gb-per-s",
        metavar="N",
        type=_figure(FIGURES),
        help="HBM bandwidth per device; for chips `peaks` lacks",
    )
    roofline.set_defaults(run=run_roofline)

    memory = commands.add_parser("memory", help="HBM: the peaks, what is alive at the peak, headroom, host memory")
    memory.add_argument("path", metavar="PATH", help=PATH_HELP)
    _add_output_options(memory, ("text", "json", "markdown", "csv"), "rows per table (default: 20)")
    _add_selection_options(memory, steps=False)
    memory.set_defaults(run=run_memory)

    comm = commands.add_parser("comm", help="communication, transfers and waiting: in flight, exposed, hidden, GB/s")
    comm.add_argument("path", metavar="PATH", help=PATH_HELP)
    _add_output_options(comm, ("text", "json", "markdown", "csv"), "rows per table (default: 20)")
    _add_selection_options(comm)
    _add_fact_options(comm, 1)
    comm.set_defaults(run=run_comm)

    diff = commands.add_parser("diff", help="explain why OPT is faster or slower than BASE (main job)")
    diff.add_argument("baseline", metavar="BASE", help=PATH_HELP)
    diff.add_argument("optimized", metavar="OPT", help="the same for the other side")
    _add_output_options(
        diff,
        ("text", "json", "markdown", "csv"),
        "rows per table (default: 20 in text and markdown, all in the data formats)",
    )
    diff.add_argument("--html", metavar="FILE", type=Path, help="also write a self-contained HTML report")
    _add_selection_options(diff)
    _add_fact_options(diff, 2)
    _add_comparison_options(diff)
    diff.set_defaults(run=run_diff)

    ladder = commands.add_parser("ladder", help="a chain of runs, each against the one before and the first")
    ladder.add_argument("paths", metavar="PATH", nargs="+", help=PATH_HELP)
    _add_output_options(ladder, ("text", "json", "markdown", "csv"), "rows (default: 15)")
    _add_selection_options(ladder)
    _add_fact_options(ladder, MANY)
    _add_comparison_options(ladder)
    ladder.set_defaults(run=run_ladder)

    config = commands.add_parser("config", help="what differs between two configurations, without traces")
    config.add_argument("base_config", metavar="BASE.yml", type=Path, help="MaxText YAML as it is, or run info")
    config.add_argument("opt_config", metavar="OPT.yml", type=Path, help="the same for the other side")
    _add_output_options(
        config, ("text", "json", "markdown", "csv"), "rows (default: 30, one for keys that go together)"
    )
    config.set_defaults(run=run_config)

    peaks = commands.add_parser("peaks", help="the chip table with sources")
    _add_output_options(peaks, ("text", "json", "markdown", "csv"), None)
    peaks.set_defaults(run=run_peaks)
    return parser


def _options(args: argparse.Namespace, side: int | None = None) -> Options:
    """The library's options; ``side`` is 0 for BASE and 1 for OPT, None where there is one recording."""
    from profiler.api import Options

    def fact(name: str) -> Any:
        value = getattr(args, name, None)
        return value if value is None or side is None else value[min(side, len(value) - 1)]

    config: list[Path] | None = getattr(args, "config", None)
    return Options(
        host=args.host,
        device=args.device,
        steps=getattr(args, "steps", None),
        skip_first=getattr(args, "skip_first", None),
        tokens_per_step=fact("tokens_per_step"),
        model_tflops=fact("model_tflops"),
        peak_tflops=fact("peak_tflops"),
        config=config[min(side or 0, len(config) - 1)] if config else None,
        normalize=getattr(args, "normalize", "auto"),
        force=getattr(args, "force", False),
    )


def _check_outputs(args: argparse.Namespace) -> None:
    """Refuses an output that is an input, before any work is done."""
    outputs = [path for path in (args.output, getattr(args, "html", None)) if path is not None]
    if outputs:
        from profiler.report import output

        output.protect(outputs, _inputs(args))


def _inputs(args: argparse.Namespace) -> Iterator[Path]:
    """Every file that the command reads; one that cannot be found is named where it is read."""
    from profiler.xplane.locate import locate

    sides = [getattr(args, side, None) for side in ("path", "baseline", "optimized")]
    for argument in (*sides, *getattr(args, "paths", ())):
        if argument is not None:
            with contextlib.suppress(ProfilerError, OSError):
                for recording in locate(argument).recordings:
                    yield from recording.files
    yield from getattr(args, "config", None) or ()


# --- commands ------------------------------------------------------------------------------------------------------


def run_summary(args: argparse.Namespace) -> None:
    """``profiler summary PATH``."""
    from profiler.report import output, render_summary

    target = output.target(args.format, args.output, args.formats)
    _check_outputs(args)
    from profiler import api

    result = api.summary(args.path, _options(args))
    target.write(render_summary(result, target.format, target.style, args.top))
    if target.format == "csv":
        _warn(result.warnings)


def run_ops(args: argparse.Namespace) -> None:
    """``profiler ops PATH``."""
    from profiler.report import output, render_ops

    target = output.target(args.format, args.output, args.formats)
    _check_outputs(args)
    from profiler import api

    result = api.ops(args.path, _options(args))
    target.write(render_ops(result, target.format, target.style, args.top))
    if target.format in ("csv", "parquet"):
        _warn(result.warnings)


def run_kernels(args: argparse.Namespace) -> None:
    """``profiler kernels PATH``."""
    from profiler.report import output, render_kernels

    target = output.target(args.format, args.output, args.formats)
    _check_outputs(args)
    from profiler import api

    result = api.kernels(args.path, _options(args))
    target.write(render_kernels(result, target.format, target.style, args.top))
    if target.format == "csv":
        _warn(result.warnings)


def run_memory(args: argparse.Namespace) -> None:
    """``profiler memory PATH``."""
    from profiler.report import output, render_memory

    target = output.target(args.format, args.output, args.formats)
    _check_outputs(args)
    from profiler import api

    result = api.memory(args.path, _options(args))
    target.write(render_memory(result, target.format, target.style, args.top))
    if target.format == "csv":
        _warn(result.warnings)


def run_remat(args: argparse.Namespace) -> None:
    """``profiler remat PATH``."""
    from profiler.report import output, render_remat

    target = output.target(args.format, args.output, args.formats)
    _check_outputs(args)
    from profiler import api

    result = api.remat(args.path, _options(args))
    target.write(render_remat(result, target.format, target.style, args.top))
    if target.format == "csv":
        _warn(result.warnings)


def run_roofline(args: argparse.Namespace) -> None:
    """``profiler roofline PATH``."""
    from profiler.report import output, render_roofline

    target = output.target(args.format, args.output, args.formats)
    _check_outputs(args)
    from profiler import api

    result = api.roofline(args.path, _options(args), hbm_gb_per_s=args.hbm_gb_per_s)
    target.write(render_roofline(result, target.format, target.style, args.top))
    if target.format == "csv":
        _warn(result.warnings)


def run_comm(args: argparse.Namespace) -> None:
    """``profiler comm PATH``."""
    from profiler.report import output, render_comm

    target = output.target(args.format, args.output, args.formats)
    _check_outputs(args)
    from profiler import api

    result = api.comm(args.path, _options(args))
    target.write(render_comm(result, target.format, target.style, args.top))
    if target.format == "csv":
        _warn(result.warnings)


def run_diff(args: argparse.Namespace) -> None:
    """``profiler diff BASE OPT``."""
    from profiler.report import output, render_diff, render_html

    target = output.target(args.format, args.output, args.formats)
    page = output.target("html", args.html, ("html",)) if args.html else None
    _check_outputs(args)
    from profiler import api

    result = api.diff(args.baseline, args.optimized, _options(args, 0), _options(args, 1))
    # Both are rendered before either is written: a failure leaves no half of the answer behind.
    data = render_diff(result, target.format, target.style, args.top)
    html = render_html(result) if page else b""
    if page:
        page.write(html)
        _say(f"wrote {args.html}")
    target.write(data)
    if target.format == "csv":
        _warn((*result.warnings, *result.baseline.warnings, *result.optimized.warnings))


def run_ladder(args: argparse.Namespace) -> None:
    """``profiler ladder PATH PATH …``."""
    from profiler.report import output, render_ladder

    count = len(args.paths)
    if count < 2:
        raise UsageError("a ladder needs two runs or more", remedy="profiler summary says what one says")
    for option in ("config", "tokens_per_step", "model_tflops", "peak_tflops"):
        given = getattr(args, option)
        if given is not None and len(given) not in (1, count):
            raise UsageError(f"--{option.replace('_', '-')} has {len(given)} values for {count} runs")
    target = output.target(args.format, args.output, args.formats)
    _check_outputs(args)
    from profiler import api

    result = api.ladder(args.paths, [_options(args, index) for index in range(count)])
    target.write(render_ladder(result, target.format, target.style, args.top))
    if target.format == "csv":
        _warn((*result.warnings, *(note for run in result.runs for note in run.warnings)))


def run_config(args: argparse.Namespace) -> None:
    """``profiler config BASE.yml OPT.yml``."""
    from profiler.report import output, render_config

    target = output.target(args.format, args.output, args.formats)
    args.config = [args.base_config, args.opt_config]
    _check_outputs(args)
    from profiler import api

    result = api.config(args.base_config, args.opt_config)
    target.write(render_config(result, target.format, target.style, args.top))
    if target.format == "csv":
        _warn(result.warnings)


def run_peaks(args: argparse.Namespace) -> None:
    """``profiler peaks``."""
    from profiler.report import output, render_peaks

    target = output.target(args.format, args.output, args.formats)
    target.write(render_peaks(target.format, target.style))


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
    _write_stderr("profiler: " + "".join(char if char.isprintable() else ascii(char)[1:-1] for char in message) + "\n")


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
