"""One step of a compiled program as spans in time, laid out from the order that the compiler chose.

The TensorCore runs its instructions one after another. What start ops start runs beside it, on queues that each do one
thing at a time: the links between chips, the SparseCores, the copy engines and the link to the host. A done op waits
until its transfer has ended. Loops run their bodies as often as the program says, so every call is there.
"""

from __future__ import annotations

from array import array
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache
from types import SimpleNamespace

from distill.aot.timing import Estimate, Timer, payload
from profiler.hlo import HloModule, Instruction, shapes
from profiler.hlo.module import NO_TRAFFIC
from profiler.hlo.trips import trip_count
from profiler.xplane.schema import INT64, build_messages

# Custom calls that mark something for the compiler and run nothing.
_MARKERS = frozenset(
    {
        "AllocateBuffer",
        "AssumeGatherIndicesInBound",
        "ConcatBitcast",
        "PrepareAsyncCallDone",
        "PrepareAsyncCallStart",
        "Sharding",
    }
)
_ALWAYS = frozenset({"fusion", "custom-call", "while", "call", "conditional", "sort"})
_SYNCHRONOUS = ("links", "sparsecore", "to host", "from host")  # resources that a blocking op has to wait for


@dataclass
class Spans:
    """Events of one line: instruction number, start and duration in ps, in order of start."""

    op: array[int] = field(default_factory=lambda: array("l"))
    start_ps: array[int] = field(default_factory=lambda: array("q"))
    duration_ps: array[int] = field(default_factory=lambda: array("q"))

    def add(self, op: int, start_ps: int, duration_ps: int) -> int:
        """Appends a span; returns its place."""
        self.op.append(op)
        self.start_ps.append(start_ps)
        self.duration_ps.append(duration_ps)
        return len(self.op) - 1

    def __len__(self) -> int:
        return len(self.op)


@dataclass(frozen=True)
class Step:
    """One step: the instructions that appear, by number, and their spans.

    ``sources`` names the source of each instruction's time; ``notes`` are what had to be assumed.
    """

    instructions: tuple[Instruction, ...]
    core: Spans
    in_flight: Spans
    duration_ps: int
    sources: Mapping[str, str]
    notes: tuple[str, ...]


def lay_out(module: HloModule, timer: Timer) -> Step:
    """Runs the program once."""
    machine = _Machine(module, timer, _orders(module))
    machine.run(module.entry)
    end = max([machine.now, *machine.free.values()])
    return Step(
        instructions=tuple(machine.numbers),
        core=machine.core,
        in_flight=machine.in_flight,
        duration_ps=end,
        sources={each.name: machine.sources[each] for each in machine.numbers},
        notes=tuple(dict.fromkeys(machine.notes)),
    )


def step_ps(module: HloModule, timer: Timer) -> int:
    """The duration of ``lay_out``'s step alone, in a fraction of the time: loops that have settled are not run out."""
    machine = _Timed(module, timer, _orders(module))
    machine.run(module.entry)
    return max([machine.now, *machine.free.values()])


@dataclass
class _Machine:
    """The state of one run; all times in ps from its start."""

    module: HloModule
    timer: Timer
    orders: Mapping[str, tuple[Instruction, ...]]
    now: int = 0
    core: Spans = field(default_factory=Spans)
    in_flight: Spans = field(default_factory=Spans)
    free: dict[str, int] = field(default_factory=dict)  # queue → when it has done what it was given
    ends: dict[str, int] = field(default_factory=dict)  # start op → end of its transfer
    numbers: dict[Instruction, int] = field(default_factory=dict)
    sources: dict[Instruction, str] = field(default_factory=dict)
    estimates: dict[Instruction, tuple[Estimate, str]] = field(default_factory=dict)
    notes: list[str] = field(default_factory=list)

    def run(self, computation: str) -> None:
        """All instructions of a computation, once."""
        for instruction in self.orders.get(computation, ()):
            opcode = instruction.opcode
            if opcode in ("while", "conditional", "call"):
                self._contain(instruction)
            elif opcode.endswith("-start"):
                self._start(instruction)
            elif opcode.endswith("-done"):
                self._done(instruction)
            else:
                self._block(instruction)

    def _block(self, instruction: Instruction) -> None:
        """An op that the core itself runs, or waits for from start to end."""
        estimate, resource = self._estimate(instruction)
        start = self.now
        if resource in _SYNCHRONOUS:
            begin = max(self.now, self.free.get(resource, 0))
            self.now = self.free[resource] = begin + estimate.duration_ps
        else:
            self.now += estimate.duration_ps
        self._record(instruction, start, estimate.source)

    def _start(self, instruction: Instruction) -> None:
        estimate, resource = self._estimate(instruction)
        begin = max(self.now, self.free.get(resource, 0))
        self.free[resource] = self.ends[instruction.name] = begin + estimate.duration_ps
        self._record(instruction, self.now, estimate.source)
        self.in_flight.add(self._number(instruction), begin, estimate.duration_ps)

    def _done(self, instruction: Instruction) -> None:
        end = max((self.ends.pop(name, 0) for name in _starts(instruction)), default=0)
        start, self.now = self.now, max(self.now, end)
        self._record(instruction, start, "wait")

    def _contain(self, instruction: Instruction) -> None:
        """A loop or call: its span contains those of what it runs."""
        start, place = self.now, self.core.add(self._number(instruction), self.now, 0)
        bodies, times = instruction.called, 1
        if instruction.opcode == "while":
            trips = trip_count(instruction)
            if trips is None:
                self.notes.append(f"{instruction.name}: how often this loop runs depends on data; drawn once")
            bodies, times = instruction.called[:1], 1 if trips is None else int(trips)
        elif instruction.opcode == "conditional":
            self.notes.append(f"{instruction.name}: which branch runs depends on data; the first is drawn")
            bodies = instruction.called[:1]
        self._repeat(bodies, times)
        self.sources[instruction] = "contents"
        self.core.duration_ps[place] = self.now - start

    def _repeat(self, bodies: Sequence[str], times: int) -> None:
        for _ in range(times):
            for body in bodies:
                self.run(body)

    def _record(self, instruction: Instruction, start: int, source: str) -> None:
        self.sources[instruction] = source
        self.core.add(self._number(instruction), start, self.now - start)

    def _estimate(self, instruction: Instruction) -> tuple[Estimate, str]:
        found = self.estimates.get(instruction)
        if found is None:
            found = self.timer.estimate(instruction), self.timer.resource(instruction)
            self.estimates[instruction] = found
        return found

    def _number(self, instruction: Instruction) -> int:
        return self.numbers.setdefault(instruction, len(self.numbers))


