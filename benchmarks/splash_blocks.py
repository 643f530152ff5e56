"""What splash attention takes per layer with smaller blocks, from the compiler's own code of each kernel.

    python benchmarks/splash_blocks.py                               # gpt-oss-20b-opt, blocks of 2048, 1024 and 512
    python benchmarks/splash_blocks.py qwen3-30b-opt 2048 1024 --cache DIR

Every block length of forward and backward pass is set to the same value; where the recipe computes in smaller pieces
than that, it still does. Needs libtpu, and no TPU. A kernel takes up to a minute; what was read is kept in the cache.
A layer is the mean of the model's layers: the teacher's forward pass, the student's, and its backward pass.
"""

from __future__ import annotations

import argparse
import os
import sys
from collections import Counter
from dataclasses import replace
from pathlib import Path

os.environ["JAX_PLATFORMS"] = "cpu"  # only lowered here; the TPU's compiler runs in a process of its own

import jax
import jax.numpy as jnp

from distill.aot import Cache
from distill.aot.bundles import kernel_code
from distill.aot.bundles_call import kernel_key
from distill.aot.model import KernelModel, Splash
from distill.aot.model_calls import describe
from distill.aot.model_constants import constants_of
from distill.aot.topology import find
from distill.config import Config, ModelSpec, load
from distill.kernels import select
from profiler import hlo
from profiler.hlo import HloModule

FORWARD, BACKWARD = ("sa_block_q", "sa_block_kv"), ("sa_block_q_dkv", "sa_block_kv_dkv")
COMPUTE = ("sa_block_kv_compute", "sa_block_kv_dkv_compute")


def lowered(config: Config, spec: ModelSpec, window: int, *, backward: bool) -> HloModule:
    """One attention layer on one device as a program for TPU; nothing is compiled."""
    attention = select(config, "tpu").attention
    B, T = int(config.per_device_batch_size), config.max_target_length
    q, kv = (
        jax.ShapeDtypeStruct((B, T, heads, spec.head_dim), jnp.bfloat16)
        for heads in (spec.num_query_heads, spec.num_kv_heads)
    )
    segments = jax.ShapeDtypeStruct((B, T), jnp.int32)
    sinks = jax.ShapeDtypeStruct((spec.num_query_heads,), jnp.float32) if spec.attention_sinks else None

    def layer(q: jax.Array, k: jax.Array, v: jax.Array, segments: jax.Array, sinks: jax.Array | None) -> object:
        def run(*qkv: jax.Array) -> jax.Array:
            return attention(*qkv, segments, sinks, window=window)

        if not backward:
            return run(q, k, v)
        out, gradient = jax.vjp(run, q, k, v)
        return gradient(out)

    program = jax.jit(layer).trace(q, kv, kv, segments, sinks).lower(lowering_platforms=("tpu",))
    return hlo.parse(program.compiler_ir(dialect="hlo").as_serialized_hlo_module_proto())


def seconds(
    config: Config, spec: ModelSpec, window: int, topology: str, cache: Cache, *, backward: bool
) -> Counter[str]:
    """Of each kernel of one layer: "forward" and, with ``backward``, "backward"."""
    slice_ = find(topology)
    module = lowered(config, spec, window, backward=backward)
    code = kernel_code(module, config, slice_, cache=cache)
    found: Counter[str] = Counter()
    for each in module.instructions.values():
        call = describe(each) if each.custom_call_target == "tpu_custom_call" else None
        if isinstance(call, Splash):
            cycles = code.cycles.get(kernel_key(each) or "")
            if cycles is None:
                sys.exit(f"{call}: {'; '.join(code.notes)}")
            # A program that is only lowered computes its block mask, which is known here anyway.
            steps = each.operand_protos[1].shape.dimensions[0]
            whole, cut = executed(config.max_target_length, call.block_q, call.block_kv, window)
            call = replace(call, full=whole, partial=cut, skipped=steps - whole - cut)
            print(f"    {call}\n    {cycles}", file=sys.stderr)
            found[call.direction] += KernelModel(constants_of(slice_.chip), code=cycles).splash(call)
    return found


def executed(length: int, block_q: int, block_kv: int, window: int) -> tuple[int, int]:
    """Blocks that a causal mask leaves whole, and that it or the window cuts."""
    whole = cut = 0
    for first in range(0, length, block_q):
        for key in range(0, length, block_kv):
            nearest, farthest = first - (key + block_kv - 1), first + block_q - 1 - key
            if nearest >= 0 and farthest < (window or length):
                whole += 1
            elif farthest >= 0 and nearest < (window or length):
                cut += 1
    return whole, cut


def main() -> None:
    """Prints a table, one row per block length."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("recipe", nargs="?", default="gpt-oss-20b-opt")
    parser.add_argument("blocks", nargs="*", type=int, default=[2048, 1024, 512])
    parser.add_argument("--cache", type=Path)
    args = parser.parse_args()
    base = load(args.recipe).config
    print(f"{'block':>6}  {'teacher':>9}  {'forward':>9}  {'backward':>9}  {'sum':>9}   ms per layer, {args.recipe}")
    for block in args.blocks:
        lengths = {name: min(block, getattr(base, name)) for name in COMPUTE}
        lengths |= dict.fromkeys((*FORWARD, *BACKWARD), block)
        config = load(args.recipe, [f"{name}={value}" for name, value in lengths.items()]).config
        windows = (base.student.sliding_window, 0) if base.student.sliding_window else (0,)
        total: Counter[str] = Counter()
        for window in windows:
            for spec, backward in ((config.teacher, False), (config.student, True)):
                for direction, found in seconds(
                    config, spec, window, config.hardware, Cache(args.cache), backward=backward
                ).items():
                    total[direction if backward else "teacher"] += 1e3 * found / len(windows)
        cells = [total[name] for name in ("teacher", "forward", "backward")]
        print(f"{block:>6}  " + "  ".join(f"{cell:>9.3f}" for cell in (*cells, sum(cells))), flush=True)


if __name__ == "__main__":
    main()
