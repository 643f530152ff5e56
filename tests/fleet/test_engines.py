"""Who reads the hosts makes no difference: processes here, or a Ray cluster of which a worker dies in the middle."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
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


@pytest.fixture(scope="module")
def cluster(tmp_path_factory) -> Iterator[str]:
    """A Ray cluster of this machine with three workers, and its address; ended with the tests of this file."""
    pytest.importorskip("ray")
    marker = str(tmp_path_factory.mktemp("ray"))
    environment = {**os.environ, "RAY_USAGE_STATS_ENABLED": "0", "PROFILER_TEST_CLUSTER": marker}
    command = [sys.executable, "-c", "from ray.scripts.scripts import main; main()", "start", "--head", "--block"]
    more = ["--port=26379", "--num-cpus=3", "--include-dashboard=false", "--object-store-memory=100000000"]
    log = Path(marker) / "log"
    with log.open("wb") as file:
        started = subprocess.Popen([*command, *more], env=environment, stdout=file, stderr=file, start_new_session=True)
    try:
        deadline = time.monotonic() + 120
        while "Ray runtime started" not in log.read_text("utf-8", "replace"):
            assert started.poll() is None and time.monotonic() < deadline, log.read_text("utf-8", "replace")
            time.sleep(0.2)
        yield marker
    finally:
        started.terminate()
        try:
            started.wait(30)
        except subprocess.TimeoutExpired:
            started.kill()
        for pid in _processes(marker):  # those of this cluster that did not leave by themselves
            os.kill(pid, signal.SIGKILL)


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
    monkeypatch.setenv("RAY_ADDRESS", "127.0.0.1:26379")
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
                (reader,) = _processes(cluster, "ray::_read")
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
    monkeypatch.setenv("RAY_ADDRESS", "127.0.0.1:26379")
    made = api.reduce(str(folder), tmp_path / "ray.parquet", engine="ray")
    api.reduce(str(folder), tmp_path / "local.parquet")
    assert made.hosts_read == 2
    assert [note.code for note in made.warnings] == ["hosts_unreadable"]
    assert content(tmp_path / "ray.parquet") == content(tmp_path / "local.parquet")


@pytest.mark.slow
def test_without_a_cluster_ray_is_one_clear_line(make_run, tmp_path, monkeypatch) -> None:
    pytest.importorskip("ray")
    monkeypatch.setenv("RAY_ADDRESS", "127.0.0.1:1")
    with pytest.raises(UsageError, match="no Ray cluster"):
        api.reduce(str(make_run(2)), tmp_path / "ray.parquet", engine="ray")
