"""The ``distill`` command: train, compare two recipes, climb from one to the other knob by knob, compile for a TPU.

What a command computes goes to stdout, progress and notes to stderr. Exit codes: 0 fine, 1 the run failed or does not
fit, 2 usage, 3 unreadable input, 4 not comparable, 70 a bug of ours, 130 interrupted. Every failure prints one line;
``--debug`` adds the traceback. Nothing heavy is imported at the top: the environment must be set before jax starts.
"""

from __future__ import annotations

import argparse
import errno
import os
import signal
import sys
import tempfile
import threading
from collections.abc import Iterator, MutableMapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, NoReturn

from profiler.errors import ProfilerError, UsageError

if TYPE_CHECKING:
    from distill.aot import Cache, Compiled
    from distill.aot.bundles import KernelCode
    from distill.aot.model_constants import Constant
    from distill.config import Config, Loaded

EXIT_BUG = 70
EXIT_INTERRUPTED = 130
SHORT_RUN = 15  # below this the recording of a recipe (five steps after ten) does not fit

RECIPE_HELP = "a recipe's name (see `distill recipes`) or a YAML file with MaxText's key names"
OVERRIDES_HELP = "overrides, the value as YAML: steps=10 student_overrides.head_dim=64"


class _Parser(argparse.ArgumentParser):
    """Raises usage errors instead of printing the whole usage, and takes no abbreviated options."""

    def __init__(self, *args: Any, **kwargs: Any):
        kwargs.setdefault("allow_abbrev", False)
        super().__init__(*args, **kwargs)

    def error(self, message: str) -> NoReturn:
        raise UsageError(message, remedy=f"see {self.prog} --help")


def positive(text: str) -> int:
    """An argument that counts something."""
    number = int(text)
    if number < 1:
        raise argparse.ArgumentTypeError(f"{text} is not at least 1")
    return number


def _add_common(parser: argparse.ArgumentParser, output: str) -> None:
    parser.add_argument("-o", "--output", metavar="OUT", type=Path, help=output)
    parser.add_argument("--devices", metavar="N", type=positive, help="simulate N devices on the CPU")
    parser.add_argument("--debug", action="store_true", default=argparse.SUPPRESS, help="show tracebacks")


def _add_compiling(parser: argparse.ArgumentParser, when: str = "") -> None:
    """Options of the commands that compile several configurations."""
    parser.add_argument(
        "--topology", metavar="NAME", help=f"{when}the slice, see `distill topologies` (default: the recipe's hardware)"
    )
    parser.add_argument("--full", action="store_true", help=f"{when}compile to the end: finer estimates, much longer")
    parser.add_argument(
        "--no-kernel-code", action="store_true", help=f"{when}do not compile each kernel alone for its time"
    )
    parser.add_argument("--cache", metavar="DIR", type=Path, help=f"{when}where compiles are kept")


