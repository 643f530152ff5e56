"""The case on TPU v7x, compiled without one: what fits, how often each kernel runs, and what the estimates say.

    python benchmarks/case.py                   # everything, compiled to the end: an hour or more on two cores
    python benchmarks/case.py --quick           # to the buffer assignment; the estimates are coarser
    python benchmarks/case.py --only qwen3-30b  # recipes and points whose name starts so

Compiles come from the cache of `distill compile` where it has them. The case is a pull request to MaxText that made two
distillations faster on a slice tpu7x-4x4x4; what it claims stands beside what the compiler says. Claims are quoted from
the pull request, no figure of ours is fitted to them.
"""

from __future__ import annotations

import argparse
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import profiler
from distill.aot import Cache, Compiled, compile_step
from distill.aot.bundles import kernel_code
from distill.aot.errors import OutOfMemory
from distill.aot.export import export_profile
from distill.aot.report import end_progress, stderr_progress
from distill.config import load

TOPOLOGY = "tpu7x-4x4x4"
GIB = 1 << 30


@dataclass(frozen=True)
class Point:
    """A configuration, and what the case says of it ("" for nothing)."""

    recipe: str
    overrides: tuple[str, ...] = ()
    claim: str = ""

    @property
    def name(self) -> str:
        """As one types it."""
        return " ".join((self.recipe, *self.overrides))


@dataclass(frozen=True)
class Pair:
    """Two recipes of the case, the measured ratio of their throughputs, and its range from the rounding of both MFU."""

    baseline: str
    optimized: str
    measured: float
    rounding: tuple[float, float]


RECIPES = (
    Point("qwen3-30b-base", claim="runs, 20 % MFU"),
    Point("qwen3-30b-opt", claim="runs, 26 % MFU"),
    Point("qwen3-30b-pdbs8-base", claim="runs, 22 % MFU"),
    Point("qwen3-30b-pdbs8-opt", claim="runs, 24 % MFU"),
    Point("gpt-oss-20b-base", claim="runs, 17 % MFU"),
    Point("gpt-oss-20b-opt", claim="runs, 19 % MFU"),
)
FRONTIER = (
    Point("qwen3-30b-opt", ("per_device_batch_size=4",)),
    Point("qwen3-30b-opt", ("per_device_batch_size=8",), "does not fit"),
    Point("qwen3-30b-opt", ("per_device_batch_size=8", "context=offload"), "does not fit"),
    Point("gpt-oss-20b-base", ("per_device_batch_size=2",), "does not fit"),
    Point("gpt-oss-20b-opt", ("per_device_batch_size=2",), "does not fit"),
)
PAIRS = (
    Pair("qwen3-30b-base", "qwen3-30b-opt", 1.30, (1.24, 1.36)),
    Pair("qwen3-30b-pdbs8-base", "qwen3-30b-pdbs8-opt", 1.09, (1.04, 1.14)),
    Pair("gpt-oss-20b-base", "gpt-oss-20b-opt", 1.12, (1.06, 1.18)),
)
COUNTED = (
    ("splash forward", "teacher"),
    ("splash forward", "student forward"),
    ("splash forward", "re-run"),
    ("splash backward (fused)", "student backward"),
    ("gmm", None),
    ("tgmm", None),
)


def main(arguments: Sequence[str] | None = None) -> None:
    """Compiles the points and prints the tables."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--quick", action="store_true", help="stop at the buffer assignment")
    parser.add_argument("--only", default="", metavar="START", help="points whose name starts so")
    parser.add_argument("--cache", type=Path, help="where compiles are kept (default: the user's cache)")
    args = parser.parse_args(arguments)
    points = [point for point in (*RECIPES, *FRONTIER) if point.name.startswith(args.only)]
    with tempfile.TemporaryDirectory() as folder:
        done = {point: _compile(point, Path(folder), args.quick and point in RECIPES, args.cache) for point in points}
        print(memory_table(done))
        print(counts_table(done))
        print(pairs_table({point.name: profile for point, (_, profile) in done.items()}))
        print(live_tables(done))


Done = dict[Point, tuple[Compiled, Path | None]]


def _compile(point: Point, folder: Path, quick: bool, cache: Path | None) -> tuple[Compiled, Path | None]:
    """A point's compile, and the profile of a recipe that fits; frontier points are for memory alone."""
    loaded = load(point.recipe, list(point.overrides))
    try:
        compiled = compile_step(
            loaded.config,
            TOPOLOGY,
            quick=quick or bool(point.overrides),
            progress=stderr_progress(),
            cache=Cache(cache),
        )
    finally:
        end_progress()
    if point.overrides or compiled.module is None or not compiled.fits:
        return compiled, None
    code = kernel_code(compiled.module, compiled.config, compiled.topology, cache=Cache(cache))
    return compiled, export_profile(compiled, loaded.to_dict(), folder / f"{point.recipe}.xplane.pb", kernels=code)


