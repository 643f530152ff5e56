"""Cycles of a Pallas kernel, from the code that the compiler made of it: the dump of its final bundles.

A bundle is what the core issues in one cycle. The kernel's grid is the outermost loop of the dump, and each
conditional part of the loop's body is a branch over the region that it skips. Bundles alone say too little: matmuls
are written closer together than a matrix unit can start them, and the core waits. So the code is replayed: a matmul
takes its unit for a cycle per ``ROWS_PER_CYCLE`` rows, and the core waits where ``QUEUE`` of them wait there already.
"""

from __future__ import annotations

import re
from collections import deque
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field

from distill.aot.model import KernelCycles

# Rows that a matrix unit takes in per cycle, by chip: what makes all units together reach the peak.
ROWS_PER_CYCLE = {"tpu-v4": 2, "tpu-v5e": 1, "tpu-v5p": 2, "tpu-v6e": 2, "tpu-v7x": 2}
# Matmuls that wait at a unit before the core does. Not documented; 0 to 16 move a kernel by +1 % to −3 %.
QUEUE = 4
_ROWS = {"bf16": 16, "f32": 8}  # of the register that a matmul takes in, by its type

_BUNDLE = re.compile(r"\s*(?:0x([0-9a-f]+)|0)\s*(?:[A-Z]{2}\s*)*:[> ]*\{")
_REGION = re.compile(r"Start(?:/End empty)? region (\d+)\b")
_BRANCH = re.compile(r"\bsbr\.rel\b[^;]*?target = \$region(\d+)")
_MATMUL = re.compile(r"\bvmatmul\.(?:\w+\.)*?(bf16|f32|f8\w*|[su]\d+)\.[\w.\[\]]*?mxu(\d)")


class Unreadable(Exception):
    """A dump whose code does not tell how long a grid step takes."""


Bundle = tuple[tuple[int, str], ...]  # the matmuls of a bundle: (unit, type of the rows)


@dataclass(slots=True)
class _Part:
    """Bundles [start, end) that run together, less those of the parts inside."""

    start: int
    end: int
    inside: list[_Part] = field(default_factory=list)

    def own(self, code: list[Bundle]) -> Iterator[Bundle]:
        """The bundles outside of the parts inside."""
        at = self.start
        for part in self.inside:
            yield from code[at : part.start]
            at = part.end
        yield from code[at : self.end]

    def works(self, code: list[Bundle]) -> bool:
        """Whether there is a matmul anywhere in it."""
        return any(code[self.start : self.end])


def read_cycles(lines: Iterable[str], rows_per_cycle: float = 2) -> KernelCycles:
    """The cycles of a kernel whose final bundles these are.

    Raises:
        Unreadable: no grid loop with matmuls, a loop inside it, or rows of a type whose speed is not known.
    """
    code, branches, regions = _scan(lines)
    jumps = [(at, regions[target]) for at, target in branches if target in regions]
    loops = [(target, at + 1) for at, target in jumps if target <= at]
    grids = [loop for loop in loops if any(code[slice(*loop)])]
    if not grids:
        raise Unreadable("the dump has no loop with matmuls")
    start, end = max(grids, key=lambda loop: loop[1] - loop[0])
    if any(start < inner[0] and inner[1] < end for inner in loops):
        raise Unreadable("the kernel's code has a loop inside its grid")  # how often it runs is not known
    skips = sorted((at + 1, target) for at, target in jumps if start <= at < target <= end)
    root = _nested(_Part(start, end), skips)
    step, blocks, edges = 0.0, [], 0.0
    parts = deque([root])
    while parts:
        part = parts.popleft()
        working = [each for each in part.inside if each.works(code)]
        own = _replay(part.own(code), rows_per_cycle)
        if working:
            step += own
        else:
            blocks.append(own)
        edges += sum(each.end - each.start for each in part.inside if each not in working)
        parts += working
    return KernelCycles(step, tuple(blocks), edges)


def _scan(lines: Iterable[str]) -> tuple[list[Bundle], list[tuple[int, int]], dict[int, int]]:
    """Bundles, branches (bundle, region), and where each region starts."""
    code: list[Bundle] = []
    branches: list[tuple[int, int]] = []
    regions: dict[int, int] = {}
    for line in lines:
        if _BUNDLE.match(line):
            code.append(())
        if not code:
            continue
        here = len(code) - 1
        if "region" in line:
            for number in _REGION.findall(line):
                regions.setdefault(int(number), here)
            branches += [(here, int(number)) for number in _BRANCH.findall(line)]
        if "vmatmul" in line:
            code[here] += tuple((int(unit), kind) for kind, unit in _MATMUL.findall(line))
    return code, branches, regions


def _nested(root: _Part, skips: list[tuple[int, int]]) -> _Part:
    """Puts each skipped part, by start, into the one around it."""
    around = [root]
    for start, end in skips:
        while around[-1].end <= start:
            around.pop()
        if end > around[-1].end:  # the other half of an if that begins where this one ends
            start = around.pop().end
        if start < end:
            part = _Part(start, end)
            around[-1].inside.append(part)
            around.append(part)
    return root


def _replay(code: Iterable[Bundle], rows_per_cycle: float) -> float:
    """Cycles of bundles in a row: one each, and what the core waits for the matrix units."""
    now = 0.0
    ends: dict[int, deque[float]] = {}  # of the last matmuls of each unit
    for bundle in code:
        for unit, _ in bundle:
            queue = ends.setdefault(unit, deque(maxlen=QUEUE + 1))
            if len(queue) > QUEUE:
                now = max(now, queue[0])
        for unit, kind in bundle:
            if kind not in _ROWS:
                raise Unreadable(f"how long a matmul of {kind} takes is not known")
            queue = ends[unit]
            queue.append(max(now, queue[-1] if queue else 0.0) + _ROWS[kind] / rows_per_cycle)
        now += 1
    return max((now, *(queue[-1] for queue in ends.values())))
