"""The grid of devices, and what lies where on it. Four simulated devices need a process of their own."""

import os
import socket
import subprocess
import sys
from pathlib import Path

import jax
import numpy as np
import pytest

from distill.config import Config
from distill.mesh import local_rows, make_mesh, mesh_shape, put_batch, start_processes
from profiler.errors import UsageError

ROOT = Path(__file__).resolve().parents[2]


@pytest.mark.parametrize(
    ("data", "fsdp", "devices", "shape"),
    [(1, -1, 8, (1, 8)), (4, -1, 128, (4, 32)), (-1, 2, 8, (4, 2)), (2, 64, 128, (2, 64)), (1, -1, 1, (1, 1))],
)
def test_minus_one_takes_the_devices_that_are_left(data: int, fsdp: int, devices: int, shape: tuple[int, int]) -> None:
    assert mesh_shape(Config(ici_data_parallelism=data, ici_fsdp_parallelism=fsdp), devices) == shape


@pytest.mark.parametrize(("data", "fsdp", "devices"), [(3, -1, 8), (2, 2, 8), (4, 32, 1), (16, -1, 8)])
def test_devices_that_do_not_fill_the_grid_are_an_error_that_names_both_keys(
    data: int, fsdp: int, devices: int
) -> None:
    with pytest.raises(UsageError, match=rf"ici_data_parallelism={data} and ici_fsdp_parallelism={fsdp} do not fit"):
        mesh_shape(Config(ici_data_parallelism=data, ici_fsdp_parallelism=fsdp), devices)


def test_one_device_holds_the_whole_batch() -> None:
    mesh = make_mesh(Config(), jax.devices()[:1])
    assert mesh.axis_names == ("data", "fsdp")
    assert local_rows(mesh, 6).tolist() == list(range(6))
    rows = {"tokens": np.arange(12, dtype=np.int32).reshape(6, 2)}
    assert np.array_equal(put_batch(mesh, rows, 6)["tokens"], rows["tokens"])


SIMULATED = """
from distill.mesh import *
simulate_cpu_devices(4)
import jax, numpy as np, pytest
from jax.sharding import PartitionSpec as P
from distill.config import Config
from profiler.errors import UsageError

assert jax.device_count() == 4
mesh = make_mesh(Config(ici_data_parallelism=2))
assert dict(mesh.shape) == {"data": 2, "fsdp": 2}

batch = {"tokens": np.arange(16, dtype=np.int32).reshape(8, 2)}
put = put_batch(mesh, batch, 8)["tokens"]
assert put.sharding.spec == P(("data", "fsdp"))
assert [shard.data.shape for shard in put.addressable_shards] == [(2, 2)] * 4
assert np.array_equal(put, batch["tokens"])
assert local_rows(mesh, 8).tolist() == list(range(8))
with pytest.raises(UsageError, match="6 sequences cannot be split over 4"):
    local_rows(mesh, 6)

with pytest.raises(UsageError, match="jax has started"):
    simulate_cpu_devices(8)
"""


def test_four_simulated_devices_share_batch_and_parameters() -> None:
    run = subprocess.run([sys.executable, "-c", SIMULATED], cwd=ROOT, capture_output=True, text=True, check=False)
    assert run.returncode == 0, run.stderr


def test_a_process_alone_starts_alone() -> None:
    assert not start_processes({})
    assert not start_processes({"SLURM_NTASKS": "1", "TPU_WORKER_HOSTNAMES": "localhost"})


def test_half_named_processes_are_an_error_that_says_what_is_missing() -> None:
    with pytest.raises(UsageError, match=r"JAX_NUM_PROCESSES=unset, JAX_PROCESS_ID=0.*set all three"):
        start_processes({"JAX_COORDINATOR_ADDRESS": "localhost:1234", "JAX_PROCESS_ID": "0"})


PROCESS = """
from distill.mesh import *
simulate_cpu_devices(2)
assert start_processes()
import jax, numpy as np
from distill.config import Config
from distill.data import open_data

config = Config(per_device_batch_size=1, max_target_length=32)
mesh = make_mesh(config)
assert jax.process_count() == 2 and mesh.size == 4
data, rows = open_data(config, mesh.size), local_rows(mesh, 4)
assert rows.tolist() == [2 * jax.process_index(), 2 * jax.process_index() + 1]
tokens = put_batch(mesh, data.batch(0, rows=rows), 4)["tokens"]
assert tokens.shape == (4, 32)
assert int(jax.jit(lambda x: x.sum())(tokens)) == int(data.batch(0)["tokens"].sum())
"""


def test_two_processes_hold_half_the_batch_each() -> None:
    with socket.socket() as free:
        free.bind(("localhost", 0))
        address = f"localhost:{free.getsockname()[1]}"
    runs = [
        subprocess.Popen(
            [sys.executable, "-c", PROCESS],
            cwd=ROOT,
            stderr=subprocess.PIPE,
            text=True,
            env=os.environ
            | {"JAX_COORDINATOR_ADDRESS": address, "JAX_NUM_PROCESSES": "2", "JAX_PROCESS_ID": str(index)},
        )
        for index in range(2)
    ]
    try:
        for run in runs:
            _, errors = run.communicate(timeout=120)
            assert run.returncode == 0, errors
    finally:
        for run in runs:
            run.kill()
