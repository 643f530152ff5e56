"""The kernel model against sums done by hand."""

from __future__ import annotations

import pytest

from distill.aot.model import GroupedMatmul, KernelCycles, KernelModel, Splash, causal_blocks
from distill.aot.model_constants import BLOCK_CYCLES, VISIT_CYCLES, Constant, Constants, constants_of
from profiler.hardware import CHIPS

TPU_V7X = next(chip for chip in CHIPS if chip.key == "tpu-v7x")
TPUS = [chip for chip in CHIPS if chip.vendor == "Google"]


def plain(**values: float) -> Constants:
    """Constants that make sums easy: 1 cycle is 1 s, 1 byte takes 1 s, nothing else costs anything."""
    numbers = {"clock": 1.0, "hbm": 1.0, "kernel_hbm_share": 1.0, "mxu": 1.0, "gmm_mxu_share": 1.0}
    numbers |= {"step_overhead": 0.0, "step_wait": 0.0, "splash_partial_block": 1.0, "splash_row": 0.0}
    numbers |= {"splash_forward_cycles": 1.0, "splash_backward_cycles": 2.0} | values
    return Constants({name: Constant(value, value, value, "", "test") for name, value in numbers.items()})


def gmm(kernel: str = "gmm", **changes: int) -> GroupedMatmul:
    sizes = {"m": 1024, "k": 256, "n": 128, "tm": 512, "tk": 256, "tn": 128, "groups": 4, "item_bytes": 2} | changes
    return GroupedMatmul(kernel, **sizes)


@pytest.mark.parametrize(("sequences", "visits"), [(4, 639), (6, 895), (8, 1151)])
def test_every_boundary_between_experts_adds_a_tile_of_rows(sequences: int, visits: int) -> None:
    """128 experts, 8192 tokens that each visit 8 of them, as in qwen3-30b."""
    assert gmm(m=sequences * 8192 * 8, groups=128).visits == visits


def test_a_compute_bound_gmm_takes_its_visits_times_its_tiles_times_the_cycles_of_a_tile() -> None:
    call = gmm(k=512, n=256)  # two k tiles, two n tiles
    model = KernelModel(plain(hbm=1e30))
    # 2 tiles of rows and 3 boundaries; a tile is 2 · 512 · 256 · 128 FLOP at 1 FLOP a cycle
    assert model.grouped_matmul(call) == pytest.approx(5 * 4 * 2 * 512 * 256 * 128)


def test_a_matrix_that_is_one_k_tile_is_fetched_once_per_expert() -> None:
    model = KernelModel(plain(mxu=1e30))
    rows_in, rows_out, matrix = 512 * 256 * 2, 512 * 128 * 2, 256 * 128 * 2
    assert model.grouped_matmul(gmm()) == pytest.approx(5 * (rows_in + rows_out) + 4 * matrix)


def test_k_tiles_take_turns_so_each_step_fetches_its_part_of_the_matrix() -> None:
    model = KernelModel(plain(mxu=1e30))
    rows_in, rows_out, matrix = 512 * 128 * 2, 512 * 128 * 2, 128 * 128 * 2
    assert model.grouped_matmul(gmm(tk=128)) == pytest.approx(5 * 2 * (rows_in + matrix + rows_out / 2))


def test_tgmm_stores_a_result_per_expert() -> None:
    model = KernelModel(plain(mxu=1e30))
    rows_in, rows_out, matrix = 512 * 256 * 2, 512 * 128 * 2, 256 * 128 * 2
    assert model.grouped_matmul(gmm("tgmm")) == pytest.approx(5 * (rows_in + rows_out) + 4 * matrix)


def test_a_tile_narrower_than_a_register_is_computed_padded() -> None:
    model = KernelModel(plain(hbm=1e30))
    assert model.grouped_matmul(gmm(n=64, tn=64)) == pytest.approx(model.grouped_matmul(gmm()))


