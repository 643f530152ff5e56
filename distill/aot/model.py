"""A tile-level model of the Pallas kernels that a step spends its time in: grouped matmul and splash attention.

A kernel's cost estimate knows nothing of tiles: it cannot tell a padded tile, a weight block that is fetched again, or
a masked block. This model counts what the compiled kernel really executes (grid steps, blocks, fetched bytes) and
charges each step max(compute, memory) plus an overhead. The counts are facts; the cycles per step come from the
compiler's own bundles where the shape is known, and else from a share of the matrix units' work
(``distill.aot.model_constants``).
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


@dataclass(frozen=True)
class KernelModel:
    """Seconds per call; ``visit_cycles`` and ``block_cycles`` are the shapes whose cycles are known."""

    constants: Constants
    visit_cycles: Mapping[VisitKey, float] = field(default_factory=dict)
    block_cycles: Mapping[BlockKey, float] = field(default_factory=dict)

    def grouped_matmul(self, call: GroupedMatmul) -> float:
        """Σ over visits × tiles of max(tile cycles / clock, fetched bytes / bandwidth) + step overhead."""
        c = self.constants
        compute = self._visit_cycles(call) / call.tiles / c["clock"]
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
        steps = changes * max(compute, changing) + (call.visits - changes) * max(compute, usual)
        return call.tiles * (steps + call.visits * c["step_overhead"])

    def splash(self, call: Splash) -> float:
        """heads × (full blocks + cut blocks + rows), each block with the overhead of a grid step.

        Bytes do not bound a block: at 1024 × 1024 scores its keys and values take a fifth of its compute time.
        """
        c = self.constants
        block = self._block_cycles(call) / c["clock"]
        steps = call.full * block + call.partial * block * c["splash_partial_block"]
        overhead = (call.full + call.partial + call.skipped) * c["step_overhead"]
        return call.heads * (steps + overhead + call.rows * c["splash_row"] / c["clock"])

    def known(self, call: GroupedMatmul | Splash) -> bool:
        """Whether the cycles of this shape come from its own bundles."""
        if isinstance(call, GroupedMatmul):
            return _visit_key(call) in self.visit_cycles
        return self._known_block(call) is not None

    def _visit_cycles(self, call: GroupedMatmul) -> float:
        """Known cycles, though not fewer than the matrix units need: code can be shorter than what it starts takes."""
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
