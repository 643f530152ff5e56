"""Holds the time estimates against TPU recordings, before and after calibration, on what was not calibrated with.

    python benchmarks/check_estimates.py RECORDING                   # half of the devices predict the other half
    python benchmarks/check_estimates.py RECORDING --split ops       # every other op of a kind predicts the rest
    python benchmarks/check_estimates.py RECORDING --on OTHER        # one recording predicts another one
    python benchmarks/check_estimates.py program.hlo.pb --made-up    # what a recording of this program could tell

Ops are estimated from their HLO alone. A program's time is that of its schedule with these estimates, against the
median of its executions; nothing is calibrated with it. Prints Markdown.

--made-up takes a program that ``distill compile -o`` left, for TPU v7x. It draws constants from the middle of their
ranges, gives every op the time that follows from them, with 10 % of noise, and calibrates with that.
"""

from __future__ import annotations

import argparse
import random
import statistics
from collections.abc import Iterable, Sequence
from dataclasses import replace
from pathlib import Path

from distill.aot.calibrate import recorded
from distill.aot.calibrate_fit import calibrated
from distill.aot.calibrate_samples import Sample, read_samples
from distill.aot.model_constants import constants_of
from distill.aot.profile_layout import lay_out
from distill.aot.timing import Timer
from profiler.hardware import CHIPS
from profiler.hlo import parse
from profiler.hlo.module import CONTAINERS, NO_TRAFFIC
from profiler.reduce.tpu import PLANE, marks, split_program
from profiler.trace import Trace
from profiler.xplane import scan
from profiler.xplane.read import opened, plane_names


def main() -> None:
    """Prints the constants and the errors."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("recording")
    parser.add_argument("--split", choices=("devices", "ops"), default="devices", help="what predicts what")
    parser.add_argument("--on", metavar="OTHER", help="predict this recording instead")
    parser.add_argument("--made-up", action="store_true", help="RECORDING is a program, the times are made up")
    args = parser.parse_args()
    if args.made_up:
        print("\n".join(recovery_rows(Path(args.recording).read_bytes())))
        return
    trace, chip = recorded(args.recording)
    before = Timer(chip, constants_of(chip))
    target = trace
    if args.on:
        target, other = recorded(args.on)
        if other.key != chip.key:
            parser.error(f"{args.on} is of {other.name}, {args.recording} of {chip.name}")
        learned, held_out = read_samples(trace, before), read_samples(target, before)
    elif args.split == "devices":
        learned = read_samples(trace, before, lambda device: device % 2 == 0)
        held_out = read_samples(trace, before, lambda device: device % 2 == 1)
    else:
        learned, held_out = halves(read_samples(trace, before), before)
    found = calibrated(learned, before, Path(args.recording).name)
    measured = {name: each.measured for name, each in found.items() if each.measured}
    after = Timer(chip, constants_of(chip, measured))
    print(f"constants measured: {', '.join(f'{name} {each.value:.4g}' for name, each in measured.items()) or 'none'}\n")
    print("| kind of op | ops | calls | measured s | before | after |\n|---|---:|---:|---:|---:|---:|")
    print("\n".join(op_rows(held_out, before, after)))
    print("\n| program | runs | measured s | before | after |\n|---|---:|---:|---:|---:|")
    print("\n".join(program_rows(target, before, after)))


def halves(samples: Iterable[Sample], timer: Timer) -> tuple[list[Sample], list[Sample]]:
    """Every other op of each kind."""
    kinds: dict[str, list[Sample]] = {}
    for sample in samples:
        kinds.setdefault(kind_of(sample, timer), []).append(sample)
    return [s for kind in kinds.values() for s in kind[::2]], [s for kind in kinds.values() for s in kind[1::2]]


def kind_of(sample: Sample, timer: Timer) -> str:
    """Where the estimate comes from, and what of."""
    opcode = sample.instruction.opcode
    return f"{opcode}, {timer.estimate(sample.instruction).source}"


def op_rows(samples: Sequence[Sample], before: Timer, after: Timer) -> Iterable[str]:
    """Per kind: the estimates' total against the measured one."""
    kinds: dict[str, list[Sample]] = {}
    for sample in samples:
        kinds.setdefault(kind_of(sample, before), []).append(sample)
    for kind, members in sorted(kinds.items(), key=lambda item: -sum(s.seconds * s.calls for s in item[1])):
        total = sum(each.seconds * each.calls for each in members)
        errors = (
            sum(timer.estimate(each.instruction).duration_ps / 1e12 * each.calls for each in members) / total - 1
            for timer in (before, after)
        )
        calls = sum(each.calls for each in members)
        yield f"| {kind} | {len(members)} | {calls} | {total:.4g} | {' | '.join(map(percent, errors))} |"


def program_rows(trace: Trace, before: Timer, after: Timer) -> Iterable[str]:
    """Per program with device time: the length of its layout against the median of its runs."""
    runs: dict[str, list[float]] = {}
    for file in dict.fromkeys(trace.files):
        with opened(Path(file)) as (buffer, _):
            for plane in scan.index(buffer).planes:
                if not PLANE.fullmatch(plane.name):
                    continue
                found = marks(buffer, plane, plane_names(buffer, plane), "XLA Modules", 0)
                if found is not None:
                    for name, span in zip(found.names, (found.end_ps - found.start_ps).tolist(), strict=True):
                        runs.setdefault(split_program(name)[1] or "", []).append(span / 1e12)
    for (_, program), module in trace.programs.items():
        if program in runs:
            seconds = statistics.median(runs[program])
            lengths = [lay_out(module, timer).duration_ps / 1e12 for timer in (before, after)]
            if not any(lengths):
                continue  # nothing but copies of single numbers
            errors = (length / seconds - 1 for length in lengths)
            yield f"| {module.name} | {len(runs[program])} | {seconds:.4g} | {' | '.join(map(percent, errors))} |"


def recovery_rows(program: bytes) -> Iterable[str]:
    """Per constant that ops of a program hang on: what its made-up times were made with, and what is found."""
    chip = next(chip for chip in CHIPS if chip.key == "tpu-v7x")
    module, default, rng = parse(program), constants_of(chip), random.Random(0)
    truth = {
        name: replace(each, value=rng.uniform(*(0.5 * (each.value + end) for end in (each.fast, each.slow))))
        for name, each in default.table.items()
    }
    timer = Timer(chip, constants_of(chip, truth))
    inlined = {name for each in module.instructions.values() if each.opcode not in CONTAINERS for name in each.called}
    samples = []
    for each in module.instructions.values():
        if each.computation not in inlined and not each.opcode.endswith(("-done", "-update")):
            seconds = timer.estimate(each).duration_ps / 1e12 * rng.lognormvariate(0, 0.1)
            if seconds and each.opcode not in CONTAINERS | NO_TRAFFIC:
                samples.append(Sample(each, seconds, 3 * int(module.executions(each.name) or 1)))
    yield f"{len(samples)} ops\n\n| constant | default | made with | found | range | |\n|---|---:|---:|---:|---:|---|"
    for name, found in calibrated(samples, Timer(chip, default), "made-up times").items():
        value, ends = "–", "–"
        if found.measured:
            value, ends = f"{found.measured.value:.4g}", f"{found.measured.slow:.4g} – {found.measured.fast:.4g}"
        yield f"| {name} | {found.default.value:.4g} | {truth[name].value:.4g} | {value} | {ends} | {found.reason} |"


def percent(error: float) -> str:
    """Signed."""
    return f"{error:+.1%}".replace("-", "−")


if __name__ == "__main__":
    main()