def test_every_grid_step_costs_its_overhead() -> None:
    model = KernelModel(plain(hbm=1e30, mxu=1e30, step_overhead=3.0))
    assert model.grouped_matmul(gmm(k=512)) == pytest.approx(5 * 2 * 3.0)


def test_cycles_of_a_known_shape_come_before_the_share_of_the_matrix_unit() -> None:
    key = ("gmm", 512, 256, 128, 256, 128)
    model = KernelModel(plain(hbm=1e30, mxu=1e30), {key: 7.0})
    assert model.known(gmm())
    assert not model.known(gmm("tgmm"))
    assert model.grouped_matmul(gmm()) == pytest.approx(5 * 7.0)


def test_known_cycles_below_what_the_matrix_unit_needs_are_raised_to_that() -> None:
    model = KernelModel(plain(hbm=1e30), {("gmm", 512, 256, 128, 256, 128): 7.0})
    assert model.grouped_matmul(gmm()) == pytest.approx(5 * 2 * 512 * 256 * 128)


def test_the_kernel_s_own_code_comes_before_the_table_and_counts_its_loop() -> None:
    key = ("gmm", 512, 256, 128, 256, 128)
    model = KernelModel(plain(hbm=1e30, step_overhead=9.0), {key: 7.0}, code=KernelCycles(2.0, (40.0,), 5.0))
    assert model.grouped_matmul(gmm()) == pytest.approx(5 * (40 + 2))


def test_of_several_k_tiles_the_last_one_has_code_of_its_own_and_the_first_zeroes() -> None:
    model = KernelModel(plain(hbm=1e30), code=KernelCycles(2.0, (40.0, 30.0), 5.0))
    # three k tiles: each with the loop, one of them the last
    assert model.grouped_matmul(gmm(k=768)) == pytest.approx(5 * (3 * 2 + 40 + 2 * 30 + 5))


def test_a_tgmm_zeroes_and_stores_once_per_group() -> None:
    model = KernelModel(plain(hbm=1e30), code=KernelCycles(2.0, (40.0,), 5.0))
    assert model.grouped_matmul(gmm("tgmm")) == pytest.approx(5 * 42 + 4 * 5)


def test_a_grid_step_whose_code_is_known_waits_for_what_that_does_not_show() -> None:
    model = KernelModel(plain(hbm=1e30, step_wait=3.0), code=KernelCycles(0.0, (40.0,), 0.0))
    assert model.grouped_matmul(gmm()) == pytest.approx(5 * 43)


def test_a_tile_of_1024_over_768_costs_more_than_one_that_spans_it() -> None:
    """Padding alone is 1.33 times the work; the bundles of both shapes agree with that order."""
    model = KernelModel(constants_of(TPU_V7X), VISIT_CYCLES["tpu-v7x"])
    old = gmm(m=262144, k=2048, n=1024, tk=1024, tn=1024, groups=128)
    new = gmm(m=262144, k=2048, n=768, tk=2048, tn=768, groups=128)
    assert model.known(old)
    assert model.known(new)
    assert model.grouped_matmul(old) / model.grouped_matmul(new) > 1.3


@pytest.mark.parametrize(
    ("length", "block_q", "block_kv", "whole", "cut"),
    [
        (8192, 1024, 1024, 28, 8),
        (8192, 2048, 2048, 6, 4),
        (32768, 2048, 2048, 120, 16),
        (8, 2, 4, 2, 4),
        (8, 4, 2, 2, 4),
    ],
)
def test_blocks_of_a_causal_mask(length: int, block_q: int, block_kv: int, whole: int, cut: int) -> None:
    assert causal_blocks(length, block_q, block_kv) == (whole, cut)


@pytest.mark.parametrize(("length", "block_q", "block_kv"), [(24, 4, 6), (24, 6, 4), (16, 8, 2), (16, 2, 8)])
def test_blocks_of_a_causal_mask_are_those_that_a_mask_shows(length: int, block_q: int, block_kv: int) -> None:
    blocks = [
        [query >= key for query in range(i, i + block_q) for key in range(j, j + block_kv)]
        for i in range(0, length, block_q)
        for j in range(0, length, block_kv)
    ]
    whole = sum(all(block) for block in blocks)
    assert causal_blocks(length, block_q, block_kv) == (whole, sum(any(block) for block in blocks) - whole)


