"""Grouped matmul: rows sorted by expert, each times its expert's matrix.

On TPU megablox' Pallas kernels (gmm, and tgmm for the weights' gradient), whose three passes each have tiles of their
own; elsewhere jax.lax.ragged_dot, which XLA lowers itself and which has no tiles.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from importlib import import_module
from typing import Literal, NamedTuple

import jax
import jax.numpy as jnp

from distill.config import Config

Side = Literal["wi", "wo"]  # the experts' matmuls into the hidden width (E → F) and out of it (F → E)
# (rows [m, k], matrices [X, k, n], group sizes int32 [X], side) → [m, n]; group sizes sum to m.
GroupedMatmul = Callable[[jax.Array, jax.Array, jax.Array, Side], jax.Array]


class Tiles(NamedTuple):
    """Tile lengths of one pass, in elements, by what the dimension is in the model."""

    batch_seq: int  # rows
    embed_dim: int  # E
    mlp_dim: int  # F


class SideTiles(NamedTuple):
    """Tiles of the three passes of one side, and which of E and F the forward pass contracts."""

    fwd: Tiles
    dlhs: Tiles
    drhs: Tiles
    contracts_embed: bool  # True for wi

    def of(self, tiles: Tiles, m: int) -> tuple[int, int, int]:
        """The tiles along rows m and the forward pass's k and n.

        One longer than E or F stays so, and the kernel computes it padded, as in MaxText: a tile of 1024 over 768 costs
        up to a third more. A tile along the rows is no longer than they are.
        """
        across = (tiles.embed_dim, tiles.mlp_dim) if self.contracts_embed else (tiles.mlp_dim, tiles.embed_dim)
        return min(tiles.batch_seq, m), *across


def side_tiles(config: Config, side: Side) -> SideTiles:
    """The nine tile keys of one side: {wi,wo}_tile_{fwd,dlhs,drhs}_{batch_seq,embed_dim,mlp_dim}."""
    fwd, dlhs, drhs = (
        Tiles(*(getattr(config, f"{side}_tile_{direction}_{dim}") for dim in Tiles._fields))
        for direction in ("fwd", "dlhs", "drhs")
    )
    return SideTiles(fwd, dlhs, drhs, contracts_embed=side == "wi")


def ragged_dot(lhs: jax.Array, rhs: jax.Array, group_sizes: jax.Array, side: Side) -> jax.Array:
    """XLA's grouped matmul, [m, k] × [X, k, n] → [m, n] in the rows' dtype."""
    return jax.lax.ragged_dot(lhs, rhs, group_sizes, preferred_element_type=lhs.dtype)


def megablox(config: Config, *, interpret: bool) -> GroupedMatmul:
    """Megablox with the 18 tiles of a config; products accumulate in float32 and come back in the operands' dtype.

    Args:
        config: its wi_tile_* and wo_tile_* keys.
        interpret: run the kernels' bodies as ordinary JAX ops, for tests on a CPU.
    """
    tiles = {"wi": side_tiles(config, "wi"), "wo": side_tiles(config, "wo")}

    def grouped_matmul(lhs: jax.Array, rhs: jax.Array, group_sizes: jax.Array, side: Side) -> jax.Array:
        return _megablox(lhs, rhs, group_sizes, tiles[side], interpret)

    return grouped_matmul


@partial(jax.custom_vjp, nondiff_argnums=(3, 4))
def _megablox(lhs: jax.Array, rhs: jax.Array, group_sizes: jax.Array, side: SideTiles, interpret: bool) -> jax.Array:
    kernels = import_module("jax.experimental.pallas.ops.tpu.megablox.gmm")
    m = lhs.shape[0]
    tile = side.of(side.fwd, m)
    return kernels.gmm(_whole_tiles(lhs, tile[0]), rhs, group_sizes, lhs.dtype, tile, interpret=interpret)[:m]


def _forward(
    lhs: jax.Array, rhs: jax.Array, group_sizes: jax.Array, side: SideTiles, interpret: bool
) -> tuple[jax.Array, tuple[jax.Array, jax.Array, jax.Array]]:
    return _megablox(lhs, rhs, group_sizes, side, interpret), (lhs, rhs, group_sizes)


def _backward(
    side: SideTiles, interpret: bool, residuals: tuple[jax.Array, jax.Array, jax.Array], d_out: jax.Array
) -> tuple[jax.Array, jax.Array, None]:
    lhs, rhs, group_sizes = residuals
    kernels = import_module("jax.experimental.pallas.ops.tpu.megablox.gmm")
    m = lhs.shape[0]
    # d_lhs [m, k] = d_out [m, n] × rhsᵀ [X, n, k]: contracts n.
    tm, tk, tn = side.of(side.dlhs, m)
    padded = _whole_tiles(d_out, tm)
    d_lhs = kernels.gmm(padded, rhs, group_sizes, lhs.dtype, (tm, tn, tk), transpose_rhs=True, interpret=interpret)[:m]
    # d_rhs [X, k, n] = lhsᵀ [k, m] × d_out [m, n] by group: contracts the rows.
    tile = side.of(side.drhs, m)
    padded, d_padded = _whole_tiles(lhs, tile[0]), _whole_tiles(d_out, tile[0])
    d_rhs = kernels.tgmm(padded.swapaxes(0, 1), d_padded, group_sizes, rhs.dtype, tile, interpret=interpret)
    return d_lhs, d_rhs, None


_megablox.defvjp(_forward, _backward)


def _whole_tiles(rows: jax.Array, tile: int) -> jax.Array:
    """rows [m, …] with zeros up to a multiple of the tile, which megablox asks for; they belong to no group."""
    return jnp.pad(rows, ((0, -rows.shape[0] % tile), (0, 0)))
