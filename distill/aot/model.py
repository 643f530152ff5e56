"""A tile-level model of the Pallas kernels that a step spends its time in: grouped matmul and splash attention.

A kernel's cost estimate knows nothing of tiles: it cannot tell a padded tile, a weight block that is fetched again, or
a masked block. This model counts what the compiled kernel really executes (grid steps, blocks, fetched bytes) and
charges each step max(compute, memory) plus an overhead. The counts are facts; the cycles per step come from the
kernel's own code (``distill.aot.bundles``), without it from a table of shapes whose code was read before, and else from
a share of the matrix units' work (``distill.aot.model_constants``).
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field

from distill.aot.model_constants import BlockKey, Constants, VisitKey

_LANES = 128
_LAYOUTS = (1, 2)  # HEAD_DIM_MINOR, SEQ_MINOR


@dataclass(frozen=True, slots=True)
class GroupedMatmul:
    """One gmm or tgmm call: rows [m, k] in groups, each times its own [k, n].

    Attributes:
        kernel: "gmm", "gmm transposed" (by the matrices' transposes: the gradient of the rows) or "tgmm" (the gradient
            of the matrices).
        m, k, n: sizes as the kernel sees them: k and n are whole tiles.
        tm, tk, tn: tile lengths.
        groups: matrices, E.
        item_bytes: of one element of rows and matrices.
    """

    kernel: str
    m: int
    k: int
    n: int
    tm: int
    tk: int
    tn: int
    groups: int
    item_bytes: int

    @property
    def visits(self) -> int:
        """m tiles computed: each boundary between groups lies inside a tile that both visit.

        The most there can be; fewer where groups are empty or end with a tile.
        """
        return math.ceil(self.m / self.tm) + self.groups - 1

    @property
    def tiles(self) -> int:
        """k tiles × n tiles, the grid steps of one visit."""
        return math.ceil(self.k / self.tk) * math.ceil(self.n / self.tn)


@dataclass(frozen=True, slots=True)
class Splash:
    """One splash attention call.

    Attributes:
        direction: "forward" or "backward" (dkv, which gives dq too).
        heads: batch × query heads.
        block_q, block_kv, block_kv_compute: block lengths.
        head_dim: width of a head.
        layout: of q; 1 HEAD_DIM_MINOR, 2 SEQ_MINOR.
        full, partial: blocks per head that the mask leaves whole, and that it cuts.
        rows: blocks of the output per head.
        skipped: grid steps per head that find an empty block.
    """

    direction: str
    heads: int
    block_q: int
    block_kv: int
    block_kv_compute: int
    head_dim: int
    layout: int
    full: int
    partial: int
    rows: int
    skipped: int = 0


@dataclass(frozen=True, slots=True)
class KernelCycles:
    """Cycles of one grid step, as the code of a compiled kernel has them.

    Attributes:
        step: of what every step runs: the loop, its copies in and out, what is around the blocks.
        blocks: of each alternative with matmuls, in the order of the code; a step runs one of them. Of a gmm with
            several k tiles these are the last one and the others, of splash the blocks that the mask leaves whole and
            those that it cuts, in either order.
        edges: of what only the first or the last step of a visit, a group or a row runs: it zeroes and stores.
    """

    step: float
    blocks: tuple[float, ...]
    edges: float


@dataclass(frozen=True)
class KernelModel:
    """Seconds per call.

    Attributes:
        constants: of the chip.
        visit_cycles, block_cycles: of shapes whose cycles are known.
        code: the cycles of this very kernel, which come before the others.
    """

    constants: Constants
    visit_cycles: Mapping[VisitKey, float] = field(default_factory=dict)
    block_cycles: Mapping[BlockKey, float] = field(default_factory=dict)
    code: KernelCycles | None = None

    def grouped_matmul(self, call: GroupedMatmul) -> float:
        """Σ over visits × tiles of max(tile cycles / clock, fetched bytes / bandwidth) + step overhead."""
        c = self.constants
        compute = self._visit_cycles(call) / call.tiles / c["clock"]
        edges = self.code.edges / c["clock"] if self.code and call.kernel == "tgmm" else 0.0
        bandwidth = c["kernel_hbm_share"] * c["hbm"]
        matrix = call.tk * call.tn * call.item_bytes / bandwidth
        k_tiles = math.ceil(call.k / call.tk)
        rows_in = call.tm * call.tk * call.item_bytes / bandwidth
        rows_out = call.tm * call.tn * call.item_bytes / bandwidth
        if call.kernel == "tgmm":
            # Both inputs change with every visit; a result is zeroed and stored once per group.
            usual, changing = rows_in + rows_out, rows_in + rows_out + matrix
        elif k_tiles > 1:
            # The matrix's k tiles take turns, so each is fetched again.
            usual = changing = rows_in + matrix + rows_out / k_tiles
        else:
            usual, changing = rows_in + rows_out, rows_in + rows_out + matrix
        changes = min(call.groups, call.visits)
        steps = changes * max(compute + edges, changing) + (call.visits - changes) * max(compute, usual)
        return call.tiles * (steps + call.visits * self._overhead)

    def splash(self, call: Splash) -> float:
        """heads × (full blocks + cut blocks + rows), each block with the overhead of a grid step.

        Bytes do not bound a block: at 1024 × 1024 scores its keys and values take a fifth of its compute time.
        """
        c = self.constants
        steps = call.full + call.partial + call.skipped
        if self.code is not None:
            around, full, cut, row = self.code.step, min(self.code.blocks), max(self.code.blocks), self.code.edges
        else:
            full = self._block_cycles(call)
            around, cut, row = 0.0, full * c["splash_partial_block"], c["splash_row"]
        cycles = call.full * full + call.partial * cut + steps * around + call.rows * row
        return call.heads * (cycles / c["clock"] + steps * self._overhead)

    def known(self, call: GroupedMatmul | Splash) -> bool:
        """Whether the cycles of this shape are in the table."""
        if isinstance(call, GroupedMatmul):
            return _visit_key(call) in self.visit_cycles
        return self._known_block(call) is not None

    @property
    def _overhead(self) -> float:
        """Seconds of a grid step besides its cycles, which hold the code around the blocks only if it was read."""
        return self.constants["step_wait" if self.code else "step_overhead"]

    def _visit_cycles(self, call: GroupedMatmul) -> float:
        """Known cycles, though not fewer than the matrix units need: code can be shorter than what it starts takes."""
        if self.code is not None:
            return call.tiles * _mean_step(self.code, 1 if call.kernel == "tgmm" else math.ceil(call.k / call.tk))
        work = call.tiles * 2 * call.tm * _padded(call.tk) * _padded(call.tn) / self.constants["mxu"]
        known = self.visit_cycles.get(_visit_key(call))
        return max(known, work) if known is not None else work / self.constants["gmm_mxu_share"]

    def _block_cycles(self, call: Splash) -> float:
        known = self._known_block(call)
        if known is not None:
            return known
        return call.block_q * call.block_kv * self.constants[f"splash_{call.direction}_cycles"]

    def _known_block(self, call: Splash) -> float | None:
        """Of the same layout, else of the other one: where both are known they differ by less than 7 %."""
        keys = [_block_key(call, layout) for layout in (call.layout, *_LAYOUTS)]
        return next((self.block_cycles[key] for key in keys if key in self.block_cycles), None)


def _mean_step(code: KernelCycles, k_tiles: int) -> float:
    """Cycles of a grid step of a grouped matmul, the mean over its k tiles; a tgmm, which has none, has no edges."""
    last, *others = code.blocks
    block = (last + (k_tiles - 1) * max(others)) / k_tiles if others else last
    return code.step + block + (code.edges / k_tiles if k_tiles > 1 else 0.0)


def causal_blocks(length: int, block_q: int, block_kv: int) -> tuple[int, int]:
    """Blocks of a causal mask over ``length`` tokens: (whole, cut by the diagonal)."""
    whole = cut = 0
    for first in range(0, length, block_q):
        last = first + block_q - 1
        whole += (first + 1) // block_kv  # key blocks that end at or before the first query
        cut += last // block_kv + 1 - (first + 1) // block_kv
    return whole, cut


def _padded(size: int) -> int:
    """A tile length as the matrix unit sees it: whole registers of 128 lanes."""
    return -(-size // _LANES) * _LANES


def _visit_key(call: GroupedMatmul) -> VisitKey:
    return call.kernel, call.tm, call.tk, call.tn, call.k, call.n


def _block_key(call: Splash, layout: int) -> BlockKey:
    return call.direction, call.block_q, call.block_kv, call.block_kv_compute, call.head_dim, layout
