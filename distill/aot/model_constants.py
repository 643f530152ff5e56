"""Constants of the time estimates: every number that is not in the compiled program, with where it came from.

None is fitted to a measured step time, throughput or MFU. Where no independent source was found, or one is weak, the
constant carries a range, and a profile carries the step time at both ends of all ranges (its band).

The values for TPU v7x were derived from the compiler's own output for single kernels and whole steps: its kernel
bundles (``--xla_jf_dump_to``), its schedule dump and the HLO's ``estimated_cycles``. Other chips take the same shares
of their own peaks, which is less certain still.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

from profiler.hardware import Chip

End = Literal["value", "fast", "slow"]

# FLOP of one cycle of all matrix units of a JAX device: units × rows × columns × 2. TPU v7x: dots in compiled programs
# reach about 500,000 per estimated cycle. The others follow from peak and clock (jax-ml/scaling-book, tpus.md).
_MXU_FLOPS_PER_CYCLE: Mapping[str, int] = {
    "tpu-v4": 8 * 128 * 128 * 2,
    "tpu-v5e": 4 * 128 * 128 * 2,
    "tpu-v5p": 8 * 128 * 128 * 2,
    "tpu-v6e": 4 * 256 * 256 * 2,
    "tpu-v7x": 4 * 256 * 256 * 2,
}
# Links of a chip, from the topology (2D torus: 4, 3D torus: 6), and how many directions the chip table counts.
_LINKS: Mapping[str, tuple[int, int]] = {
    "tpu-v4": (6, 1),
    "tpu-v5e": (4, 2),
    "tpu-v5p": (6, 2),
    "tpu-v6e": (4, 2),
    "tpu-v7x": (6, 2),
}
_COMPILER_CYCLES_PER_US: Mapping[str, float] = {"tpu-v7x": 1900.0}


@dataclass(frozen=True, slots=True)
class Constant:
    """One number of the model.

    Attributes:
        value: what estimates use.
        fast: the end of the range that makes a step shortest; equal to ``value`` where the constant is certain.
        slow: the other end.
        unit: of all three.
        source: where the value, and where its range, came from.
    """

    value: float
    fast: float
    slow: float
    unit: str
    source: str

    def to_dict(self) -> dict[str, float | str]:
        """For run info."""
        return {"value": self.value, "fast": self.fast, "slow": self.slow, "unit": self.unit, "source": self.source}


@dataclass(frozen=True, slots=True)
class Constants:
    """All constants of one chip, and the end of their ranges that reading takes."""

    table: Mapping[str, Constant]
    end: End = "value"

    def __getitem__(self, name: str) -> float:
        constant = self.table[name]
        return {"value": constant.value, "fast": constant.fast, "slow": constant.slow}[self.end]

    def at(self, end: End) -> Constants:
        """The same constants, all read at one end of their ranges."""
        return Constants(self.table, end)


def constants_of(chip: Chip, overrides: Mapping[str, Constant] | None = None) -> Constants:
    """The constants for a chip.

    Args:
        chip: a TPU of profiler.hardware.
        overrides: constants known better, such as those measured on a recording of the same chip.
    """
    peak, hbm = chip.peak_tflops * 1e12, chip.hbm_bytes_per_s
    mxu = float(_MXU_FLOPS_PER_CYCLE[chip.key])
    clock = peak / mxu
    compiler = _COMPILER_CYCLES_PER_US.get(chip.key, clock / 1e6)
    links, directions = _LINKS[chip.key]
    # One direction of one link; both devices of a chip with two share its links.
    link = chip.chip_interconnect_gb_per_s * 1e9 / links / directions
    table = {
        "peak": _certain(peak, "FLOP/s", "profiler.hardware: dense bf16 per JAX device"),
        "hbm": _certain(hbm, "B/s", "profiler.hardware: per JAX device"),
        "mxu": _certain(mxu, "FLOP/cycle", "matrix units × 2; on TPU v7x compiled dots reach 500,000"),
        "clock": Constant(
            clock, clock, min(clock, compiler * 1e6), "cycles/s",
            "peak ÷ FLOP per cycle; slow: the clock that the compiler's own estimates assume",
        ),
        "compiler_cycles": _certain(
            compiler, "cycles/µs", "cycles_per_microsecond of the compiler's schedule dump; without one, the clock"
        ),
        "xla_hbm_share": Constant(
            0.8, 0.95, 0.7, "of HBM bandwidth", "bundle counts of 366 compiled ops; the range is a judgement"
        ),
        "xla_peak_share": Constant(
            0.93, 1.0, 0.85, "of peak", "bundle counts of 366 compiled ops; the range is a judgement"
        ),
        "vmem_ratio": _certain(
            14.0, "× HBM bandwidth", "peak_vmem_rd_bw ÷ peak_hbm_bw that a TPU v6e recording states; others taken alike"
        ),
        "kernel_hbm_share": Constant(
            0.9, 1.0, 0.8, "of HBM bandwidth", "no source: block copies are long and contiguous"
        ),
        "step_overhead": Constant(
            0.175e-6, 0.0, 0.35e-6, "s", "no source: middle of what is plausible per grid step whose code is not known"
        ),
        "step_wait": Constant(
            0.0, 0.0, 0.2e-6, "s", "no source: what a grid step waits beyond its own code; its copies are a step ahead"
        ),
        "gmm_mxu_share": Constant(
            0.86, 0.90, 0.81, "of MXU work per cycle", "bundles of 11 gmm and tgmm kernels, padded work ÷ cycles"
        ),
        "splash_forward_cycles": Constant(
            3.3e-3, 2.9e-3, 3.9e-3, "cycles per score", "bundles of 6 forward kernels, head widths 64, 128 and 256"
        ),
        "splash_backward_cycles": Constant(
            5.3e-3, 5.1e-3, 5.4e-3, "cycles per score", "bundles of 4 fused backward kernels, head widths 64 and 256"
        ),
        "splash_partial_block": Constant(
            1.45, 1.0, 1.94, "× a full block",
            "slow: bundles of gpt-oss's window blocks against its full ones; no source for a causal diagonal",
        ),
        "splash_row": Constant(
            1000.0, 0.0, 2000.0, "cycles per row of blocks", "no source: initialise and store one output block"
        ),
        "links": _certain(links, "links of a chip", "the topology: rings beyond them share one"),
        "all_gather": _between(
            link, 0.48 * link, "B/s and ring",
            "fast: a link; slow: the compiler's schedule for TPU v7x, 96 GB/s where its HLO names two rings",
        ),
        "all_reduce": _between(
            link, 0.44 * link, "B/s and ring",
            "fast: a link, as the schedule for TPU v7x has it (310 GB/s); slow: an all-reduce recorded on a TPU v6e",
        ),
        "permute": _between(link, 0.48 * link, "B/s", "one link, as in all_gather"),
        "collective_latency": Constant(2e-6, 1e-6, 5e-6, "s", "no source: start of a collective over a torus"),
        "sparsecore": Constant(
            0.176 * hbm, 0.35 * hbm, 0.088 * hbm, "B/s of output",
            "the compiler's schedule for TPU v7x: 0.65 TB/s; the range is a judgement",
        ),
        "sort_cycles": Constant(
            6.0, 2.0, 20.0, "cycles per register and stage", "no source: instructions of a compare and exchange"
        ),
        "host_link": Constant(32e9, 64e9, 16e9, "B/s", "no source: PCIe of generation 4 to 5, 16 lanes, per device"),
    }  # fmt: skip
    return Constants(table | dict(overrides or {}))


def _between(fast: float, slow: float, unit: str, source: str) -> Constant:
    """The geometric middle of two sources that disagree."""
    return Constant(math.sqrt(fast * slow), fast, slow, unit, source)


def _certain(value: float, unit: str, source: str) -> Constant:
    return Constant(value, value, value, unit, source)


VisitKey = tuple[str, int, int, int, int, int]  # kernel, m tile, k tile, n tile, k, n
BlockKey = tuple[str, int, int, int, int, int]  # direction, q, kv and kv compute block, head width, q layout

# Cycles per visit of an m tile, from the bundles of single kernels compiled for TPU v7x. The first of each group are
# tiles of 1024 over a dimension of 768, computed padded; the others span the expert.
VISIT_CYCLES: Mapping[str, Mapping[VisitKey, float]] = {
    "tpu-v7x": {
        ("gmm", 512, 1024, 1024, 2048, 1024): 4884,
        ("gmm", 512, 1024, 1024, 1024, 2048): 4862,
        ("gmm", 512, 2048, 768, 2048, 768): 3451,
        ("gmm", 512, 768, 2048, 768, 2048): 3451,
        ("gmm transposed", 512, 1024, 1024, 1024, 2048): 4970,
        ("gmm transposed", 512, 1024, 1024, 2048, 1024): 5342,
        ("gmm transposed", 512, 768, 2048, 768, 2048): 3454,
        ("gmm transposed", 512, 2048, 768, 2048, 768): 3503,
        ("tgmm", 512, 1024, 1024, 2048, 1024): 5034,
        ("tgmm", 512, 1024, 1024, 1024, 2048): 5034,
        ("tgmm", 512, 2048, 768, 2048, 768): 3745,
        ("tgmm", 512, 768, 2048, 768, 2048): 3540,
    }
}

# Cycles of one full block, from the bundles of single kernels compiled for TPU v7x; layout 1 is HEAD_DIM_MINOR, 2
# SEQ_MINOR.
BLOCK_CYCLES: Mapping[str, Mapping[BlockKey, float]] = {
    "tpu-v7x": {
        ("forward", 1024, 1024, 512, 256, 1): 3794,
        ("forward", 1024, 1024, 512, 256, 2): 4048,
        ("forward", 1024, 1024, 512, 128, 1): 3061,
        ("forward", 1024, 1024, 512, 128, 2): 3104,
        ("forward", 2048, 2048, 2048, 64, 1): 13497,
        ("forward", 2048, 2048, 1024, 64, 1): 12409,
        ("backward", 2048, 2048, 1024, 256, 1): 21979,
        ("backward", 2048, 2048, 1024, 256, 2): 22036,
        ("backward", 2048, 2048, 2048, 64, 1): 22378,
        ("backward", 2048, 2048, 1024, 64, 1): 21579,
    }
}