def splash(**changes: object) -> Splash:
    fields = {"direction": "forward", "heads": 3, "block_q": 4, "block_kv": 8, "block_kv_compute": 8, "head_dim": 64}
    fields |= {"layout": 1, "full": 5, "partial": 2, "rows": 2} | changes
    return Splash(**fields)  # type: ignore[arg-type]


def test_splash_takes_heads_times_blocks_rows_and_overheads() -> None:
    model = KernelModel(plain(splash_partial_block=1.5, splash_row=10.0, step_overhead=1.0))
    # 32 scores a block at 1 cycle each
    assert model.splash(splash(skipped=4)) == pytest.approx(3 * (5 * 32 + 2 * 1.5 * 32 + 2 * 10 + (5 + 2 + 4) * 1.0))


def test_splash_runs_the_longer_code_for_blocks_that_the_mask_cuts_and_the_loop_for_empty_ones() -> None:
    for blocks in ((30.0, 50.0), (50.0, 30.0)):
        model = KernelModel(plain(), code=KernelCycles(4.0, blocks, 6.0))
        assert model.splash(splash(skipped=3)) == pytest.approx(3 * (5 * 30 + 2 * 50 + (5 + 2 + 3) * 4 + 2 * 6))


def test_the_backward_pass_has_a_rate_of_its_own() -> None:
    model = KernelModel(plain())
    assert model.splash(splash(direction="backward")) == pytest.approx(2 * model.splash(splash()))


def test_a_block_known_in_the_other_layout_is_taken_from_there() -> None:
    model = KernelModel(plain(), block_cycles={("forward", 4, 8, 8, 64, 1): 9.0})
    assert model.known(splash(layout=2))
    assert model.splash(splash(layout=2)) == pytest.approx(3 * 7 * 9.0)


def test_a_teacher_of_narrow_heads_costs_more_than_a_student_of_wide_ones() -> None:
    """32 heads of 128 against 16 of 256: equal cost estimates, but the matrix unit is half filled."""
    model = KernelModel(constants_of(TPU_V7X), block_cycles=BLOCK_CYCLES["tpu-v7x"])
    shape = {"block_q": 1024, "block_kv": 1024, "block_kv_compute": 512, "full": 28, "partial": 8, "rows": 8}
    teacher = model.splash(splash(heads=32, head_dim=128, **shape))
    student = model.splash(splash(heads=16, head_dim=256, **shape))
    assert 1.5 < teacher / student < 1.75


@pytest.mark.parametrize("chip", TPUS, ids=lambda chip: chip.key)
def test_every_constant_has_a_source_and_lies_within_its_range(chip: object) -> None:
    for name, constant in constants_of(chip).table.items():  # type: ignore[arg-type]
        assert constant.source, name
        assert min(constant.fast, constant.slow) <= constant.value <= max(constant.fast, constant.slow), name


def test_the_clock_of_tpu_v7x_follows_from_its_peak() -> None:
    assert constants_of(TPU_V7X)["clock"] == pytest.approx(2.2e9, rel=1e-3)


def test_an_end_of_the_ranges_is_read_for_all_constants() -> None:
    constants = constants_of(TPU_V7X)
    assert constants.at("fast")["all_gather"] > constants["all_gather"] > constants.at("slow")["all_gather"]
    assert (
        constants.at("fast")["step_overhead"] == 0 < constants["step_overhead"] < constants.at("slow")["step_overhead"]
    )


def test_a_measured_constant_replaces_the_default() -> None:
    measured = Constant(2e11, 2e11, 2e11, "B/s", "a recording")
    assert constants_of(TPU_V7X, {"all_gather": measured})["all_gather"] == 2e11