def build_parser() -> argparse.ArgumentParser:
    """The whole command line; every command sets ``run``."""
    parser = _Parser(
        prog="distill",
        description="Trains a student model on a teacher's logits and records what `profiler` explains.",
        epilog="exit codes: 0 fine, 1 the run failed, 2 usage, 3 unreadable input, 4 not comparable, 130 interrupted",
    )
    parser.add_argument("--debug", action="store_true", default=False, help="show tracebacks")
    commands = parser.add_subparsers(title="commands", metavar="COMMAND", parser_class=_Parser)

    train = commands.add_parser("train", help="train one recipe")
    train.add_argument("recipe", metavar="RECIPE", help=RECIPE_HELP)
    train.add_argument("overrides", metavar="KEY=VALUE", nargs="*", help=OVERRIDES_HELP)
    train.add_argument("--steps", metavar="N", type=positive, help="optimizer steps, instead of the recipe's")
    train.add_argument(
        "--resume", action="store_true", help="keep checkpoints, and go on from the last one if there is one"
    )
    _add_common(train, "folder of the run (default: base_output_directory/run_name)")
    train.set_defaults(run=run_train)

    compare = commands.add_parser("compare", help="train two recipes and explain the difference in time and loss")
    ladder = commands.add_parser("ladder", help="from BASE to OPT one knob at a time: what each was worth")
    for command, output in ((compare, "distill_compare"), (ladder, "distill_ladder")):
        command.add_argument("baseline", metavar="BASE", help=RECIPE_HELP)
        command.add_argument("optimized", metavar="OPT", help="the same for the other side")
        command.add_argument("overrides", metavar="KEY=VALUE", nargs="*", help=f"for both sides: {OVERRIDES_HELP}")
        command.add_argument("--steps", metavar="N", type=positive, help="steps a run (default: 30)")
        command.add_argument("--repeats", metavar="N", type=positive, help="runs of each configuration (default: 2)")
        _add_common(command, f"folder of the runs and the report (default: {output})")
    compare.set_defaults(run=run_compare)
    ladder.add_argument(
        "--compiled", action="store_true", help="compile the rungs for a TPU instead of running them: estimates"
    )
    _add_compiling(ladder, "with --compiled: ")
    ladder.set_defaults(run=run_ladder)

    frontier = commands.add_parser(
        "frontier", help="compile all combinations of some knobs: what fits, and which is estimated fastest"
    )
    frontier.add_argument("recipe", metavar="RECIPE", help=RECIPE_HELP)
    frontier.add_argument("overrides", metavar="KEY=VALUE", nargs="*", help=OVERRIDES_HELP)
    frontier.add_argument(
        "--knob",
        metavar="KEY=VALUE,VALUE",
        action="append",
        required=True,
        help="a key and its values, each YAML; several --knob: every combination",
    )
    _add_compiling(frontier)
    frontier.add_argument(
        "-o", "--output", metavar="OUT", type=Path, help="folder for table, JSON, figure and a profile of each point"
    )
    frontier.add_argument("--format", choices=("text", "json"), default="text", help="of stdout (default: text)")
    frontier.add_argument("--debug", action="store_true", default=argparse.SUPPRESS, help="show tracebacks")
    frontier.set_defaults(run=run_frontier)

    compiling = commands.add_parser("compile", help="compile one recipe's step for a TPU, without one: does it fit?")
    compiling.add_argument("recipe", metavar="RECIPE", help=RECIPE_HELP)
    compiling.add_argument("overrides", metavar="KEY=VALUE", nargs="*", help=OVERRIDES_HELP)
    compiling.add_argument(
        "--topology", metavar="NAME", help="the slice, see `distill topologies` (default: the recipe's hardware)"
    )
    compiling.add_argument(
        "-o", "--output", metavar="OUT", type=Path, help="folder for the profile, program and schedule"
    )
    compiling.add_argument(
        "--quick", action="store_true", help="end when memory, calls and schedule are known; without final cycles"
    )
    compiling.add_argument(
        "--cache", metavar="DIR", type=Path, help="where compiles are kept (default: the user's cache)"
    )
    compiling.add_argument(
        "--calibrate",
        metavar="RECORDING",
        help="measure the profile's constants on a recording of the same chip, or take them from `distill calibrate`",
    )
    compiling.add_argument(
        "--no-kernel-code",
        action="store_true",
        help="do not compile each kernel alone for the profile's times, which takes a minute or so the first time",
    )
    compiling.add_argument("--format", choices=("text", "json"), default="text", help="of stdout (default: text)")
    compiling.add_argument("--debug", action="store_true", default=argparse.SUPPRESS, help="show tracebacks")
    compiling.set_defaults(run=run_compile)

    calibrating = commands.add_parser("calibrate", help="measure the constants of time estimates on a recording")
    calibrating.add_argument("recording", metavar="RECORDING", help="an .xplane.pb of a TPU, or a folder with one")
    calibrating.add_argument("-o", "--output", metavar="JSON", type=Path, help="file for `distill compile --calibrate`")
    calibrating.add_argument("--debug", action="store_true", default=argparse.SUPPRESS, help="show tracebacks")
    calibrating.set_defaults(run=run_calibrate)

    topologies = commands.add_parser("topologies", help="list the slices that can be compiled for")
    topologies.add_argument("--debug", action="store_true", default=argparse.SUPPRESS, help="show tracebacks")
    topologies.set_defaults(run=run_topologies)

    recipes = commands.add_parser("recipes", help="list the recipes that come with the package")
    recipes.add_argument("--debug", action="store_true", default=argparse.SUPPRESS, help="show tracebacks")
    recipes.set_defaults(run=run_recipes)
    return parser