class _Timed(_Machine):
    """Keeps the time only. A loop whose queues stand as they stood an iteration before repeats that iteration."""

    def _repeat(self, bodies: Sequence[str], times: int) -> None:
        before: object = None
        began = self.now
        for done in range(times):
            state = self._ahead()
            if state == before:
                self._skip((times - done) * (self.now - began))
                return
            before, began = state, self.now
            for body in bodies:
                self.run(body)

    def _ahead(self) -> tuple[dict[str, int], dict[str, int]]:
        """How far queues and transfers reach beyond now: all that the next iteration's time depends on."""
        free = {queue: end - self.now for queue, end in self.free.items() if end > self.now}
        return free, {name: end - self.now for name, end in self.ends.items() if end > self.now}

    def _skip(self, duration_ps: int) -> None:
        self.now += duration_ps
        self.free = {queue: end + duration_ps for queue, end in self.free.items()}
        self.ends = {name: end + duration_ps for name, end in self.ends.items()}

    def _record(self, instruction: Instruction, start: int, source: str) -> None:
        pass


def _starts(done: Instruction) -> list[str]:
    """The start op of a done op, updates in between passed through."""
    names = list(done.operands[:1])
    table = done.module.instructions
    while names and names[-1] in table and table[names[-1]].opcode.endswith("-update"):
        names.append(table[names[-1]].operands[0])
    return names


def _orders(module: HloModule) -> dict[str, tuple[Instruction, ...]]:
    """The instructions of each computation that take time, in the order in which they run.

    A compiled module holds its schedule beside its computations, whose own order is another. Without one (a module that
    was not scheduled) their own order is taken: operands come first there.
    """
    found = _scheduled().HloModuleProto()
    found.ParseFromString(module.proto.SerializeToString())
    sequences = {entry.key: entry.value.instruction_ids for entry in found.schedule.sequences}
    orders = {}
    for proto, computation in zip(module.proto.computations, module.computations.values(), strict=True):
        by_id = {each.proto.id: each for each in computation.instructions}
        order = [by_id[i] for i in sequences.get(proto.id, ()) if i in by_id] or list(computation.instructions)
        orders[computation.name] = tuple(each for each in order if takes_time(each))
    return orders


def takes_time(instruction: Instruction) -> bool:
    """Whether an instruction is an event of its own on a TPU: not a name for a value, nor arithmetic on one number."""
    opcode = instruction.opcode
    if opcode in NO_TRAFFIC or opcode.endswith("-update") or instruction.custom_call_target in _MARKERS:
        return False
    scalar = shapes.elements(instruction.proto.shape) == 1
    return not scalar or opcode in _ALWAYS or opcode.endswith(("-start", "-done")) or payload(instruction).called != ()


@cache
def _scheduled() -> SimpleNamespace:
    """xla.HloModuleProto as far as its schedule goes (xla/service/hlo.proto)."""
    return build_messages(
        "distill.schedule",
        {
            "HloModuleProto": {"schedule": (7, "HloScheduleProto")},
            "HloScheduleProto": {"sequences": (1, ["Entry"])},
            "Entry": {"key": (1, INT64), "value": (2, "InstructionSequence")},
            "InstructionSequence": {"instruction_ids": (1, [INT64])},
        },
    )
