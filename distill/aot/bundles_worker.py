"""The process that compiles kernels alone: ``python -m distill.aot.bundles_worker SPEC.json``.

SPEC.json: ``topology`` (a name), ``kernels`` (key → distill.aot.bundles_call.Call), ``dump`` (the folder that
LIBTPU_INIT_ARGS names) and ``results`` (a folder, which gets KEY.json as each kernel ends: its cycles and seconds, or
``failed``). It ends with the process that started it.
"""

from __future__ import annotations

import json
import os
import sys
import threading
import time
from dataclasses import asdict
from pathlib import Path
from typing import Any

from distill.aot.bundles_call import Call
from distill.aot.bundles_dump import ROWS_PER_CYCLE, Unreadable, read_cycles
from distill.aot.model import KernelCycles
from distill.aot.topology import Topology, find

_TYPES = {"pred": "bool", "bf16": "bfloat16", "f8e5m2": "float8_e5m2", "f8e4m3fn": "float8_e4m3fn"}
_KINDS = {"s": "int", "u": "uint", "f": "float"}


def main(spec_file: str) -> None:
    """Compiles what SPEC.json says, one kernel after the other."""
    spec = json.loads(Path(spec_file).read_text(encoding="utf-8"))
    threading.Thread(target=_end_with_parent, args=(os.getppid(),), daemon=True).start()
    slice_, dump, results = find(spec["topology"]), Path(spec["dump"]), Path(spec["results"])
    device, rows_per_cycle = _device(slice_), ROWS_PER_CYCLE[slice_.chip.key]
    for key, call in spec["kernels"].items():
        began = time.monotonic()
        try:
            _compile(call, device)
            found: dict[str, Any] = asdict(_read(dump, rows_per_cycle))
        except Exception as error:  # whatever it is, the other kernels can still be compiled
            found = {"failed": " ".join(str(error).split())[:300] or type(error).__name__}
        found["seconds"] = round(time.monotonic() - began, 2)
        for file in dump.iterdir():
            file.unlink()
        partial = results / f"{key}.partial"
        partial.write_text(json.dumps(found), encoding="utf-8")
        partial.rename(results / f"{key}.json")


def _device(slice_: Topology) -> Any:
    from jax.experimental import topologies

    described = topologies.get_topology_desc(platform="tpu", topology_name=slice_.libtpu_name, **slice_.options)
    return described.devices[0]


def _compile(call: Call, device: Any) -> None:
    """Compiles a program that is nothing but the kernel."""
    import jax

    sharding = jax.sharding.SingleDeviceSharding(device)
    operands = [jax.ShapeDtypeStruct(dims, _dtype(kind), sharding=sharding) for kind, dims in call["operands"]]
    results = [jax.ShapeDtypeStruct(dims, _dtype(kind)) for kind, dims in call["results"]]
    kernel = jax.ffi.ffi_call(
        "tpu_custom_call",
        results if len(results) > 1 else results[0],
        custom_call_api_version=1,
        legacy_backend_config=json.dumps(call["config"]),
    )
    jax.jit(kernel).trace(*operands).lower(lowering_platforms=("tpu",)).compile()


def _dtype(kind: str) -> str:
    """The dtype of HLO's name for it: s32 is int32."""
    return _TYPES.get(kind) or _KINDS[kind[0]] + kind[1:]


def _read(dump: Path, rows_per_cycle: float) -> KernelCycles:
    """The cycles of the kernel; its file bears the name that jax gives the call, which those of copies do not."""
    files = [file for file in dump.glob("*ffi_call*final_bundles.txt") if "schedule-analysis" not in file.name]
    if not files:
        raise Unreadable("the compiler wrote no bundles")
    with files[0].open(encoding="utf-8", errors="replace") as lines:
        return read_cycles(lines, rows_per_cycle)


def _end_with_parent(parent: int) -> None:
    """Ends this process when the one that started it is gone."""
    while os.getppid() == parent:
        time.sleep(1)
    os._exit(1)


if __name__ == "__main__":
    main(sys.argv[1])