# --- commands ------------------------------------------------------------------------------------------------------


@contextmanager
def _compiling() -> Iterator[None]:
    """For commands that compile: ``kill`` ends them as Ctrl-C does, and a file's error is no "does not fit"."""

    def stop(number: int, _: object) -> NoReturn:
        raise SystemExit(128 + number)

    before = None
    if threading.current_thread() is threading.main_thread():  # only it may handle signals
        before = signal.signal(signal.SIGTERM, stop)
    try:
        yield
    except OSError as error:
        if error.filename is None:  # of stdout
            raise
        raise UsageError(error.strerror or str(error), file=error.filename) from error
    finally:
        if before is not None:
            signal.signal(signal.SIGTERM, before)


def run_train(args: argparse.Namespace) -> None:
    """``distill train RECIPE``."""
    from distill.config import load

    overrides = [*args.overrides]
    if args.steps is not None:
        overrides += [*_window(args.steps, overrides), f"steps={args.steps}"]
    if args.resume:
        overrides.append("enable_checkpointing=true")
    loaded = load(args.recipe, overrides)
    _announce(loaded)
    config = loaded.config
    out = args.output or Path(config.base_output_directory, config.run_name or loaded.name)
    set_environment(os.environ, config, args.devices)
    from distill.train import train

    result = train(config, out, asked=loaded.to_dict())
    print(result.describe())


def run_compare(args: argparse.Namespace) -> None:
    """``distill compare BASE OPT``."""
    from distill.compare import compare

    print(compare(args.baseline, args.optimized, args.output or Path("distill_compare"), _plan(args)), end="")


def run_ladder(args: argparse.Namespace) -> int:
    """``distill ladder BASE OPT``; compiled: 1 if no rung fits."""
    from distill.ladder import climb, climb_compiled

    out = args.output or Path("distill_ladder")
    compiling, running = ("topology", "full", "no_kernel_code", "cache"), ("steps", "repeats", "devices")
    for key in running if args.compiled else compiling:
        if getattr(args, key):
            raise UsageError(
                f"--{key.replace('_', '-')} {'is for runs, not for' if args.compiled else 'needs'} --compiled"
            )
    if not args.compiled:
        print(climb(args.baseline, args.optimized, out, _plan(args)), end="")
        return 0
    from distill.aot import Cache
    from distill.config import load

    topology = _topology(args, load(args.baseline, args.overrides))
    _make_folders(out, args.cache)
    with _compiling():
        text, fits = climb_compiled(
            args.baseline,
            args.optimized,
            topology,
            out,
            overrides=args.overrides,
            whole=args.full,
            kernels=not args.no_kernel_code,
            cache=Cache(args.cache),
        )
    print(text, end="")
    return 0 if fits else 1


@_compiling()
def run_frontier(args: argparse.Namespace) -> int:
    """``distill frontier RECIPE``; 1 if nothing fits."""
    from distill.aot import Cache
    from distill.config import load
    from distill.frontier import FIGURE_FILE, JSON_FILE, TEXT_FILE, frontier, parse_knobs, to_json, to_text
    from distill.frontier_figure import to_svg
    from profiler.report.output import write_whole

    knobs = parse_knobs(args.knob)
    loaded = load(args.recipe, args.overrides)
    _announce(loaded)
    topology = _topology(args, loaded)
    _make_folders(args.output, args.cache)
    found = frontier(
        args.recipe,
        knobs,
        topology,
        overrides=args.overrides,
        whole=args.full,
        kernels=not args.no_kernel_code,
        cache=Cache(args.cache),
        out=args.output,
    )
    text, document = to_text(found), to_json(found)
    print(document if args.format == "json" else text, end="")
    if args.output:
        for name, content in ((JSON_FILE, document), (TEXT_FILE, text), (FIGURE_FILE, to_svg(found))):
            write_whole(args.output / name, content.encode())
        _note(f"wrote {args.output}: profiles (their times are estimates), {JSON_FILE}, {TEXT_FILE}, {FIGURE_FILE}")
    return 0 if found.found.fitting else 1


