"""The options of the command line: what each may be, and what the library gets of them.

Nothing heavy is imported at the top: ``profiler --help`` must answer at once.
"""

from __future__ import annotations

import argparse
import contextlib
import math
import re
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, NoReturn

from profiler.errors import ProfilerError, UsageError

if TYPE_CHECKING:
    from profiler.api import Options

PATH_HELP = (
    "an .xplane.pb file (or .gz), a run folder, a log folder (latest run), a URL, or label=PATH; a,b for repeats"
)
DASHBOARD_PATH_HELP = "a folder of runs to choose from; or recordings: two are compared, more are a ladder"


class Parser(argparse.ArgumentParser):
    """Raises usage errors instead of printing the whole usage, and takes no abbreviated options."""

    def __init__(self, *args: Any, **kwargs: Any):
        kwargs.setdefault("allow_abbrev", False)
        kwargs.setdefault("formatter_class", argparse.RawDescriptionHelpFormatter)
        super().__init__(*args, **kwargs)
        # "--steps -3:5" is a range that is wrong, not an option that is unknown.
        self._negative_number_matcher = re.compile(r"-\.?\d")

    def _print_message(self, message: str, file: Any = None) -> None:
        # Argparse ignores what stops its help from being written.
        print_text(message)

    def error(self, message: str) -> NoReturn:
        """Raises a usage error."""
        raise UsageError(message, remedy=f"see {self.prog} --help")


class Version(argparse.Action):
    """Looks the version up only when it is asked for."""

    def __init__(self, option_strings: Sequence[str], dest: str, **kwargs: Any):
        super().__init__(option_strings, dest, nargs=0, **kwargs)

    def __call__(self, parser: argparse.ArgumentParser, *_: Any) -> NoReturn:
        """Prints the version and leaves."""
        from importlib.metadata import PackageNotFoundError, version

        try:
            number = version("profiler")
        except PackageNotFoundError:
            number = "(not installed)"
        print_text(f"profiler {number}\n")
        parser.exit()


def print_text(text: str) -> None:
    """Text of ours to stdout, whole or as an error."""
    from profiler.report import output

    encoding = getattr(output.stdout(), "encoding", None) or "utf-8"
    output.write_stdout(text.encode(encoding, "backslashreplace"))


# --- argument types -------------------------------------------------------------------------------------------------

MOST_ROWS = 10**9
MOST_STEPS = 10**15
FIGURES = (1e-9, 1e12)  # of TFLOP and TFLOP/s: beyond it lies a mistake, such as FLOP for TFLOP
TOKENS = (1e-9, 1e18)
HISTORY_METRICS = ("mfu", "step_time", "tokens_per_s", "busy", "hbm_peak", "hbm_window")
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


def _port(text: str) -> int:
    port = _whole(text, 65_535)
    if port == 0:
        raise argparse.ArgumentTypeError("0 is no port")
    return port


def _megabytes(text: str) -> int:
    return _whole(text, 100_000)  # 0 forbids uploads


def file_or_url(text: str) -> Path | str:
    """A file of this machine as a path, a URL as it is."""
    from profiler.xplane.urls import is_remote

    return text if is_remote(text) else Path(text)


def step_number(text: str) -> int | Literal["all"]:
    """A steady step by its number, or all of them."""
    return "all" if text == "all" else _whole(text, MOST_STEPS)


def figure(limits: tuple[float, float]) -> Callable[[str], float]:
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


def add_output_options(
    parser: argparse.ArgumentParser,
    formats: tuple[str, ...],
    rows: str | None,
    *,
    required: bool = False,
    redact: bool = True,
) -> None:
    """Format and destination; ``rows`` says what --top limits, None where nothing is."""
    group = parser.add_argument_group("output")
    group.add_argument("--format", choices=formats, help="default: text, or what the name after -o ends in")
    where = "write here" if required else "write here instead of stdout"
    group.add_argument("-o", "--output", metavar="FILE", type=Path, required=required, help=where)
    if rows is not None:
        group.add_argument("--top", metavar="N", type=_rows, help=f"{rows}; 0 for all")
    if redact:
        group.add_argument("--redact", action="store_true", help="hide names of hosts, folders and users")
    group.add_argument("--debug", action="store_true", default=argparse.SUPPRESS, help="show tracebacks")
    parser.set_defaults(formats=formats)


def add_selection_options(parser: argparse.ArgumentParser, steps: bool = True) -> None:
    """Hosts, devices and, where times are per step, steps."""
    group = parser.add_argument_group("what to read")
    group.add_argument("--host", metavar="NAME", help="only this host's planes")
    group.add_argument("--device", metavar="NAME", help="only this device, for example TPU:0")
    group.add_argument(
        "--all-devices",
        action="store_true",
        help="of a run of several hosts means over all devices, all in memory (default: its median device)",
    )
    if steps:
        _add_steps(group)


def add_step_options(parser: argparse.ArgumentParser) -> None:
    """Steps alone, of all hosts and devices."""
    _add_steps(parser.add_argument_group("what to read"))
    parser.set_defaults(host=None, device=None, all_devices=False)


def _add_steps(group: argparse._ArgumentGroup) -> None:
    group.add_argument(
        "--steps", metavar="A:B", type=_step_range, help="only steady steps from A up to, not including, B"
    )
    group.add_argument("--skip-first", metavar="N", type=_steps, help="leave the first N steady steps out")


