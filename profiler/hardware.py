"""Chips and their peaks: the denominators of MFU, each with the source it came from.

All peaks are dense bf16 (never the sparse figure). MFU divides by the peak **per JAX device**, which is half a chip on
TPU v7x. A device that is not certainly one of these chips has no peak: the caller says "n/a" and offers
``--peak-tflops``; nothing here guesses.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

PEAK_DTYPE = "bf16"
GIB = 1 << 30

_TPU_DOCS = "https://docs.cloud.google.com/tpu/docs/"
_SCALING_BOOK = "https://github.com/jax-ml/scaling-book/blob/main/tpus.md"
_JAX_V7X = "https://github.com/jax-ml/jax/pull/39340"
_TORCHTITAN = "https://github.com/pytorch/torchtitan/blob/main/torchtitan/tools/utils.py"
_MLPERF = "MLPerf system description files"


@dataclass(frozen=True, slots=True)
class Chip:
    """One product.

    Attributes:
        key: stable identifier, for example "tpu-v7x".
        name: the name that tables print.
        vendor: "Google", "NVIDIA" or "AMD".
        chip_tflops: dense bf16 TFLOP/s of the whole chip.
        chip_hbm_gib: nominal HBM of the whole chip; the trace's or the compiler's own limit is better where known.
        chip_hbm_gb_per_s: HBM bandwidth of the whole chip, in GB (1e9) per second.
        chip_interconnect_gb_per_s: interconnect bandwidth of the whole chip, counted as ``interconnect`` says.
        interconnect: how that figure counts ("both ways", "one way, 6 links × 45").
        sources: where the figures come from.
        devices_per_chip: JAX devices on one chip; a megacore pair is one device.
        note: what a reader of the figures should know, if anything.
        usable_hbm_gib: HBM of one JAX device that the compiler can use, where known; the rest is the system's.
    """

    key: str
    name: str
    vendor: str
    chip_tflops: float
    chip_hbm_gib: float
    chip_hbm_gb_per_s: float
    chip_interconnect_gb_per_s: float
    interconnect: str
    sources: tuple[str, ...]
    devices_per_chip: int = 1
    note: str | None = None
    usable_hbm_gib: float | None = None

    @property
    def peak_tflops(self) -> float:
        """Dense bf16 TFLOP/s per JAX device."""
        return self.chip_tflops / self.devices_per_chip

    @property
    def hbm_bytes(self) -> int:
        """Nominal HBM bytes per JAX device."""
        return int(self.chip_hbm_gib * GIB) // self.devices_per_chip

    @property
    def usable_hbm_bytes(self) -> int | None:
        """HBM bytes per JAX device that a program can use; None where only the nominal size is known."""
        return int(self.usable_hbm_gib * GIB) if self.usable_hbm_gib is not None else None

    @property
    def hbm_bytes_per_s(self) -> float:
        """HBM bytes per second per JAX device."""
        return self.chip_hbm_gb_per_s * 1e9 / self.devices_per_chip


_UNCONFIRMED_LINKS = "interconnect not confirmed against the vendor's pages"
_GPU_SOURCES = (_TORCHTITAN, _MLPERF)

CHIPS: tuple[Chip, ...] = (
    Chip(
        "tpu-v4", "TPU v4", "Google", 275.0, 32, 1228, 270, "one way, 6 links × 45",
        (_TPU_DOCS + "v4", _SCALING_BOOK), note="megacore: one JAX device per chip",
    ),
    Chip("tpu-v5e", "TPU v5e", "Google", 197.0, 16, 819, 400, "both ways", (_TPU_DOCS + "v5e", _SCALING_BOOK)),
    Chip(
        "tpu-v5p", "TPU v5p", "Google", 459.0, 95, 2765, 1200, "both ways",
        (_TPU_DOCS + "v5p-training", _SCALING_BOOK), note="megacore: one JAX device per chip",
    ),
    Chip("tpu-v6e", "TPU v6e", "Google", 918.0, 32, 1638, 800, "both ways", (_TPU_DOCS + "v6e", _SCALING_BOOK)),
    Chip(
        "tpu-v7x", "TPU v7x", "Google", 2307.0, 192, 7380, 1200, "both ways",
        (_TPU_DOCS + "tpu7x", _JAX_V7X), devices_per_chip=2,
        note="one JAX device per TensorCore; the compiler can use 94.74 GiB of each device's 96",
        usable_hbm_gib=94.74,
    ),
    Chip("a100-40gb", "A100 SXM 40 GB", "NVIDIA", 312.0, 40, 1555, 600, "both ways", _GPU_SOURCES),
    Chip(
        "a100-80gb", "A100 SXM 80 GB", "NVIDIA", 312.0, 80, 2039, 600, "both ways", _GPU_SOURCES,
        note="HBM bandwidth and interconnect not confirmed against the vendor's pages",
    ),
    Chip("h100-sxm", "H100 SXM", "NVIDIA", 989.0, 80, 3350, 900, "both ways", _GPU_SOURCES),
    Chip(
        "h100-pcie", "H100 PCIe", "NVIDIA", 756.0, 80, 2000, 600, "both ways", _GPU_SOURCES, note=_UNCONFIRMED_LINKS
    ),
    Chip("h100-nvl", "H100 NVL", "NVIDIA", 835.0, 94, 3900, 600, "both ways", _GPU_SOURCES, note=_UNCONFIRMED_LINKS),
    Chip("h200", "H200 SXM", "NVIDIA", 989.0, 141, 4800, 900, "both ways", _GPU_SOURCES),
    Chip("b200", "B200", "NVIDIA", 2250.0, 180, 8000, 1800, "both ways", _GPU_SOURCES, note=_UNCONFIRMED_LINKS),
    Chip(
        "mi300x", "MI300X", "AMD", 1307.4, 192, 5300, 896, "both ways", _GPU_SOURCES,
        note="profiles report half the true HBM bandwidth; " + _UNCONFIRMED_LINKS,
    ),
)  # fmt: skip

_BY_KEY = {chip.key: chip for chip in CHIPS}

# ``device_type_string`` of a TPU plane and ``device_kind`` of JAX, spaces dropped, lower case.
_TPU_NAMES = {
    "tpuv4": "tpu-v4",
    "tpuv5": "tpu-v5p",
    "tpuv5p": "tpu-v5p",
    "tpuv5e": "tpu-v5e",
    "tpuv5lite": "tpu-v5e",
    "tpuv6e": "tpu-v6e",
    "tpuv6lite": "tpu-v6e",
    "tpu7x": "tpu-v7x",
    "tpuv7x": "tpu-v7x",
}

# (vendor, compute capability, multiprocessors or compute units) -> (chip, maximum clock in MHz) by memory size.
# Boards that share all of these also share the peak (A100 PCIe, A800, H800), or differ in the clock (H200 NVL).
_GPU_SIGNATURES: dict[tuple[str, tuple[int, int], int], tuple[tuple[str, int], ...]] = {
    ("nvidia", (8, 0), 108): (("a100-40gb", 1410), ("a100-80gb", 1410)),
    ("nvidia", (9, 0), 114): (("h100-pcie", 1755),),
    ("nvidia", (9, 0), 132): (("h100-sxm", 1980), ("h100-nvl", 1785), ("h200", 1980)),
    ("nvidia", (10, 0), 148): (("b200", 1965),),
    ("amd", (9, 4), 304): (("mi300x", 2100),),
}

# A driver reports a little less than the nominal memory, never more. Narrow enough to tell H100 NVL (94) from
# GH200 (96) and B200 (180) from GB200 (186).
_MEMORY_SHARE = (0.97, 1.003)
_CLOCK_TOLERANCE = 0.03


def identify_tpu(device_type: str | None) -> Chip | None:
    """The chip behind a TPU plane's ``device_type_string`` or JAX's ``device_kind``.

    Args:
        device_type: for example "TPU v6 Lite", "TPU v5 lite", "TPU v5" (v5p), "TPU7x".

    Returns:
        The chip, or None when the name is missing or not in the table.
    """
    key = _TPU_NAMES.get("".join((device_type or "").lower().split()))
    return _BY_KEY[key] if key else None


def of_plane(platform: str, stats: Mapping[str, Any]) -> tuple[Chip | None, str | None]:
    """The chip that the stats of a device plane are of, and the type to call it by; None where they do not say.

    Args:
        platform: "tpu" or "gpu".
        stats: the plane's own; untrusted.
    """
    if platform == "tpu":
        kind = stats.get("device_type_string")
        kind = kind if isinstance(kind, str) and kind else None
        return identify_tpu(kind), kind
    major, minor = stats.get("compute_cap_major"), stats.get("compute_cap_minor")
    cores, memory = stats.get("core_count"), stats.get("memory_size")
    if not (isinstance(major, int) and isinstance(minor, int) and isinstance(cores, int) and isinstance(memory, int)):
        return None, None
    vendor, clock = str(stats.get("device_vendor", "")), stats.get("clock_rate")
    clock_khz = clock if isinstance(clock, int) else None
    chip = identify_gpu(vendor, (major, minor), cores, memory, clock_rate_khz=clock_khz)
    return chip, chip.name if chip else f"{vendor or 'GPU'} {major}.{minor}, {cores} cores".strip()


def by_name(name: str | None) -> Chip | None:
    """The chip that tables print as ``name``."""
    return next((chip for chip in CHIPS if chip.name == name), None)


def identify_gpu(
    vendor: str | None,
    compute_cap: tuple[int, int] | None,
    core_count: int | None,
    memory_size: int | None,
    clock_rate_khz: float | None = None,
) -> Chip | None:
    """The chip behind a GPU plane, which carries no product name.

    Args:
        vendor: ``device_vendor`` ("Nvidia", "AMD").
        compute_cap: ``(compute_cap_major, compute_cap_minor)``; (9, 4) is AMD's gfx942.
        core_count: multiprocessors (NVIDIA) or compute units (AMD).
        memory_size: bytes of device memory.
        clock_rate_khz: ``clock_rate``, the maximum clock; where given it must fit too. It tells H200 (SXM) from
            H200 NVL, which has the same cores and memory but a lower peak.

    Returns:
        The chip, or None where the facts are missing, fit no chip of the table (consumer cards, V100, a MIG slice) or
        fit products with different peaks (gfx950 is MI350X or MI355X).
    """
    if vendor is None or compute_cap is None or core_count is None or not memory_size:
        return None
    signature = (vendor.strip().lower(), (compute_cap[0], compute_cap[1]), core_count)
    low, high = _MEMORY_SHARE
    for key, clock_mhz in _GPU_SIGNATURES.get(signature, ()):
        chip = _BY_KEY[key]
        if not low <= memory_size / (chip.chip_hbm_gib * GIB) <= high:
            continue
        if clock_rate_khz and abs(clock_rate_khz / 1e3 / clock_mhz - 1) > _CLOCK_TOLERANCE:
            continue
        return chip
    return None