def run_recipes(args: argparse.Namespace) -> None:
    """``distill recipes``."""
    from distill.config import load, recipes

    for name in recipes():
        config = load(name).config
        print(
            f"{name:24} {config.model_name}, {config.per_device_batch_size} × {config.max_target_length} tokens "
            f"a device and step, remat_policy {config.remat_policy}"
        )


@_compiling()
def run_compile(args: argparse.Namespace) -> int:
    """``distill compile RECIPE``; 1 if it does not fit."""
    from distill.aot import Cache, compile_step
    from distill.aot.export import export_profile
    from distill.aot.report import end_progress, stderr_progress, to_json, to_text
    from distill.config import load

    loaded = load(args.recipe, args.overrides)
    _announce(loaded)
    topology = _topology(args, loaded)
    measured = _calibration(args, topology)
    _make_folders(args.output, args.cache)
    try:
        compiled = compile_step(
            loaded.config,
            topology,
            out=args.output,
            quick=args.quick,
            progress=stderr_progress(),
            cache=Cache(args.cache),
        )
    finally:
        end_progress()
    print((to_json if args.format == "json" else to_text)(compiled), end="")
    if args.output:
        path = args.output / f"{loaded.name}.xplane.pb"
        path.unlink(missing_ok=True)  # of an earlier call, when it may have fitted
        kernels = None if args.no_kernel_code else _kernel_code(compiled, Cache(args.cache))
        profile = export_profile(compiled, loaded.to_dict(), path, constants=measured, kernels=kernels)
        if profile:
            print(f"profile (times are estimates): {profile}", file=sys.stderr)
    return 0 if compiled.fits else 1


def _kernel_code(compiled: Compiled, cache: Cache) -> KernelCode | None:
    """The cycles of the program's kernels; None where there is no program to draw."""
    from distill.aot.bundles import kernel_code
    from distill.aot.report import end_progress, stderr_progress

    if compiled.module is None or not compiled.fits:
        return None
    try:
        return kernel_code(compiled.module, compiled.config, compiled.topology, cache=cache, progress=stderr_progress())
    finally:
        end_progress()


def _calibration(args: argparse.Namespace, topology: str) -> dict[str, Constant] | None:
    """The constants that ``--calibrate`` names, shown on stderr; None without it."""
    if args.calibrate is None:
        return None
    if not args.output:
        raise UsageError("--calibrate changes the times of the profile", remedy="-o OUT writes one")
    from distill.aot import find
    from distill.aot.calibrate import calibrate

    found = calibrate(args.calibrate, find(topology).chip)
    print(found.to_text(), end="", file=sys.stderr)
    return found.constants


def run_calibrate(args: argparse.Namespace) -> None:
    """``distill calibrate RECORDING``."""
    from distill.aot.calibrate import calibrate, save

    if args.output and args.output.suffix != ".json":
        raise UsageError("the file for the constants has to end in .json", file=args.output)
    found = calibrate(args.recording)
    print(found.to_text(), end="")
    if args.output:
        save(found, args.output)


def run_topologies(args: argparse.Namespace) -> None:
    """``distill topologies``."""
    from distill.aot.topology import topologies

    for each in topologies():
        print(f"{each.size_name:12} {each.name:16} {each.chips:5} chips {each.devices:5} devices  {each.chip.name}")


def _topology(args: argparse.Namespace, loaded: Loaded) -> str:
    """The slice that is asked for, else the recipe's."""
    topology: str = args.topology or loaded.config.hardware
    if not topology:
        raise UsageError("the recipe names no hardware", remedy="--topology NAME; `distill topologies` lists them")
    return topology


def _make_folders(output: Path | None, cache: Path | None) -> None:
    """Before any work is done. A cache that can only be read still answers for what it has."""
    for folder in filter(None, (output, cache)):
        try:
            folder.mkdir(parents=True, exist_ok=True)
            if folder is output:
                with tempfile.TemporaryFile(dir=folder):
                    pass
        except OSError as error:
            raise UsageError(f"cannot be written to: {error.strerror or error}", file=folder) from error


def _plan(args: argparse.Namespace) -> Any:
    from distill.runs import Plan

    steps = args.steps or 30
    overrides = (*args.overrides, *_window(steps, args.overrides))
    return Plan(steps=steps, repeats=args.repeats or 2, devices=args.devices, overrides=overrides)


