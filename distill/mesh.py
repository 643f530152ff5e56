"""Devices as a grid of data × fsdp, and what lies where on it.

The batch is split over both axes; parameters over "fsdp" only, so every group along "data" holds them once. Several CPU
devices can stand in for a slice: call `simulate_cpu_devices` before anything else touches jax.
"""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence

import jax
import numpy as np
from jax.sharding import Mesh, NamedSharding, PartitionSpec

from distill.config import Config
from profiler.errors import UsageError

AXES = ("data", "fsdp")
BATCH = PartitionSpec(AXES)  # of every array whose first dimension is the batch


def make_mesh(config: Config, devices: Sequence[jax.Device] | None = None) -> Mesh:
    """The grid of `ici_data_parallelism` × `ici_fsdp_parallelism` devices; all devices of all processes by default.

    Raises:
        UsageError: the devices do not fill the grid exactly.
    """
    devices = jax.devices() if devices is None else devices
    data, fsdp = mesh_shape(config, len(devices))
    return Mesh(np.asarray(devices).reshape(data, fsdp), AXES)


def mesh_shape(config: Config, num_devices: int) -> tuple[int, int]:
    """Devices along (data, fsdp), with -1 filled in.

    Raises:
        UsageError: they do not multiply to `num_devices`.
    """
    asked = {"ici_data_parallelism": config.ici_data_parallelism, "ici_fsdp_parallelism": config.ici_fsdp_parallelism}
    fixed = int(np.prod([size for size in asked.values() if size != -1]))
    text = " and ".join(f"{key}={size}" for key, size in asked.items())
    if num_devices % fixed or (-1 not in asked.values() and fixed != num_devices):
        raise UsageError(
            f"{text} do not fit {num_devices} device{'s' if num_devices > 1 else ''}",
            remedy=f"their product must be {num_devices}; -1 stands for what is left",
        )
    data, fsdp = (num_devices // fixed if size == -1 else size for size in asked.values())
    return data, fsdp


def local_rows(mesh: Mesh, global_batch: int) -> np.ndarray:
    """Rows of the global batch that this process's devices hold, in ascending order: int64 [local rows].

    Raises:
        UsageError: the batch does not divide over the devices.
    """
    if global_batch % mesh.size:
        raise UsageError(
            f"a batch of {global_batch} sequences cannot be split over {mesh.size} devices",
            remedy="choose per_device_batch_size and gradient_accumulation_steps so that it divides",
        )
    held = NamedSharding(mesh, BATCH).addressable_devices_indices_map((global_batch,)).values()
    rows = {row for index in held if index is not None for row in range(*index[0].indices(global_batch))}
    return np.array(sorted(rows), dtype=np.int64)


def put_batch(mesh: Mesh, batch: Mapping[str, np.ndarray], global_batch: int) -> dict[str, jax.Array]:
    """This process's rows of a batch (as `local_rows` names them) as global arrays [global_batch, ...]."""
    sharding = NamedSharding(mesh, BATCH)
    return {
        key: jax.make_array_from_process_local_data(sharding, rows, (global_batch, *rows.shape[1:]))
        for key, rows in batch.items()
    }


def start_processes(environ: Mapping[str, str] = os.environ) -> bool:
    """Join the other processes of the run where the environment names them; True if there are any.

    Three variables ask for it: JAX_COORDINATOR_ADDRESS (host:port), JAX_NUM_PROCESSES and JAX_PROCESS_ID. Under Slurm,
    Open MPI and on the workers of a TPU slice jax finds them by itself. Call it before jax starts a backend.

    Raises:
        UsageError: some of the three are set, or one is no number.
    """
    names = ("JAX_COORDINATOR_ADDRESS", "JAX_NUM_PROCESSES", "JAX_PROCESS_ID")
    found = [environ.get(name, "") for name in names]
    if any(found):
        address, count, index = found
        if not address or not count.isdigit() or not index.isdigit():
            raise UsageError(
                "the environment names the processes of this run in part: "
                + ", ".join(f"{name}={value or 'unset'}" for name, value in zip(names, found, strict=True)),
                remedy="set all three, or none to run alone",
            )
        jax.distributed.initialize(address, int(count), int(index))
        return True
    if _is_many(environ):
        jax.distributed.initialize()
        return True
    return False


def _is_many(environ: Mapping[str, str]) -> bool:
    """Whether a launcher that jax knows has started more than one process."""
    counts = (environ.get(name, "") for name in ("SLURM_NTASKS", "OMPI_COMM_WORLD_SIZE"))
    started = any(count.isdigit() and int(count) > 1 for count in counts)
    return started or len(environ.get("TPU_WORKER_HOSTNAMES", "").split(",")) > 1


def simulate_cpu_devices(count: int) -> None:
    """Make jax show `count` CPU devices, and no other, for trying a mesh out.

    The same as the environment's JAX_PLATFORMS=cpu XLA_FLAGS=--xla_force_host_platform_device_count=N.

    Raises:
        UsageError: jax has started a backend already.
    """
    try:
        jax.config.update("jax_num_cpu_devices", count)
    except RuntimeError as error:
        raise UsageError(
            "CPU devices cannot be simulated any more: jax has started",
            remedy="ask for them before the first array is made",
        ) from error
    jax.config.update("jax_platforms", "cpu")