def add_fact_options(parser: argparse.ArgumentParser, sides: int) -> None:
    """Facts about 1, 2 or ``MANY`` runs."""
    how = {2: "one value for both sides, or BASE,OPT", MANY: "one value for all runs, or one for each: A,B,C"}
    group = parser.add_argument_group("facts that a trace does not carry", how.get(sides))
    files: Any = ("BASE.yml", "OPT.yml") if sides == 2 else "RUN.yml" if sides == MANY else ("RUN.yml",)
    count = "+" if sides == MANY else sides
    group.add_argument(
        "--config", metavar=files, nargs=count, type=file_or_url, help="run configuration (MaxText YAML as it is)"
    )

    def value(limits: tuple[float, float]) -> Callable[[str], Any]:
        parse = figure(limits)
        return parse if sides == 1 else _one_or_two(parse) if sides == 2 else _one_or_each(parse)

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


def add_comparison_options(parser: argparse.ArgumentParser) -> None:
    """How sides are compared."""
    group = parser.add_argument_group("comparison")
    group.add_argument(
        "--normalize",
        choices=("auto", "token", "flop", "step", "run"),
        default="auto",
        help="the unit of work that all sides are measured per (default: auto)",
    )
    group.add_argument("--force", action="store_true", help="compare even what is not comparable")


def add_threshold_options(parser: argparse.ArgumentParser) -> None:
    """The thresholds of a gate."""
    group = parser.add_argument_group("thresholds", "changes from BASE to OPT: METRIC, < or >, a signed number, a unit")
    for option, what in (
        ("--fail-on", "fail where one is hit: 'mfu<-1%%' 'hbm_peak>+1GiB'"),
        ("--warn-on", "only say so"),
    ):
        group.add_argument(option, metavar="EXPR", nargs="+", action="extend", default=[], help=what)
    group.add_argument("--thresholds", metavar="FILE.yml", type=file_or_url, help="lists under fail-on and warn-on")
    group.add_argument("--allow-unknown", action="store_true", help="let pass what this pair does not tell")


def add_server_options(parser: argparse.ArgumentParser) -> None:
    """Where the dashboard is served, and how it looks."""
    group = parser.add_argument_group("server")
    group.add_argument("--port", metavar="N", type=_port, help="default: the first free one from 8501")
    group.add_argument(
        "--host", metavar="ADDRESS", default="localhost", help="listen here (default: localhost); there is no login"
    )
    group.add_argument("--no-browser", action="store_true", help="open none")
    group.add_argument("--max-upload-mb", metavar="N", type=_megabytes, help="largest upload (default: 200)")
    group.add_argument("--debug", action="store_true", default=argparse.SUPPRESS, help="show tracebacks")


def add_reduce_options(parser: argparse.ArgumentParser) -> None:
    """Where the reduced form goes, what it keeps, and who makes it."""
    parser.add_argument("-o", "--output", metavar="DIR", type=Path, required=True, help="the folder to write")
    parser.add_argument(
        "--keep",
        choices=("median", "all"),
        default="median",
        help="whose spans are kept: those of the median device (default), or of all",
    )
    parser.add_argument(
        "--engine",
        choices=("local", "ray"),
        default="local",
        help="who reads the hosts: processes here (default), or a Ray cluster (extra cluster; RAY_ADDRESS)",
    )
    parser.add_argument(
        "--workers", metavar="N", type=_workers, help="hosts read at once (default: as cores and memory allow)"
    )
    parser.add_argument("--debug", action="store_true", default=argparse.SUPPRESS, help="show tracebacks")


def _workers(text: str) -> int:
    number = _whole(text, 100_000)
    if number == 0:
        raise argparse.ArgumentTypeError("0 cannot read anything")
    return number


def options(args: argparse.Namespace, side: int | None = None) -> Options:
    """The library's options; ``side`` is 0 for BASE and 1 for OPT, None where there is one recording."""
    from profiler.api import Options

    def fact(name: str) -> Any:
        value = getattr(args, name, None)
        return value if value is None or side is None else value[min(side, len(value) - 1)]

    config: list[Path | str] | None = getattr(args, "config", None)
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
        all_devices=args.all_devices,
    )


def check_outputs(args: argparse.Namespace) -> None:
    """Refuses an output that is an input, before any work is done."""
    outputs = [path for path in (args.output, getattr(args, "html", None)) if path is not None]
    if outputs:
        from profiler.report import output

        output.protect(outputs, _inputs(args))


def _inputs(args: argparse.Namespace) -> Iterator[Path]:
    """Every file of this machine that the command reads; one that cannot be found is named where it is read."""
    from profiler.xplane.locate import locate, split
    from profiler.xplane.urls import is_remote

    sides = [getattr(args, side, None) for side in ("path", "baseline", "optimized")]
    for argument in (*sides, *getattr(args, "paths", ())):
        with contextlib.suppress(ProfilerError, OSError):
            for part in split(argument)[1] if argument is not None else ():
                for recording in locate(part).recordings if not is_remote(part) else ():
                    yield from recording.files
    if getattr(args, "folder", None) is not None:
        from profiler.xplane.runs import runs

        yield from (file for run in runs(args.folder).runs for file in run.files)
    files = (*(getattr(args, "config", None) or ()), getattr(args, "thresholds", None))
    yield from (file for file in files if isinstance(file, Path))