def memory_table(done: Done) -> str:
    """What fits, and the peak by our replay of the buffer assignment beside the compiler's own."""
    lines = [
        f"HBM per device on {TOPOLOGY}, GiB",
        f"{'':58} {'peak':>7} {'memory_analysis':>16} {'allocated':>10} {'of':>6} {'on host':>8}  fits?  the case",
    ]
    for point, (compiled, _) in done.items():
        memory, capacity = compiled.memory, compiled.capacity_bytes
        analysis = compiled.analysis.get("peak_memory_in_bytes")
        if analysis is None:
            equal = "quick" if compiled.quick else "none"
        else:
            assert memory is not None
            equal = "equal" if analysis == memory.peak_bytes else f"{analysis / GIB:.4f}"
        allocated = memory.allocated_bytes if memory else None
        if isinstance(compiled.error, OutOfMemory):
            allocated = max(allocated or 0, compiled.error.needed_bytes)
        figures = (memory.peak_bytes if memory else None, allocated, capacity, memory.host_bytes if memory else None)
        peak, packed, of, host = ("n/a" if value is None else f"{value / GIB:.2f}" for value in figures)
        fits = "fits" if compiled.fits else "NO"
        lines.append(f"{point.name:58} {peak:>7} {equal:>16} {packed:>10} {of:>6} {host:>8}  {fits:5}  {point.claim}")
    return "\n".join(lines) + "\n"


def counts_table(done: Done) -> str:
    """Kernel calls per step, with the trip counts of the loops around them."""
    titles = ("splash fwd, teacher", "student", "re-run", "dkv", "gmm", "tgmm")
    lines = ["Kernel calls per step", f"{'':58} " + " ".join(f"{title:>{len(title)}}" for title in titles)]
    for point, (compiled, _) in done.items():
        cells = []
        for (family, phase), title in zip(COUNTED, titles, strict=True):
            found = [
                each.calls
                for each in compiled.calls
                if (each.family == family or (phase is None and each.family.startswith(f"{family} ")))
                and phase in (None, each.phase)
            ]
            known = compiled.calls and None not in found
            cells.append(f"{sum(call or 0 for call in found) if known else 'n/a':>{len(title)}}")
        lines.append(f"{point.name:58} {' '.join(cells)}")
    return "\n".join(lines) + "\n"


def pairs_table(profiles: dict[str, Path | None]) -> str:
    """The estimated ratio of throughputs beside the measured one."""
    lines = ["Throughput of the optimized configuration, × the baseline's"]
    for pair in PAIRS:
        base, opt = profiles.get(pair.baseline), profiles.get(pair.optimized)
        if base is None or opt is None:
            continue
        delta = (diff := profiler.diff(str(base), str(opt))).delta
        assert delta.throughput_ratio is not None
        inside, band = "", "n/a"
        if delta.band is not None:
            low, high = sorted(1 / end for end in delta.band)
            band = f"{low:.2f} to {high:.2f}"
            inside = "inside the band" if low <= pair.measured <= high else "OUTSIDE the band"
        lines.append(
            f"{pair.optimized:22} estimated {delta.throughput_ratio:.3f} ({band}); measured {pair.measured:.2f} "
            f"({pair.rounding[0]:.2f} to {pair.rounding[1]:.2f} by rounding): {inside}"
        )
        lines += [f"    {diff.verdict}"]
    return "\n".join(lines) + "\n"


def live_tables(done: Done) -> str:
    """The largest buffers at the peak of each recipe."""
    lines = []
    for point, (compiled, _) in done.items():
        if compiled.memory is None or point.overrides:
            continue
        lines.append(f"{point.name}: largest at the peak")
        for each in compiled.memory.live[:6]:
            name = " ".join(filter(None, (each.place.part, each.place.tensor))) or each.instruction
            lines.append(
                f"    {each.bytes / GIB:6.2f} GiB  {name}  {f'{each.count} × ' * (each.count > 1)}{each.shape}"
            )
    return "\n".join(lines)


if __name__ == "__main__":
    main()
