"""The ``profiler`` command: arguments in, one rendered result out.

Data goes to stdout, notes to stderr. Exit codes: 0 fine, 2 usage, 3 unreadable input, 4 not comparable, 70 a bug of
ours, 130 interrupted, 141 the reader of our output went away. Every failure prints one line; ``--debug`` adds the
traceback.

Nothing heavy is imported at the top: ``profiler --help`` must answer at once.
"""

from __future__ import annotations

import argparse
import math
import os
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, NoReturn

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
        print(f"profiler {number}")
        parser.exit()


# --- argument types: a ValueError becomes "invalid NAME value" -----------------------------------------------------


def _count(text: str) -> int:
    number = int(text)
    if number < 0:
        raise argparse.ArgumentTypeError(f"{text} is negative")
    return number


def _positive(text: str) -> float:
    try:
        number = float(text)
    except ValueError:
        number = math.nan
    if not (number > 0 and math.isfinite(number)):
        raise argparse.ArgumentTypeError(f"{text!r} is not a positive number")
    return number


def _one_or_two(text: str) -> tuple[float, float]:
    """``V`` for both sides, or ``BASE,OPT``."""
    parts = [_positive(part) for part in text.split(",")]
    if len(parts) > 2:
        raise argparse.ArgumentTypeError(f"{text!r} has more than two values (one, or BASE,OPT)")
    return parts[0], parts[-1]


def _step_range(text: str) -> tuple[int | None, int | None]:
    """``A:B``; either end may be left out."""
    first, colon, last = text.partition(":")
    try:
        ends = (int(first) if first else None, int(last) if last else None)
    except ValueError:
        colon = ""
        ends = (None, None)
    if not colon:
        raise argparse.ArgumentTypeError(f"{text!r} is not a range of steps such as 3:8, 3: or :8")
    if ends[0] is not None and ends[1] is not None and ends[0] >= ends[1]:
        raise argparse.ArgumentTypeError(f"{text!r} is empty: the first step must lie before the end")
    return ends


# --- the parser ----------------------------------------------------------------------------------------------------


def _add_output_options(parser: argparse.ArgumentParser, formats: tuple[str, ...], rows: str | None) -> None:
    group = parser.add_argument_group("output")
    group.add_argument("--format", choices=formats, help="default: text, or what the name after -o ends in")
    group.add_argument("-o", "--output", metavar="FILE", type=Path, help="write here instead of stdout")
    if rows is not None:
        group.add_argument("--top", metavar="N", type=_count, help=f"{rows}; 0 for all")
    group.add_argument("--debug", action="store_true", default=argparse.SUPPRESS, help="show tracebacks")
    parser.set_defaults(formats=formats)


def _add_selection_options(parser: argparse.ArgumentParser) -> None:
    group = parser.add_argument_group("what to read")
    group.add_argument("--host", metavar="NAME", help="only this host's planes")
    group.add_argument("--device", metavar="NAME", help="only this device, for example TPU:0")
    group.add_argument(
        "--steps", metavar="A:B", type=_step_range, help="only steady steps from A up to, not including, B"
    )
    group.add_argument("--skip-first", metavar="N", type=_count, help="leave the first N steady steps out")


def _add_fact_options(parser: argparse.ArgumentParser, sides: int) -> None:
    group = parser.add_argument_group(
        "facts that a trace does not carry", "one value for both sides, or BASE,OPT" if sides == 2 else None
    )
    files = ("BASE.yml", "OPT.yml")[:sides] if sides == 2 else ("RUN.yml",)
    group.add_argument(
        "--config", metavar=files, nargs=sides, type=Path, help="run configuration (MaxText YAML as it is)"
    )
    value = _one_or_two if sides == 2 else _positive
    metavar = "N[,N]" if sides == 2 else "N"
    group.add_argument("--tokens-per-step", metavar=metavar, type=value, help="tokens per device and step")
    group.add_argument(
        "--model-tflops", metavar=metavar, type=value, help="model TFLOP per device and step; the numerator of MFU"
    )
    group.add_argument(
        "--peak-tflops", metavar=metavar, type=value, help="dense bf16 TFLOP/s per device; for chips `peaks` lacks"
    )


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
    _add_selection_options(ops)
    ops.set_defaults(run=run_ops)

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
    group = diff.add_argument_group("comparison")
    group.add_argument(
        "--normalize",
        choices=("auto", "token", "flop", "step", "run"),
        default="auto",
        help="the unit of work that both sides are measured per (default: auto)",
    )
    group.add_argument("--force", action="store_true", help="compare even what is not comparable")
    diff.set_defaults(run=run_diff)

    peaks = commands.add_parser("peaks", help="the chip table with sources")
    _add_output_options(peaks, ("text", "json", "markdown", "csv"), None)
    peaks.set_defaults(run=run_peaks)
    return parser


