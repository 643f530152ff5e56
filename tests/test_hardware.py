"""Peaks are per JAX device, and an unknown device has none."""

from __future__ import annotations

import pytest

from profiler.hardware import CHIPS, GIB, identify_gpu, identify_tpu


@pytest.mark.parametrize(
    ("device_type", "key", "peak"),
    [
        ("TPU v4", "tpu-v4", 275.0),
        ("TPU v5 lite", "tpu-v5e", 197.0),
        ("TPU v5e", "tpu-v5e", 197.0),
        ("TPU v5", "tpu-v5p", 459.0),
        ("TPU v5p", "tpu-v5p", 459.0),
        ("TPU v6 Lite", "tpu-v6e", 918.0),
        ("TPU v6 lite", "tpu-v6e", 918.0),
        ("TPU v6e", "tpu-v6e", 918.0),
        ("TPU7x", "tpu-v7x", 1153.5),
        ("TPU v7x", "tpu-v7x", 1153.5),
    ],
)
def test_a_tpu_plane_names_its_chip(device_type: str, key: str, peak: float) -> None:
    chip = identify_tpu(device_type)
    assert chip is not None
    assert (chip.key, chip.peak_tflops) == (key, peak)


@pytest.mark.parametrize("device_type", [None, "", "TPU", "TPU v2", "TPU v3", "TPU v4 lite", "TPU v9", "NVIDIA H100"])
def test_an_unknown_tpu_name_gives_no_chip(device_type: str | None) -> None:
    assert identify_tpu(device_type) is None


@pytest.mark.parametrize(
    ("facts", "key"),
    [
        (("AMD", (9, 4), 304, 206141652992), "mi300x"),
        (("Nvidia", (8, 0), 108, 42_298_834_944), "a100-40gb"),
        (("Nvidia", (8, 0), 108, 84_987_740_160), "a100-80gb"),
        (("Nvidia", (9, 0), 132, 84_929_347_584), "h100-sxm"),
        (("NVIDIA", (9, 0), 114, 84_929_347_584), "h100-pcie"),
        (("Nvidia", (9, 0), 132, int(93.1 * GIB)), "h100-nvl"),
        (("Nvidia", (9, 0), 132, int(139.8 * GIB)), "h200"),
        (("Nvidia", (10, 0), 148, int(178.4 * GIB)), "b200"),
    ],
)
def test_a_gpu_plane_is_identified_by_its_facts(facts: tuple[str, tuple[int, int], int, int], key: str) -> None:
    chip = identify_gpu(*facts)
    assert chip is not None
    assert chip.key == key


@pytest.mark.parametrize(
    "facts",
    [
        pytest.param(("AMD", (9, 5), 256, 309220868096), id="gfx950 is MI350X or MI355X"),
        pytest.param(("AMD", (9, 4), 304, 256 * GIB), id="MI325X is not in the table"),
        pytest.param(("Nvidia", (7, 0), 80, 16945512448), id="V100 is not in the table"),
        pytest.param((None, (9, 0), 132, 80 * GIB), id="old traces name no vendor"),
        pytest.param(("Nvidia", (8, 9), 128, 24 * GIB), id="RTX 4090"),
        pytest.param(("Nvidia", (9, 0), 132, int(95.0 * GIB)), id="GH200"),
        pytest.param(("Nvidia", (10, 0), 148, int(185.0 * GIB)), id="GB200"),
        pytest.param(("Nvidia", (8, 0), 42, 20 * GIB), id="a MIG slice"),
        pytest.param(("Nvidia", (9, 0), 132, 0), id="no memory size"),
        pytest.param(("Nvidia", None, 132, 80 * GIB), id="no compute capability"),
    ],
)
def test_an_ambiguous_or_unknown_gpu_gives_no_chip(facts: tuple[str, tuple[int, int], int, int]) -> None:
    assert identify_gpu(*facts) is None


def test_the_clock_tells_h200_from_h200_nvl() -> None:
    facts = ("Nvidia", (9, 0), 132, int(139.8 * GIB))
    sxm = identify_gpu(*facts, clock_rate_khz=1_980_000)
    assert sxm is not None
    assert sxm.key == "h200"
    assert identify_gpu(*facts, clock_rate_khz=1_785_000) is None


def test_v7x_counts_two_devices_a_chip() -> None:
    chip = identify_tpu("TPU7x")
    assert chip is not None
    assert chip.devices_per_chip == 2
    assert chip.hbm_bytes == 96 * GIB
    assert chip.hbm_bytes_per_s == 3690e9


def test_every_chip_has_a_source_and_a_key_of_its_own() -> None:
    assert all(chip.sources for chip in CHIPS)
    assert len({chip.key for chip in CHIPS}) == len(CHIPS)
