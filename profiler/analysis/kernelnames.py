"""Kernels by name: Pallas and library kernels inside XLA programs, and bare GPU kernels.

Names are evidence of what a kernel is for, once tile sizes and counters are taken off:
``RPA-bq_32-bkvp_32-p_128-.23`` → ``RPA``, ``quantized_matmul_kernel_512_5120_2560`` → ``quantized_matmul_kernel``.
"""

from __future__ import annotations

import re
from functools import lru_cache

from profiler.analysis.namestack import PLUMBING, Stack

# Groups of tile sizes, shapes and counters at the end of a name: "-bq_32-p_128-", "_512_5120", "_bq=128", ".23".
_VOLATILE = re.compile(r"(?:-[a-z]+[_=]?\d+|[_-][a-z]+=\d+|_\d+|\.\d+|[-_]+(?=\.|$))+$")
# Names that wrap whatever they were given.
_GENERIC = PLUMBING | {"", "custom-call", "pallas_call", "tpu_custom_call", "vmap", "call", "wrapped", "main"}
# Custom-call targets that only say which compiler took the kernel.
_CARRIERS = frozenset({"tpu_custom_call", "__gpu$xla.gpu.triton", "triton_kernel_call", "mosaic_gpu", "mosaic_gpu_v2"})

# Kernels with a family of their own; the first match counts, on a name in lower case.
_KERNELS: tuple[tuple[str, re.Pattern[str]], ...] = tuple(
    (family, re.compile(pattern))
    for family, pattern in (
        ("splash", r"splash"),
        ("tgmm", r"tgmm|transposed_ragged_dot"),
        ("gmm", r"gmm(?![a-z])|ragged_dot"),
        ("quantized matmul", r"quantized_matmul|qmatmul|quantized_gemm|scaled_(mat)?mul?|matmul\$f8|block_scaled_dot"),
        ("attention", r"fmha|flash|(^|_)mha(_|$)|attention|attn|^rpa(\b|_|m?$)|sdpa"),
        ("convolution", r"cudnn\$?_?-?conv|miopen.*conv|convolution"),
        ("dense matmul", r"cublas|onednn\$matmul|hipblas|cutlass|gemm|matmul"),
        ("norm / elementwise", r"rms_?norm|layer_?norm|^ln_|softmax"),
    )
)  # fmt: skip

# Bare GPU kernels, where no HLO op says more; on the name in lower case. Copies and collectives come first, since their
# names also hold element types that look like arithmetic.
_GPU: tuple[tuple[str, re.Pattern[str]], ...] = tuple(
    (family, re.compile(pattern))
    for family, pattern in (
        ("all-reduce", r"(nccl|rccl)\w*all_?reduce"),
        ("all-gather", r"(nccl|rccl)\w*all_?gather"),
        ("reduce-scatter", r"(nccl|rccl)\w*reduce_?scatter"),
        ("all-to-all", r"(nccl|rccl)\w*all_?to_?all"),
        ("collective (other)", r"nccl|rccl|nvshmem"),
        ("host transfer", r"memcpy(h2d|d2h|htod|dtoh)|copy(hosttodevice|devicetohost)"),
        ("copy / layout", r"memcpy|memset|copydevicetodevice|rocclr_(copy|fill)buffer|fillbuffer"),
        ("attention", r"fmha|flash_?(fwd|bwd|attn)|fused_attn|attention"),
        ("convolution", r"conv2d|conv3d|convolve|scudnn|implicit_gemm|im(3d)?2col|winograd|dgrad|wgrad|fprop|miopen"),
        ("quantized matmul", r"quantized_matmul|(gemm|cutlass|nvjet|cijk).*(e4m3|e5m2|e2m1|f8f8|[si]8[si]8|int8|fp8)"),
        ("dense matmul", r"gemm|cijk_|cutlass|cublas|nvjet|matmul"),
        ("copy / layout", r"transpose|shuffling|swapdimension|concat|tensorslicing|tensorstriding|padding"),
        ("reduction", r"reduc|(^|_)scan"),
        ("norm / elementwise", r"eigenmetakernel|elementwise|cwise|cast|philox|random|dropout"),
        ("norm / elementwise", r"norm|::bn_|bias|relu|softmax"),
    )
)  # fmt: skip


@lru_cache(maxsize=1 << 14)
def stable(name: str) -> str:
    """A name without tile sizes and counters; the name itself if nothing else would be left."""
    return _VOLATILE.sub("", name) or name


@lru_cache(maxsize=1 << 14)
def kernel_family(name: str) -> str | None:
    """The family of a kernel inside an XLA program; "splash" and "gmm" still lack their direction."""
    lower = name.lower()
    return next((family for family, pattern in _KERNELS if pattern.search(lower)), None)


@lru_cache(maxsize=1 << 14)
def gpu_family(kernel: str) -> str | None:
    """The family of a GPU kernel by its own name. Template arguments count: an Eigen kernel says there what it does."""
    lower = kernel.lower()
    return next((family for family, pattern in _GPU if pattern.search(lower)), None)


def custom_kernel(name: str, stack: Stack, target: str | None) -> str | None:
    """The stable name of a custom call's kernel.

    A library's target names it (``te_fused_attn_forward_ffi``). A Pallas kernel is named by a scope above its
    ``pallas_call``: the innermost one that is a known kernel, else the innermost that says anything. Else the
    instruction's name.
    """
    if target and target not in _CARRIERS:
        return target
    scopes = [stable(s.core) for s in reversed(stack.segments) if s.core not in _GENERIC]
    known = next((s for s in scopes if kernel_family(s)), None)
    if known:
        return known
    own = stable(name)
    if kernel_family(own) or own.lower() not in _GENERIC:
        return own
    return scopes[0] if scopes and stack.leaf == "pallas_call" else target