def _options(args: argparse.Namespace, side: int | None = None) -> Options:
    """The library's options; ``side`` is 0 for BASE and 1 for OPT, None where there is one recording."""
    from profiler.api import Options

    def fact(name: str) -> Any:
        value = getattr(args, name, None)
        return value if value is None or side is None else value[side]

    config: list[Path] | None = getattr(args, "config", None)
    return Options(
        host=args.host,
        device=args.device,
        steps=args.steps,
        skip_first=args.skip_first,
        tokens_per_step=fact("tokens_per_step"),
        model_tflops=fact("model_tflops"),
        peak_tflops=fact("peak_tflops"),
        config=config[side or 0] if config else None,
        normalize=getattr(args, "normalize", "auto"),
        force=getattr(args, "force", False),
    )


# --- commands ------------------------------------------------------------------------------------------------------


def run_summary(args: argparse.Namespace) -> None:
    """``profiler summary PATH``."""
    from profiler.report import output, render_summary

    target = output.target(args.format, args.output, args.formats)
    from profiler import api

    result = api.summary(args.path, _options(args))
    target.write(render_summary(result, target.format, target.style, args.top))
    if target.format == "csv":
        _warn(result.warnings)


def run_ops(args: argparse.Namespace) -> None:
    """``profiler ops PATH``."""
    from profiler.report import output, render_ops

    target = output.target(args.format, args.output, args.formats)
    from profiler import api

    result = api.ops(args.path, _options(args))
    target.write(render_ops(result, target.format, target.style, args.top))
    if target.format in ("csv", "parquet"):
        _warn(result.warnings)


def run_diff(args: argparse.Namespace) -> None:
    """``profiler diff BASE OPT``."""
    from profiler.report import output, render_diff, render_html

    target = output.target(args.format, args.output, args.formats)
    page = output.target("html", args.html, ("html",)) if args.html else None
    from profiler import api

    result = api.diff(args.baseline, args.optimized, _options(args, 0), _options(args, 1))
    # Both are rendered before either is written: a failure leaves no half of the answer behind.
    data = render_diff(result, target.format, target.style, args.top)
    html = render_html(result) if page else b""
    if page:
        page.write(html)
        print(f"profiler: wrote {args.html}", file=sys.stderr)
    target.write(data)
    if target.format == "csv":
        _warn((*result.warnings, *result.baseline.warnings, *result.optimized.warnings))


def run_peaks(args: argparse.Namespace) -> None:
    """``profiler peaks``."""
    from profiler.report import output, render_peaks

    target = output.target(args.format, args.output, args.formats)
    target.write(render_peaks(target.format, target.style))


def _warn(notes: Sequence[Note]) -> None:
    """Warnings of a result whose format has no place for them."""
    from profiler.report.units import clean

    for note in dict.fromkeys(notes):
        print(f"profiler: warning: {clean(note.message)}", file=sys.stderr)


# --- entry ---------------------------------------------------------------------------------------------------------


def _fail(message: str, code: int) -> int:
    # One line whatever the message holds: a file name may contain a newline or an escape sequence.
    line = "".join(char if char.isprintable() else ascii(char)[1:-1] for char in message)
    encoding = sys.stderr.encoding or "utf-8"
    print("profiler: error: " + line.encode(encoding, "backslashreplace").decode(encoding), file=sys.stderr)
    return code


def _run(argv: Sequence[str]) -> None:
    parser = build_parser()
    args = parser.parse_args(argv)
    if not hasattr(args, "run"):
        parser.print_help()
        return
    args.run(args)
    sys.stdout.flush()


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

    traceback.print_exc()
