"""Configurations compiled for one slice, side by side: what each needs, and what its step is estimated to take.

What `distill frontier` and `distill ladder --compiled` have in common. An estimate is what ``profiler`` says about the
profile of the compile (docs/distill/estimates.md).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from distill.aot import Cache, Compiled, OutOfMemory, Topology, find
from distill.aot.board import Board
from distill.aot.bundles import KernelCode, kernel_code
from distill.aot.environment import require
from distill.aot.export import export_profile
from distill.aot.pool import compile_all
from distill.aot.report import end_progress, stderr_progress
from distill.config import Loaded
from profiler.errors import ProfilerError, UsageError
from profiler.hlo import parse
from profiler.report import units

SPLASH = "splash forward"  # profiler's family of the kernel
UNSEEN = "effect_not_estimated"  # profiler's warning about knobs that estimates leave out


@dataclass(frozen=True)
class Wanted:
    """One configuration to compile.

    Attributes:
        label: what people call it.
        file: the name of its profile, without the suffix.
        loaded: the configuration, or why there is none.
    """

    label: str
    file: str
    loaded: Loaded | ProfilerError


@dataclass(frozen=True)
class Estimate:
    """Speed of a compiled step; nothing ran. Bands are (low, high), by the ranges of the constants.

    Attributes:
        step_s: seconds of a step.
        token_s: seconds of a step over the tokens that a device takes in it.
        tokens_per_s: the inverse: per device.
        mfu: model FLOPs utilization; None where the chip has no known peak.
    """

    step_s: float
    step_s_band: tuple[float, float]
    token_s: float
    tokens_per_s: float
    tokens_per_s_band: tuple[float, float]
    mfu: float | None
    mfu_band: tuple[float, float] | None


@dataclass(frozen=True)
class Lead:
    """One point's estimated speed over another's. The constants are the same for both: it is surer than either.

    Attributes:
        ratio: above 1 where the first is faster.
        band: its range over the ranges of the constants; None where the profiles do not say.
        unseen: what differs between the two and the estimates leave out, one sentence each.
    """

    ratio: float
    band: tuple[float, float] | None = None
    unseen: tuple[str, ...] = ()


@dataclass(frozen=True)
class Point:
    """What became of one configuration.

    Attributes:
        label: as it was wanted.
        compiled: None where there was nothing to compile, or the compiler failed for another reason than memory.
        problem: why it does not fit, or could not be compiled; None if it fits.
        estimate: None if it does not fit.
        profile: its file; None if it does not fit.
    """

    label: str
    compiled: Compiled | None = None
    problem: str | None = None
    estimate: Estimate | None = None
    profile: Path | None = None

    @property
    def fits(self) -> bool:
        """Whether it runs on the slice."""
        return self.problem is None

    @property
    def peak_bytes(self) -> int | None:
        """HBM that is held at the fullest moment."""
        return self.compiled.memory.peak_bytes if self.compiled and self.compiled.memory else None

    @property
    def allocated_bytes(self) -> int | None:
        """HBM that has to be there."""
        if self.compiled is None:
            return None
        if isinstance(self.compiled.error, OutOfMemory):
            return self.compiled.error.needed_bytes
        return self.compiled.memory.allocated_bytes if self.compiled.memory else None

    @property
    def headroom_bytes(self) -> int | None:
        """HBM that is left; what is missing is negative."""
        allocated, capacity = self.allocated_bytes, self.compiled.capacity_bytes if self.compiled else None
        return capacity - allocated if capacity is not None and allocated is not None else None

    @property
    def host_bytes(self) -> int | None:
        """Memory on the host."""
        return self.compiled.memory.host_bytes if self.compiled and self.compiled.memory else None

    @property
    def splash_calls(self) -> tuple[int | None, int | None]:
        """Forward calls of the splash kernel that a step makes for the student: (all, re-runs of them)."""
        found = {each.phase: each.calls for each in (self.compiled.calls if self.compiled else ())
                 if each.family == SPLASH}  # fmt: skip
        forward, rerun = found.get("student forward"), found.get("re-run", 0)
        if forward is None or rerun is None:  # another kernel, or a count that depends on data
            return None, None
        return forward + rerun, rerun

    def to_dict(self) -> dict[str, Any]:
        """As JSON values."""
        student, rerun = self.splash_calls
        return {
            "label": self.label,
            "fits": self.fits,
            "compiled": self.compiled is not None,
            "problem": self.problem,
            "peak_bytes": self.peak_bytes,
            "allocated_bytes": self.allocated_bytes,
            "headroom_bytes": self.headroom_bytes,
            "host_bytes": self.host_bytes,
            "student_splash_forward_calls": student,
            "rerun_splash_forward_calls": rerun,
            "estimate": asdict(self.estimate) if self.estimate else None,
            "from_cache": self.compiled.from_cache if self.compiled else None,
            "profile": self.profile.name if self.profile else None,
        }


@dataclass(frozen=True)
class Points:
    """All points of one slice.

    Attributes:
        topology: the slice.
        points: in the order in which they were wanted.
        coarse: whether the times are as coarse as a quick compile's.
        notes: kernels whose code could not be read.
    """

    topology: Topology
    points: tuple[Point, ...]
    coarse: bool
    notes: tuple[str, ...] = ()

    @property
    def fitting(self) -> list[Point]:
        """Those that fit."""
        return [each for each in self.points if each.fits]

    @property
    def capacity_bytes(self) -> int | None:
        """HBM that the compiler may use on a device; None where nothing was compiled."""
        return next((each.compiled.capacity_bytes for each in self.points if each.compiled), None)

    def where(self) -> str:
        """The slice in words."""
        slice_, capacity = self.topology, self.capacity_bytes
        each = f", {units.size(capacity)} each" if capacity is not None else ""
        return f"{slice_.name}, {slice_.devices} devices ({slice_.chip.name}{each})"


def measure(
    wanted: Sequence[Wanted],
    topology: str,
    folder: Path,
    *,
    whole: bool,
    kernels: bool,
    cache: Cache | None = None,
) -> Points:
    """Compiles all that can be, and estimates what fits.

    Args:
        wanted: what to compile.
        topology: the slice's name.
        folder: gets the profiles.
        whole: compile to the end.
        kernels: compile each kernel alone, too, for its time (distill.aot.bundles).
        cache: where finished compiles are kept.

    Raises:
        UsageError: no such slice, or a folder that ``profiler`` would take for something else.
        ProfilerError: there is no TPU compiler.
    """
    if "," in str(folder) or "=" in str(folder):
        raise UsageError("a name with ',' or '=' stands for several recordings", file=folder, remedy="choose another")
    slice_ = find(topology)
    require()
    possible = [(each.label, each.loaded.config) for each in wanted if isinstance(each.loaded, Loaded)]
    board = Board([label for label, _ in possible])
    try:
        outcomes = compile_all(
            [config for _, config in possible],
            topology,
            quick=not whole,
            cache=cache,
            progress=board.update,
            finished=lambda index, outcome: board.finish(index, _in_short(outcome)),
        )
    finally:
        board.end()
    done = iter(outcomes)
    found = [next(done) if isinstance(each.loaded, Loaded) else each.loaded for each in wanted]
    # Times of quick and of finished compiles do not stand in one table: where one is quick, all are taken to be.
    coarse = any(isinstance(each, Compiled) and each.fits and each.quick for each in found)
    codes = [_kernel_code(each, cache) if kernels else None for each in found]
    points = tuple(
        _point(each, outcome, folder, coarse, code) for each, outcome, code in zip(wanted, found, codes, strict=True)
    )
    notes = dict.fromkeys(note for code in codes if code for note in code.notes)
    return Points(slice_, points, coarse, tuple(notes))


def _kernel_code(outcome: Compiled | ProfilerError, cache: Cache | None) -> KernelCode | None:
    if isinstance(outcome, ProfilerError) or not outcome.fits or outcome.hlo_proto is None:
        return None
    module = parse(outcome.hlo_proto.read_bytes())
    try:
        return kernel_code(module, outcome.config, outcome.topology, cache=cache, progress=stderr_progress())
    finally:
        end_progress()


def _point(
    wanted: Wanted, outcome: Compiled | ProfilerError, folder: Path, coarse: bool, code: KernelCode | None
) -> Point:
    file = folder / f"{wanted.file}.xplane.pb"
    file.unlink(missing_ok=True)  # of an earlier call, when it may have fitted
    if isinstance(outcome, ProfilerError):
        return Point(wanted.label, problem=str(outcome))
    if not outcome.fits:
        return Point(wanted.label, outcome, _why(outcome))
    assert isinstance(wanted.loaded, Loaded)
    profile = export_profile(outcome, wanted.loaded.to_dict(), file, coarse=coarse, kernels=code)
    return Point(wanted.label, outcome, None, estimated(profile) if profile else None, profile)


def estimated(profile: Path) -> Estimate:
    """What ``profiler`` makes of a compiled profile."""
    import profiler

    summary = profiler.summary(str(profile))
    step_s, tokens_per_s, mfu = summary.steps.mean_ps / 1e12, summary.tokens_per_s, summary.mfu
    assert summary.run_info is not None and tokens_per_s is not None
    fast, slow = summary.run_info["estimates"]["step_s_band"]
    return Estimate(
        step_s=step_s,
        step_s_band=(fast, slow),
        token_s=1 / tokens_per_s,
        tokens_per_s=tokens_per_s,
        tokens_per_s_band=(tokens_per_s * step_s / slow, tokens_per_s * step_s / fast),
        mfu=mfu,
        mfu_band=None if mfu is None else (mfu * step_s / slow, mfu * step_s / fast),
    )


def ahead(one: Point, other: Point, per: str) -> Lead | None:
    """The estimated speed of one point over that of another; None if one of them does not fit.

    Args:
        one, other: points of one slice.
        per: what speed counts, "token" or "flop".
    """
    import profiler

    if one.profile is None or other.profile is None:
        return None
    diff = profiler.diff(str(other.profile), str(one.profile), profiler.Options(normalize=per))
    ratio, ends = diff.delta.throughput_ratio, diff.delta.band
    assert ratio is not None  # tokens and model FLOPs of a compile are known
    unseen = tuple(note.message for note in diff.warnings if note.code == UNSEEN)
    return Lead(ratio, (1 / ends[1], 1 / ends[0]) if ends else None, unseen)


def _why(compiled: Compiled) -> str:
    error = compiled.error
    assert error is not None
    needed, available = units.size(error.needed_bytes), units.size(error.available_bytes)
    if isinstance(error, OutOfMemory):
        return f"needs {needed} of HBM, {available} are available"
    knobs = f" ({', '.join(f'{key}={getattr(compiled.config, key)}' for key in error.knobs)})" if error.knobs else ""
    return f"{error.kernel} needs {needed} of VMEM, {available} are allowed{knobs}"


def _in_short(outcome: Compiled | ProfilerError) -> str:
    """What became of a compile, for the progress."""
    if isinstance(outcome, ProfilerError):
        return str(outcome)
    took = "from the cache" if outcome.from_cache else f"{sum(outcome.seconds.values()):.0f} s"
    return f"{'fits' if outcome.fits else 'does not fit'}, {took}"