def _window(steps: int, overrides: Sequence[str]) -> list[str]:
    """Overrides that fit the recording into a short run, unless the user says what to record."""
    keys = ("profiler", "skip_first_n_steps_for_profiler", "profiler_steps")
    if steps >= SHORT_RUN or any(each.partition("=")[0] in keys for each in overrides):
        return []
    skip = steps // 3
    _note(f"a short run: steps {skip} to {steps - 1} are recorded")
    return [f"skip_first_n_steps_for_profiler={skip}", f"profiler_steps={steps - skip}"]


def _announce(loaded: Loaded) -> None:
    """Keys that were asked for and change nothing, and what else there is to know, on stderr."""
    for what, keys in (("unknown keys", loaded.unknown), ("keys without effect here", loaded.no_effect)):
        if keys:
            _note(f"{what}: {', '.join(keys)}")
    for note in loaded.notes:
        _note(note)


def set_environment(environment: MutableMapping[str, str], config: Config, devices: int | None) -> None:
    """What must be in the environment before jax starts: compiler flags, simulated devices.

    Flags of the TPU's compiler go where only the TPU's library reads them: XLA ends the process of another backend for
    a flag that it does not know. Simulated devices are a CPU's.

    Args:
        environment: os.environ; changed in place.
        config: xla_flags are added to what is there.
        devices: how many CPU devices to simulate; None for the machine's own.
    """
    ours = ("--xla_gpu_", "--xla_cpu_", "--xla_force_host_", "--xla_dump_")
    for flag in config.xla_flags:
        _append(environment, "XLA_FLAGS" if flag.startswith(ours) else "LIBTPU_INIT_ARGS", flag)
    if devices is not None:
        environment["JAX_PLATFORMS"] = "cpu"
        _append(environment, "XLA_FLAGS", f"--xla_force_host_platform_device_count={devices}")


def _append(environment: MutableMapping[str, str], name: str, flag: str) -> None:
    """Adds a flag at the end, where the last of equal ones counts."""
    environment[name] = f"{environment.get(name, '')} {flag}".strip()


# --- entry ---------------------------------------------------------------------------------------------------------


def _note(message: str) -> None:
    print(f"distill: {_one_line(message)}", file=sys.stderr)


def _one_line(message: str) -> str:
    return "".join(char if char.isprintable() else ascii(char)[1:-1] for char in message)


def _run(argv: Sequence[str]) -> int:
    parser = build_parser()
    args, rest = parser.parse_known_args(argv)
    # argparse takes positionals in one piece only; overrides may also follow the options.
    for word in rest:
        if word.startswith("-") or "=" not in word or not hasattr(args, "overrides"):
            raise UsageError(f"unrecognized argument: {word}", remedy=f"see {parser.prog} --help")
        args.overrides.append(word)
    if not hasattr(args, "run"):
        parser.print_help()
        return 0
    code: int | None = args.run(args)
    if sys.stdout is not None:
        sys.stdout.flush()
    return code or 0


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
        return _run(argv)
    except KeyboardInterrupt as stop:
        if str(stop):
            _note(str(stop))
        return EXIT_INTERRUPTED
    except SystemExit as stop:  # argparse's --help
        return stop.code if isinstance(stop.code, int) else 0
    except ProfilerError as error:
        return _fail(str(error), error.exit_code, debug)
    except RecursionError:
        return _fail("the configuration is nested too deeply", UsageError.exit_code, debug)
    except OSError as error:
        if error.errno in (errno.ENOSPC, errno.EBADF) and error.filename is None:
            return _fail(f"cannot write the output: {error.strerror}", UsageError.exit_code, debug)
        return _fail(f"{error.filename or 'input or output'}: {error.strerror or error}", 1, debug)
    except Exception as error:
        what = f"{type(error).__name__}: {error}" if str(error) else type(error).__name__
        remedy = "" if debug else "; run again with --debug and report it"
        return _fail(f"unexpected {what} (a bug in distill{remedy})", EXIT_BUG, debug)


def _fail(message: str, code: int, debug: bool) -> int:
    if debug:
        import traceback

        traceback.print_exc()
    _note(f"error: {message}")
    return code
