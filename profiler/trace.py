"""Trace: what one side's recordings reduce to. Frozen, and all that the analyses see.

``ops`` documents every op once; ``op_sums`` counts it per device as XProf does; ``timelines`` hold the spans from
which the exclusive (sweep) times come. The two differ on purpose, see docs/times.md.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import numpy as np
    import polars as pl

    from profiler.fleet import Fleet, Host
    from profiler.hlo import HloModule
    from profiler.results import Note

# One row per (file, program, op). `hlo` is false for device activity that no HLO op explains: kernels launched without
# one, copies by the runtime. `rank` is the family's place in the sweep (profiler.analysis.times). `near_stack` is the
# scope of the nearest neighbour in the dataflow, where an op has no name stack of its own. `hlo_text` is the
# instruction as the recording itself spells it (on TPU). flops and bytes_accessed are per occurrence; null is unknown,
# never 0 for unknown. `groups` says of a collective which devices take part in it together, as its HLO text has it.
OPS_COLUMNS = {
    "op_id": "Int32",
    "program": "String",
    "program_id": "String",
    "op": "String",
    "hlo": "Boolean",
    "category": "String",
    "opcode": "String",
    "family": "String",
    "rank": "UInt8",
    "phase": "String",
    "kernel": "String",
    "name_stack": "String",
    "near_stack": "String",
    "source": "String",
    "shape": "String",
    "hlo_text": "String",
    "groups": "String",
    "flops": "Int64",
    "bytes_accessed": "Int64",
}

# One row per (device, op) with what XProf's hlo_stats counts.
OP_SUMS_COLUMNS = {
    "device": "Int32",
    "op_id": "Int32",
    "occurrences": "Int64",
    "total_time_ps": "Int64",
    "self_time_ps": "Int64",
}

IN_FLIGHT = "in flight"  # the name of lane −1


@dataclass(frozen=True, slots=True)
class Device:
    """One device of one file: the key is (file, host, plane), since two hosts both call theirs ``/device:TPU:0``.

    ``peak_tflops`` is the chip's dense bf16 peak per JAX device; ``trace_peak_tflops`` what the trace itself says;
    ``host_index`` is the place of its file among Fleet.hosts.
    """

    index: int
    name: str
    file: str
    host: str
    plane: str
    platform: str  # "tpu" | "gpu" | "cpu"
    type: str | None = None
    peak_tflops: float | None = None
    trace_peak_tflops: float | None = None
    hbm_bytes: int | None = None
    host_index: int = 0


@dataclass(frozen=True, slots=True)
class Timeline:
    """Spans of one device in one clock, file order.

    ``start_ps``, ``duration_ps`` int64; ``op`` int32, rows of Trace.ops; ``lane`` int32, one per line or stream, −1 for
    spans in flight beside others (async lines); ``counted`` bool, true where the span is a call of its op (not the
    done half of an async pair, not a span in flight); ``run`` int64, the execution the runtime says it is of, −1 where
    it does not say. ``lanes`` are the names of the lines, by lane number.
    """

    start_ps: np.ndarray
    duration_ps: np.ndarray
    op: np.ndarray
    lane: np.ndarray
    counted: np.ndarray
    run: np.ndarray
    lanes: tuple[str, ...] = ()

    def __len__(self) -> int:
        return len(self.start_ps)

    def lane_name(self, lane: int) -> str:
        """What a lane is called; lines without a name go by their number."""
        if lane < 0:
            return IN_FLIGHT
        return (self.lanes[lane] if lane < len(self.lanes) else "") or f"line {lane}"


@dataclass(frozen=True, slots=True)
class Marks:
    """Spans that delimit steps on one device, by start. ``names`` are step numbers or program names with their id."""

    start_ps: np.ndarray
    end_ps: np.ndarray
    names: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Windows:
    """The steady steps of one device: (n, 2) int64 [start, end) in ps, and how they were found.

    ``names`` are those of the marks that begin them, which are equal on all devices and hosts of a run (step numbers);
    empty where steps are repeats of a program, and where nothing repeats.
    """

    spans: np.ndarray
    source: str
    unit: str  # "step" | "run"
    names: tuple[str, ...] = ()

    def rows(self, steps: tuple[int | None, int | None] | None = None, skip_first: int = 0) -> slice:
        """Which rows of ``spans`` --steps and --skip-first choose; a run is always whole."""
        chosen = range(len(self.spans))
        if self.unit == "step":
            chosen = chosen[skip_first:]
            chosen = chosen[slice(*steps)] if steps else chosen
        return slice(chosen.start, chosen.stop)


@dataclass(frozen=True, slots=True)
class Allocator:
    """One allocator's own account, from its events in the recording.

    ``window_peak_bytes`` = ``reserved_bytes`` (stacks: the running programs' temporaries) + ``allocated_bytes`` (heap:
    arrays) at that moment; ``fragmentation`` is the allocator's own figure then, 0 to 1.
    """

    name: str
    on_host: bool
    window_peak_bytes: int
    reserved_bytes: int
    allocated_bytes: int
    lifetime_peak_bytes: int
    capacity_bytes: int
    fragmentation: float | None
    events: int
    host: str | None = None


@dataclass(frozen=True, slots=True)
class AllocatorPeaks:
    """From allocator events, the largest over devices: within the recording, over the process's life, and the limit.

    ``allocators`` has each by itself, those of host memory too, which the three figures leave out.
    """

    window_peak_bytes: int | None = None
    lifetime_peak_bytes: int | None = None
    capacity_bytes: int | None = None
    allocators: tuple[Allocator, ...] = ()


@dataclass(frozen=True)
class Trace:
    """One side: its devices that recorded ops, their ops, spans and steps.

    ``programs`` maps (file, program id) to the HLO module, where the trace holds it. ``versions`` are what the trace
    says of the software that made it. ``idle_devices`` are planes without a compute op. ``modules`` are the programs'
    executions per device, None where the trace has no line of them. ``file_bytes`` are the sizes of ``files``,
    unpacked; ``configured`` the keys of the run info that come from a configuration file beside the trace.
    ``hosts`` are all files of the side, ``run_fleet`` all their devices where only one of them is shown.
    """

    label: str
    files: tuple[str, ...]
    kind: str  # "recorded" | "compiled"
    devices: tuple[Device, ...]
    idle_devices: tuple[Device, ...]
    ops: pl.DataFrame
    op_sums: pl.DataFrame
    timelines: tuple[Timeline, ...]
    windows: tuple[Windows, ...]
    allocator: AllocatorPeaks
    programs: Mapping[tuple[str, str], HloModule]
    run_info: dict[str, Any] | None
    versions: Mapping[str, str]
    warnings: tuple[Note, ...]
    recordings: int = 1
    metrics: Mapping[str, Any] = field(default_factory=dict)
    modules: tuple[Marks | None, ...] = ()
    file_bytes: tuple[int, ...] = ()
    configured: frozenset[str] = frozenset()
    hosts: tuple[Host, ...] = ()
    run_fleet: Fleet | None = None

    @cached_property
    def fleet(self) -> Fleet:
        """All devices of the side with their steps and where the time of each went; see profiler.fleet.

        Where the run has several hosts and one device is shown, the others are in here too. Otherwise these are the
        trace's devices, swept when first asked for.
        """
        if self.run_fleet is not None:
            return self.run_fleet
        from profiler.fleet import of_trace

        return of_trace(self)

    @property
    def recorded_devices(self) -> float:
        """Devices of a recording that was read, those without ops too; the mean where there are several."""
        fleet = self.run_fleet or self
        return (len(fleet.devices) + len(fleet.idle_devices)) / self.recordings

    @cached_property
    def op_table(self) -> pl.DataFrame:
        """ops joined with op_sums: one row per (device, op)."""
        return self.op_sums.join(self.ops, on="op_id", how="left", maintain_order="left")
