"""The process that compiles: ``python -m distill.aot.worker SPEC.json``, started by ``distill.aot.compiler``.

A process of its own, since libtpu reads flags and environment once, holds gigabytes while it works, ends the process on
a flag that it does not know, and cannot be interrupted.

SPEC.json: ``config`` (every key), ``topology`` (a name), ``result`` (file to write). On stdout one JSON object a line
says which phase has begun: ``{"phase": "compile"}``. The result has the seconds of each phase, the memory analysis of
the finished program, the HBM that the compiler can use, the peak memory of this process, and the compiler's error, if
any; or ``failed``, for a step that cannot be built. RESULT.target is there before the compile begins, with what is
known by then. What libtpu logs goes to stderr.
"""

from __future__ import annotations

import json
import os
import re
import resource
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

_AVAILABLE = re.compile(r"exceeds available HBM \(([\d.]+)([KMGT]?)\)")
_UNITS = {"": 1, "K": 1 << 10, "M": 1 << 20, "G": 1 << 30, "T": 1 << 40}
_TOO_MUCH = 1 << 45  # bytes, more than any device has


def main(spec_file: str) -> None:
    """Compiles what SPEC.json says and writes the result."""
    spec = json.loads(Path(spec_file).read_text(encoding="utf-8"))
    threading.Thread(target=_end_with_parent, args=(os.getppid(),), daemon=True).start()
    phases = _Phases()
    from profiler.errors import ProfilerError, UsageError

    try:
        result = _compile(spec, phases)
    except ProfilerError as error:
        result = {"failed": str(error), "usage": isinstance(error, UsageError)}
    result["seconds"] = phases.seconds
    result["process_peak_bytes"] = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
    temporary = Path(spec["result"] + ".partial")
    temporary.write_text(json.dumps(result, indent=1), encoding="utf-8")
    temporary.rename(spec["result"])


class _Phases:
    """Announces each phase as it begins, and keeps how long each took."""

    def __init__(self) -> None:
        self._begun = time.monotonic()
        self._name: str | None = None
        self.seconds: dict[str, float] = {}

    def begin(self, name: str | None) -> None:
        """Ends the phase that runs and begins another; None: no other."""
        now = time.monotonic()
        if self._name is not None:
            self.seconds[self._name] = now - self._begun
        self._name, self._begun = name, now
        if name is not None:
            print(json.dumps({"phase": name}), flush=True)


def _compile(spec: dict[str, Any], phases: _Phases) -> dict[str, Any]:
    phases.begin("start")
    from jax.errors import JaxRuntimeError

    from distill.aot.topology import find
    from distill.config import Config
    from distill.kernels import select
    from distill.mesh import make_mesh
    from distill.step import build

    config, topology = Config(**spec["config"]), find(spec["topology"])
    devices = _devices(topology)
    mesh = make_mesh(config, devices)
    kernels = select(config, "tpu")
    result: dict[str, Any] = {
        "kernels": kernels.names,
        "notes": kernels.notes,
        "capacity_bytes": _capacity(devices[0]),
        "error": None,
    }
    step = build(config, mesh, kernels)
    Path(spec["result"] + ".target").write_text(json.dumps(result), encoding="utf-8")
    phases.begin("trace")
    traced = step.step_fn.trace(*step.abstract_arguments())
    phases.begin("lower")
    lowered = traced.lower()
    phases.begin("compile")
    try:
        compiled = lowered.compile()
    except JaxRuntimeError as error:
        result["error"] = str(error)
    else:
        analysis = compiled.memory_analysis()
        names = [name for name in dir(analysis) if name.endswith("_in_bytes")]
        result["memory"] = {name: int(getattr(analysis, name)) for name in names}
    phases.begin(None)
    return result


def _devices(topology: Any) -> list[Any]:
    """The devices of a topology, in jax's order."""
    from jax.experimental import topologies

    described = topologies.get_topology_desc(platform="tpu", topology_name=topology.libtpu_name, **topology.options)
    devices = list(described.devices)
    assert len(devices) == topology.devices, f"{topology.name}: libtpu has {len(devices)} devices"
    return devices


def _capacity(device: Any) -> int | None:
    """Bytes of HBM that the compiler may use on a device, to 0.01 GiB: it names them when asked for more."""
    import jax
    import jax.numpy as jnp
    from jax.errors import JaxRuntimeError

    argument = jax.ShapeDtypeStruct((_TOO_MUCH,), jnp.int8, sharding=jax.sharding.SingleDeviceSharding(device))
    copy: Callable[..., Any] = lambda x: x + 1  # noqa: E731 - jit takes the name of the function
    try:
        jax.jit(copy).lower(argument).compile()
    except JaxRuntimeError as error:
        match = _AVAILABLE.search(str(error))
        return round(float(match[1]) * _UNITS[match[2]]) if match else None
    return None


def _end_with_parent(parent: int) -> None:
    """Ends this process when the one that started it is gone: nobody would read the result."""
    while os.getppid() == parent:
        time.sleep(1)
    os._exit(1)


if __name__ == "__main__":
    main(sys.argv[1])
