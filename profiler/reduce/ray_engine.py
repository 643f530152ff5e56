"""Hosts read by the workers of a Ray cluster that is there already: RAY_ADDRESS, or the one this machine belongs to.

Every worker needs the profiler installed, and sees the files under the same paths.
"""

from __future__ import annotations

import importlib
import logging
import os
import socket
from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Any

from profiler.errors import UsageError
from profiler.reduce.engines import Engine
from profiler.reduce.host_part import Failure, Outcome, Task, read_host

RETRIES = 3  # of a task whose worker or node died
LISTEN_S, CONNECT_S = 0.5, 10


def checked() -> Engine:
    """This engine.

    Raises:
        UsageError: Ray is not installed.
    """
    try:
        importlib.import_module("ray")
    except ImportError as error:
        raise UsageError("the engine ray is not installed", remedy="pip install 'profiler[cluster]'") from error
    return run


def run(tasks: Sequence[Task], workers: int | None = None) -> Iterator[tuple[int, Outcome]]:
    """Reads every task's file on the cluster: (which, what came of it), as they end.

    Args:
        tasks: what to read.
        workers: how many at once at most; None for two for every core of the cluster, of which half wait.

    Raises:
        UsageError: there is no cluster.
    """
    ray: Any = importlib.import_module("ray")
    ours = not ray.is_initialized()
    if ours:
        address = os.environ.get("RAY_ADDRESS") or "auto"
        try:
            _knock(_latest() if address == "auto" else address)
            ray.init(address=address, logging_level=logging.ERROR, log_to_driver=False)
        except (OSError, RuntimeError, ValueError, ray.exceptions.RayError) as error:
            raise UsageError(
                f"no Ray cluster at {address}: {str(error).splitlines()[0] if str(error) else type(error).__name__}",
                remedy="start one with ray start --head, or name it in RAY_ADDRESS",
            ) from error
    remote = ray.remote(num_cpus=1, max_retries=RETRIES)(_read)
    most = workers or max(2, 2 * int(ray.cluster_resources().get("CPU", 1)))
    waiting = iter(enumerate(tasks))
    running: dict[Any, int] = {}
    try:
        while True:
            while len(running) < most and (following := next(waiting, None)) is not None:
                index, task = following
                running[remote.remote(replace(task, threads=1))] = index  # Ray fills the cores with tasks
            if not running:
                return
            done, _ = ray.wait(list(running), num_returns=1, timeout=LISTEN_S)
            for each in done:
                index = running.pop(each)
                yield index, _outcome(ray, each, tasks[index])
    finally:
        for each in running:
            ray.cancel(each, force=True)
        if ours:
            ray.shutdown()


def _latest() -> str:
    """Where Ray's "auto" looks for the cluster of this machine, as far as Ray tells; it may have ended long ago."""
    try:
        find: Any = importlib.import_module("ray._private.services").canonicalize_bootstrap_address_or_die
    except (ImportError, AttributeError):
        return "auto"
    return str(find("auto"))


def _knock(address: str) -> None:
    """Raises OSError where nobody listens at a HOST:PORT, for which Ray itself would wait for minutes."""
    host, colon, port = address.rpartition(":")
    if colon and "/" not in address and port.isdigit():
        socket.create_connection((host.strip("[]"), int(port)), CONNECT_S).close()


def _read(task: Task) -> Outcome:
    """What a worker does; by name, so that it is imported there and not sent."""
    return read_host(task)


def _outcome(ray: Any, reference: Any, task: Task) -> Outcome:
    try:
        outcome: Outcome = ray.get(reference)
        return outcome
    except ray.exceptions.RayError as error:
        why = str(error).strip().splitlines()
        return Failure(task.name, f"the Ray worker that read it failed: {why[0] if why else type(error).__name__}")
