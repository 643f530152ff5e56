"""Small runs of several hosts, each with a clock of its own and planes that are called alike."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from profiler.hlo.schema import hlo
from profiler.xplane.write import SpaceBuilder

MS = 10**9
OPS = (
    ("dot.1", "convolution", "jit(step)/jvp()/dot_general", 0.5),
    ("fusion.2", "loop fusion", "jit(step)/transpose(jvp())/add", 0.3),
    ("all-reduce.3", "all-reduce", "jit(step)/transpose(jvp())/psum", 0.1),
)
Make = Callable[..., Path]


def host_file(
    path: Path, host: str, *, slower: float = 1.0, devices: int = 2, steps: int = 5, seed: int = 0, **info: object
) -> Path:
    """Writes one host: steps of about 10 ms, a tenth of each idle, ``slower`` as many times as long."""
    random = np.random.default_rng([seed, *host.encode()])
    space = SpaceBuilder(hostnames=(host,))
    for number in range(devices):
        stats = {"device_type_string": "TPU v6 Lite", "peak_teraflops_per_second": 918.0}
        plane = space.plane(f"/device:TPU:{number}", stats=stats)
        marks, modules, ops = plane.line("Steps"), plane.line("XLA Modules"), plane.line("XLA Ops")
        now = int(random.integers(1, 10**6)) * MS  # hosts do not share a clock
        for step in range(steps):
            length = int(10 * MS * slower * random.uniform(0.99, 1.01))
            marks.event(str(100 + step), now, length)
            modules.event("jit_step(7)", now, length)
            begin = now
            for symbol, (name, category, stack, share) in enumerate(OPS, 1):
                facts = {"program_id": 7, "symbol_id": symbol, "hlo_category": category, "tf_op": f"{stack}:"}
                text = f"%{name} = f32[8]{{0}} {name.split('.')[0]}(f32[8]{{0}} %x)"
                metadata = {**facts, "flops": 16, "bytes_accessed": 64}
                ops.event(text, begin, int(length * share), display_name=name, metadata_stats=metadata)
                begin += int(length * share)
            now += length
    proto = hlo().HloProto()
    proto.hlo_module.name = b"jit_step"
    space.hlo_proto("jit_step", 7, proto.SerializeToString())
    space.plane("/host:run_info", stats={"run_info": json.dumps({"config": {"model_name": "tiny"}, **info})})
    path.parent.mkdir(parents=True, exist_ok=True)
    return space.write(path)


@pytest.fixture
def write_host() -> Make:
    """Writes one host's file."""
    return host_file


@pytest.fixture
def make_run(tmp_path: Path) -> Make:
    """Writes a run and gives its folder: host-0, host-1 …, each a little slower than the one before."""

    def make(hosts: int = 4, name: str = "run", **more: object) -> Path:
        for number in range(hosts):
            file = tmp_path / name / f"host-{number}.xplane.pb"
            host_file(file, f"host-{number}", slower=1 + number / 10, **more)  # type: ignore[arg-type]
        return tmp_path / name

    return make
