"""What the compiler leaves in its dump folder: the optimized program and the schedule.

Both are protos. ``*.after_optimizations.hlo.pb`` is a whole HloProto with the buffer assignment, written about a minute
into a large compile, and also when memory runs out; ``*.after_codegen.hlo.pb`` is the finished program, whose
instructions have the compiler's cycles, without the assignment; ``*.schedule.pb`` is the plan of the latency-hiding
scheduler.
Field numbers of the schedule were read off libtpu 0.0.42's files against the text form of the same compile.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from distill.aot.environment import PROGRAM
from profiler.errors import UnreadableError
from profiler.hlo.schema import HLO
from profiler.xplane.schema import INT64, build_messages

_DOUBLE = "DOUBLE"
_MESSAGES: dict[str, dict[str, tuple[int, Any]]] = HLO | {
    "Schedules": {"hlo_module": (1, "HloModuleProto"), "computations": (2, ["ComputationSchedule"])},
    "ComputationSchedule": {
        "computation_id": (1, INT64),
        "instructions": (2, ["Scheduled"]),
        "statistics": (3, "Statistics"),
        "cycles_per_microsecond": (4, INT64),
    },
    "Scheduled": {
        "id": (1, INT64),
        "start_cycles": (2, _DOUBLE),
        "end_cycles": (3, _DOUBLE),
        "memory_after": (5, INT64),
        "peak_after": (6, INT64),
    },
    "Statistics": {"wasted_cycles": (11, _DOUBLE), "total_cycles": (12, _DOUBLE), "memory_peak": (13, INT64)},
}
# Field 3 of an HloProto, which holds the buffer assignment, as a length-delimited field of the wire format.
_ASSIGNMENT_TAG = b"\x1a"


@dataclass(frozen=True, slots=True)
class Scheduled:
    """One instruction in its computation's schedule.

    Attributes:
        name: the instruction's name when it was scheduled; later passes rename some, mostly kernels.
        opcode: HLO opcode.
        op_name: JAX name stack.
        start_cycles: when it starts, from the start of the computation.
        end_cycles: when it ends; a loop's body is not in it.
        memory_after_bytes: HBM that the scheduler believes to be in use after it.
    """

    name: str
    opcode: str
    op_name: str
    start_cycles: float
    end_cycles: float
    memory_after_bytes: int


@dataclass(frozen=True)
class ComputationSchedule:
    """One computation: its instructions in order, and the scheduler's sums, in cycles and bytes."""

    name: str
    instructions: tuple[Scheduled, ...]
    total_cycles: float
    wasted_cycles: float
    memory_peak_bytes: int


@dataclass(frozen=True)
class Schedule:
    """The schedule of a program: computations by name, and how many cycles are a microsecond."""

    computations: Mapping[str, ComputationSchedule]
    cycles_per_us: float


@dataclass(frozen=True)
class Dump:
    """A dump folder, which may not be complete: an unfinished compile has not written everything."""

    folder: Path

    @property
    def optimized(self) -> Path | None:
        """HloProto with the buffer assignment."""
        return self._one(f"*.{PROGRAM}.*after_optimizations.hlo.pb")

    @property
    def finished(self) -> Path | None:
        """HloProto of the finished program."""
        return self._one(f"*.{PROGRAM}.*after_codegen.hlo.pb")

    @property
    def schedule(self) -> Path | None:
        """The schedule."""
        return self._one(f"{PROGRAM}*.schedule.pb")

    @property
    def has_memory(self) -> bool:
        """Whether the buffer assignment is out, and with it everything before: the report is the last of these."""
        return self._one(f"*.{PROGRAM}.*memory-usage-report.pb") is not None and self.optimized is not None

    def _one(self, pattern: str) -> Path | None:
        return max(self.folder.glob(pattern), key=lambda path: path.stat().st_mtime, default=None)

    def program(self, *, whole: bool = True) -> bytes | None:
        """The program as one HloProto with the buffer assignment; None before there is one.

        Args:
            whole: the compile has ended, so that the finished program, if any, is written out. Of one that goes on or
                was ended early its file may be half there: then the optimized program is the answer.
        """
        optimized, finished = self.optimized, self.finished if whole else None
        if optimized is None:
            return None
        data = optimized.read_bytes()
        if finished is None:
            return data
        from profiler.hlo import parse

        # Two messages written one after the other are one with the fields of both.
        assignment = parse(data).buffer_assignment
        return finished.read_bytes() + (_ASSIGNMENT_TAG + _varint(len(assignment)) + assignment if assignment else b"")


def read_schedule(path: Path) -> Schedule:
    """A schedule file.

    Raises:
        UnreadableError: it is missing or damaged.
    """
    message = _messages().Schedules()
    try:
        message.ParseFromString(path.read_bytes())
    except OSError as error:
        raise UnreadableError(str(error.strerror), file=path) from error
    except Exception as error:  # protobuf's DecodeError; its class differs between protobuf implementations
        raise UnreadableError("not a schedule, or a damaged one", file=path) from error
    names = {c.id: _text(c.name) for c in message.hlo_module.computations}
    protos = {i.id: i for c in message.hlo_module.computations for i in c.instructions}
    computations = {}
    for each in message.computations:
        found = [(protos[i.id], i) for i in each.instructions if i.id in protos]
        name = names.get(each.computation_id, str(each.computation_id))
        computations[name] = ComputationSchedule(
            name,
            tuple(
                Scheduled(
                    _text(proto.name),
                    _text(proto.opcode),
                    _text(proto.metadata.op_name),
                    i.start_cycles,
                    i.end_cycles,
                    i.memory_after,
                )
                for proto, i in found
            ),
            each.statistics.total_cycles,
            each.statistics.wasted_cycles,
            each.statistics.memory_peak,
        )
    rate = next((float(each.cycles_per_microsecond) for each in message.computations), 0.0)
    return Schedule(computations, rate)


def _varint(value: int) -> bytes:
    parts = bytearray()
    while value > 0x7F:
        parts.append(value & 0x7F | 0x80)
        value >>= 7
    return bytes([*parts, value])


def _text(value: bytes) -> str:
    return value.decode("utf-8", "replace")


@cache
def _messages() -> SimpleNamespace:
    return build_messages("distill.aot.dump", _MESSAGES)
