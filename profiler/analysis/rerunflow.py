"""What a program would no longer run again if the backward pass found a tensor in memory: reachability on the HLO.

A re-run op is needed if its value reaches an op that is not a re-run, or the result of its computation. With a tensor
kept, what is reached only through it is not needed any more. Ops without a name of their own (bitcasts, copies, tuples)
only hand values on. The compiler may fuse and schedule otherwise once a tensor is kept, so the time of what would
vanish is an estimate from measured times.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable
from functools import cached_property

from profiler.analysis import namestack
from profiler.hlo import HloModule, Instruction
from profiler.hlo.module import Computation

RERUN = "re-run"
_HANDED_ON = frozenset({"bitcast", "copy", "copy-start", "copy-done", "get-tuple-element", "tuple", "opt-barrier"})
_CONTAINERS = frozenset({"while", "call", "conditional", "async-start"})


def is_rerun(instruction: Instruction) -> bool:
    """Whether an instruction is forward work of the backward pass."""
    return ".remat" in instruction.name or namestack.parse(instruction.op_name).rematted


class Flow:
    """The dataflow of one computation that holds re-run ops: a layer's backward pass."""

    def __init__(self, module: HloModule, computation: Computation):
        self.module, self.computation = module, computation
        self.members = {each.name: each for each in computation.instructions}

    @cached_property
    def rerun(self) -> frozenset[str]:
        """The re-run ops."""
        return frozenset(name for name, each in self.members.items() if is_rerun(each))

    @cached_property
    def needed(self) -> frozenset[str]:
        """The re-run ops that something needs as the program is."""
        return self.needed_without(frozenset())

    def vanishing(self, kept: Collection[str]) -> frozenset[str]:
        """The re-run ops that would not run if the values of ``kept`` lay in memory."""
        return self.needed - self.needed_without(frozenset(kept))

    def upstream(self, names: Collection[str]) -> frozenset[str]:
        """The re-run ops that feed ``names``."""
        return self._reached([self.members[name] for name in names], frozenset()) & self.rerun

    def inside(self, name: str) -> Iterable[str]:
        """An op, and the ops of loops, branches and wrappers that it runs."""
        yield name
        if self.members[name].opcode in _CONTAINERS:
            for callee in sorted(_called(self.module, self.members[name])):
                yield from (each.name for each in self.module.computations[callee].instructions)

    def source(self, name: str) -> str:
        """The op whose value ``name`` only hands on."""
        for _ in range(len(self.members)):
            each = self.members[name]
            operands = [operand for operand in each.operands if operand in self.members]
            if each.opcode not in _HANDED_ON - {"tuple"} or len(operands) != 1:
                break
            name = operands[0]
        return name

    def needed_without(self, kept: frozenset[str]) -> frozenset[str]:
        """The re-run ops that something needs if the values of ``kept`` lay in memory."""
        root = self.computation.root
        ends = [each for each in self.members.values() if (self._ends(each) and each.name not in kept) or each is root]
        return self._reached(ends, kept) & self.rerun

    def _ends(self, instruction: Instruction) -> bool:
        named = "/" in instruction.op_name
        return named and instruction.name not in self.rerun and instruction.opcode not in _HANDED_ON

    def _reached(self, ends: Iterable[Instruction], kept: frozenset[str]) -> frozenset[str]:
        """All operands of ``ends``, and theirs, not looking behind ``kept``."""
        seen: set[str] = set()
        pending = list(ends)
        while pending:
            for name in pending.pop().operands:
                if name in self.members and name not in seen and name not in kept:
                    seen.add(name)
                    pending.append(self.members[name])
        return frozenset(seen)


def flows(module: HloModule) -> list[Flow]:
    """Computations that hold both re-run ops and ops that need them; inner loops belong to the op that runs them."""
    found = [
        Flow(module, each)
        for each in module.computations.values()
        if not each.is_fusion and any(is_rerun(i) for i in each.instructions)
    ]
    inner = {
        name
        for flow in found
        for op in flow.rerun
        if flow.members[op].opcode in _CONTAINERS
        for name in _called(module, flow.members[op])
    }
    return [flow for flow in found if flow.computation.name not in inner and flow.needed]


def _called(module: HloModule, instruction: Instruction) -> set[str]:
    found: set[str] = set()
    pending = list(instruction.called)
    while pending:
        name = pending.pop()
        if name not in found and name in module.computations:
            found.add(name)
            pending.extend(callee for each in module.computations[name].instructions for callee in each.called)
    return found
