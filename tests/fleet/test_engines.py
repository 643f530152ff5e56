"""Who reads the hosts makes no difference: processes here, or a Ray cluster of which a worker dies in the middle."""

from __future__ import annotations

import os
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

import pytest

from profiler import api, cli
from profiler.errors import UsageError
from profiler.reduce import engines, ray_engine
from profiler.reduced.write import reduce_run
from profiler.xplane.locate import locate


def content(folder: Path) -> dict[str, bytes]:
    return {str(path.relative_to(folder)): path.read_bytes() for path in sorted(folder.rglob("*")) if path.is_file()}


def test_an_engine_that_is_not_installed_is_one_clear_line(make_run, tmp_path, monkeypatch, capsys) -> None:
    monkeypatch.setitem(sys.modules, "ray", None)
    target = tmp_path / "run.parquet"
    assert cli.main(["reduce", str(make_run(2)), "-o", str(target), "--engine", "ray"]) == 2
    assert "pip install 'profiler[cluster]'" in capsys.readouterr().err
    assert not target.exists()
    assert engines.engine("local") is not None


@dataclass(frozen=True)
class Cluster:
    """A Ray cluster of this machine, whose processes know its ``marker``."""

    address: str
    marker: str


@pytest.fixture(scope="module")
def cluster() -> Iterator[Cluster]:
    """A cluster with three workers; ended with the tests of this file. Another one may run beside it."""
    pytest.importorskip("ray")
    marker = tempfile.mkdtemp(prefix="ray-")  # short: it is part of the names of sockets
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    environment = {**os.environ, "RAY_USAGE_STATS_ENABLED": "0", "PROFILER_TEST_CLUSTER": marker}
    command = [sys.executable, "-c", "from ray.scripts.scripts import main; main()", "start", "--head", "--block"]
    more = [f"--port={port}", "--num-cpus=3", "--include-dashboard=false", "--object-store-memory=100000000"]
    more.append(f"--temp-dir={marker}")  # else this cluster would be the one that "auto" means to everybody here
    log = Path(marker) / "log"
    with log.open("wb") as file:
        started = subprocess.Popen([*command, *more], env=environment, stdout=file, stderr=file, start_new_session=True)
    try:
        deadline = time.monotonic() + 120
        while "Ray runtime started" not in log.read_text("utf-8", "replace"):
            assert started.poll() is None and time.monotonic() < deadline, log.read_text("utf-8", "replace")
            time.sleep(0.2)
        yield Cluster(f"127.0.0.1:{port}", marker)
    finally:
        started.terminate()
        try:
            started.wait(30)
        except subprocess.TimeoutExpired:
            started.kill()
        for pid in _processes(marker):  # those of this cluster that did not leave by themselves
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        shutil.rmtree(marker, ignore_errors=True)


def _processes(marker: str, name: str = "") -> list[int]:
    """The processes of the cluster that is marked so, whose command begins with ``name``."""
    found = []
    for place in Path("/proc").glob("[0-9]*"):
        try:
            ours = f"PROFILER_TEST_CLUSTER={marker}".encode() in (place / "environ").read_bytes()
            if ours and (place / "cmdline").read_bytes().startswith(name.encode()):
                found.append(int(place.name))
        except OSError:
            continue
    return found


@pytest.mark.slow
@pytest.mark.skipif(sys.platform != "linux", reason="finds the worker in /proc")
def test_a_ray_worker_that_is_killed_loses_nothing_and_nothing_counts_twice(
    cluster, make_run, tmp_path, monkeypatch
) -> None:
    folder = make_run(6)
    reduce_run(locate(str(folder)).recordings[0], tmp_path / "local.parquet", workers=1)
    monkeypatch.setenv("RAY_ADDRESS", cluster.address)
    # The worker that opens this one waits until somebody writes into it: until it is killed.
    blocked, aside = folder / "host-0.xplane.pb", tmp_path / "host-0"
    recording = locate(str(folder)).recordings[0]
    blocked.rename(aside)
    os.mkfifo(blocked)
    seen: list[int] = []
    killed: list[int] = []

    def engine(tasks, workers):
        for index, outcome in ray_engine.run(tasks, workers):
            seen.append(index)
            yield index, outcome
            if len(seen) == len(tasks) - 1:
                (reader,) = _processes(cluster.marker, "ray::_read")
                aside.rename(blocked)
                os.kill(reader, signal.SIGKILL)
                killed.append(reader)

    made = reduce_run(recording, tmp_path / "ray.parquet", engine=engine)
    assert len(killed) == 1
    assert sorted(seen) == [0, 1, 2, 3, 4, 5]
    assert seen[-1] == 0
    assert (made.hosts_read, made.devices, made.warnings) == (6, 12, ())
    assert content(tmp_path / "ray.parquet") == content(tmp_path / "local.parquet")


@pytest.mark.slow
def test_hosts_that_fail_on_a_cluster_are_named(cluster, make_run, tmp_path, monkeypatch) -> None:
    folder = make_run(3)
    (folder / "host-1.xplane.pb").write_bytes(b"x")
    monkeypatch.setenv("RAY_ADDRESS", cluster.address)
    made = api.reduce(str(folder), tmp_path / "ray.parquet", engine="ray")
    api.reduce(str(folder), tmp_path / "local.parquet")
    assert made.hosts_read == 2
    assert [note.code for note in made.warnings] == ["hosts_unreadable"]
    assert content(tmp_path / "ray.parquet") == content(tmp_path / "local.parquet")


def test_a_cluster_that_ended_is_told_at_once_and_not_waited_for(make_run, tmp_path, monkeypatch) -> None:
    pytest.importorskip("ray")
    from ray._private import services

    monkeypatch.delenv("RAY_ADDRESS", raising=False)
    # What Ray's "auto" finds in the file of a cluster that was killed.
    monkeypatch.setattr(services, "canonicalize_bootstrap_address_or_die", lambda address: "127.0.0.1:1")
    monkeypatch.setattr("ray.init", None)  # never called
    with pytest.raises(UsageError, match=r"no Ray cluster at auto: .*refused"):
        api.reduce(str(make_run(2)), tmp_path / "ray.parquet", engine="ray")


@pytest.mark.slow
def test_without_a_cluster_ray_is_one_clear_line(make_run, tmp_path, monkeypatch) -> None:
    pytest.importorskip("ray")
    monkeypatch.setenv("RAY_ADDRESS", "127.0.0.1:1")
    with pytest.raises(UsageError, match="no Ray cluster"):
        api.reduce(str(make_run(2)), tmp_path / "ray.parquet", engine="ray")
