"""Grouped matmuls against a loop over the groups: forward, and the gradients of the rows and of the matrices."""

from __future__ import annotations

from itertools import pairwise

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from distill.config import Config
from distill.kernels.grouped_matmul import GroupedMatmul, Side, megablox, ragged_dot, side_tiles

E, F = 96, 48
DIMS = ("batch_seq", "embed_dim", "mlp_dim")
SIZES = {
    "uneven groups": [5, 0, 40, 19],
    "an empty end": [30, 34, 0, 0],
    "rows that are no multiple of a tile": [10, 20, 3, 4],
}


def by_loop(rows: jax.Array, matrices: jax.Array, sizes: list[int]) -> jax.Array:
    starts = np.cumsum([0, *sizes])
    parts = [rows[a:b] @ matrices[i] for i, (a, b) in enumerate(pairwise(starts))]
    return jnp.concatenate(parts)


def small_tiles() -> GroupedMatmul:
    """Tiles that differ between passes, cut rows within a group, and do not divide E or F or exceed them."""
    tiles = {"fwd": (16, 32, 64), "dlhs": (8, 128, 32), "drhs": (32, 64, 56)}
    keys = {
        f"{side}_tile_{direction}_{dim}": length
        for side in ("wi", "wo")
        for direction, lengths in tiles.items()
        for dim, length in zip(DIMS, lengths, strict=True)
    }
    return megablox(Config(**keys), interpret=True)


@pytest.mark.parametrize("sizes", SIZES.values(), ids=SIZES.keys())
@pytest.mark.parametrize("side", ["wi", "wo"])
@pytest.mark.parametrize("kernel", ["megablox", "ragged_dot"])
def test_a_grouped_matmul_is_a_matmul_per_group(kernel: str, side: Side, sizes: list[int]) -> None:
    grouped_matmul = small_tiles() if kernel == "megablox" else ragged_dot
    k, n = (E, F) if side == "wi" else (F, E)
    keys = jax.random.split(jax.random.key(0), 3)
    rows = jax.random.normal(keys[0], (sum(sizes), k))
    matrices = jax.random.normal(keys[1], (len(sizes), k, n))
    d_out = jax.random.normal(keys[2], (sum(sizes), n))

    @jax.jit
    def run(rows: jax.Array, matrices: jax.Array) -> tuple[jax.Array, ...]:
        out, pull_back = jax.vjp(lambda a, b: grouped_matmul(a, b, jnp.array(sizes, jnp.int32), side), rows, matrices)
        return out, *pull_back(d_out)

    out, pull_back = jax.vjp(lambda a, b: by_loop(a, b, sizes), rows, matrices)
    for name, found, expected in zip(
        ("out", "d_rows", "d_matrices"), run(rows, matrices), (out, *pull_back(d_out)), strict=True
    ):
        np.testing.assert_allclose(found, expected, rtol=1e-5, atol=2e-5, err_msg=name)


def test_each_of_the_18_tiles_reaches_its_place() -> None:
    names = [f"{s}_tile_{d}_{x}" for s in ("wi", "wo") for d in ("fwd", "dlhs", "drhs") for x in DIMS]
    config = Config(**{name: 8 * i for i, name in enumerate(names, 1)})
    wi, wo = side_tiles(config, "wi"), side_tiles(config, "wo")
    # In the order rows, k, n of the forward pass: E → F for wi, F → E for wo.
    assert [wi.of(tiles, 999) for tiles in (wi.fwd, wi.dlhs, wi.drhs)] == [
        (8, 16, 24),
        (32, 40, 48),
        (56, 64, 72),
    ]
    assert [wo.of(tiles, 999) for tiles in (wo.fwd, wo.dlhs, wo.drhs)] == [
        (80, 96, 88),
        (104, 120, 112),
        (128, 144, 136),
    ]


def test_a_tile_is_no_longer_than_the_rows_and_may_be_longer_than_a_matrix() -> None:
    wi = side_tiles(Config(), "wi")
    assert wi.of(wi.fwd, m=100) == (100, 1024, 1024)
