"""XProf on chosen recordings: its folder, its server and what that refuses."""

from __future__ import annotations

import gzip
import os
import signal
import socket
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import sample_profiles
from dashboard import xprof
from profiler.errors import UsageError
from profiler.xplane.locate import locate

COMPILED = str(sample_profiles.path("qwen3-30b/baseline.xplane.pb"))
PACKED = str(sample_profiles.path("tiny-qwen3/baseline.xplane.pb.gz"))
needs_xprof = pytest.mark.skipif(not xprof.available(), reason="xprof is not installed")


def test_recordings_lie_where_xprof_looks(tmp_path: Path) -> None:
    names = xprof.lay_out(tmp_path, [("old", PACKED), ("old", COMPILED), ("../../x y", f"{PACKED},{COMPILED}")])
    assert names == ["old", "old-2", "_.._x_y-1", "_.._x_y-2"]
    home = tmp_path / "plugins" / "profile"
    assert {path.relative_to(home).as_posix() for path in home.rglob("*.pb")} == {
        "old/baseline.xplane.pb",
        "old-2/baseline.xplane.pb",
        "_.._x_y-1/baseline.xplane.pb",
        "_.._x_y-2/baseline.xplane.pb",
    }
    assert (home / "old/baseline.xplane.pb").read_bytes() == gzip.decompress(Path(PACKED).read_bytes())
    assert (home / "old-2/baseline.xplane.pb").samefile(COMPILED)
    assert locate(str(home / "old")).label == "old"


def test_without_xprof_the_remedy_is_said(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(xprof, "available", lambda: False)
    with pytest.raises(UsageError, match="pip install"):
        xprof.Servers().url([("old", COMPILED)])


@pytest.mark.parametrize(
    ("environ", "allowed"),
    [
        ({"HTTP_HOST": "localhost:1", "PATH_INFO": "/"}, True),
        ({"HTTP_HOST": "127.0.0.1:1", "PATH_INFO": "/data/plugin/profile/data", "QUERY_STRING": "run=a&tag=b"}, True),
        ({"HTTP_HOST": "attacker.example:1", "PATH_INFO": "/"}, False),
        ({"HTTP_HOST": "", "PATH_INFO": "/"}, False),
        ({"PATH_INFO": "/"}, False),
        ({"HTTP_HOST": "localhost:1", "PATH_INFO": "/", "QUERY_STRING": "session_path=/etc"}, False),
        ({"HTTP_HOST": "localhost:1", "PATH_INFO": "/", "QUERY_STRING": "a=1&run_path="}, False),
        ({"HTTP_HOST": "localhost:1", "PATH_INFO": "/", "QUERY_STRING": "run=%2e%2e/secret"}, False),
        ({"HTTP_HOST": "localhost:1", "PATH_INFO": "/data/plugin/profile/capture_profile"}, False),
        ({"HTTP_HOST": "localhost:1", "PATH_INFO": "/", "REQUEST_METHOD": "POST"}, False),
    ],
)
def test_the_server_refuses_other_names_and_places(environ: dict[str, Any], allowed: bool) -> None:
    said: list[str] = []
    answer = xprof.guarded(lambda _, start: start("200 OK", []) or [b"page"])
    body = answer({"REQUEST_METHOD": "GET", **environ}, lambda status, _: said.append(status))
    assert (said[0], b"".join(body)) == (("200 OK", b"page") if allowed else ("403 Forbidden", b"Forbidden"))


@pytest.fixture(scope="module")
def servers() -> Iterator[xprof.Servers]:
    found = xprof.Servers()
    yield found
    found.stop()


def status(url: str) -> int:
    try:
        with urllib.request.urlopen(url, timeout=60) as answer:
            return int(answer.status)
    except urllib.error.HTTPError as error:
        return error.code


@needs_xprof
@pytest.mark.slow
def test_xprof_shows_the_chosen_runs_on_this_machine_only(servers: xprof.Servers) -> None:
    sides = [("baseline", COMPILED), ("optimized", PACKED)]
    url = servers.url(sides)
    assert status(url) == 200
    assert sorted(xprof._listed(url)) == ["baseline", "optimized"]
    assert servers.url(sides) == servers.running(sides) == url
    tool = f"{url}data/plugin/profile/data?run=baseline&tag="
    assert status(f"{tool}hlo_stats&host=baseline") == 200
    # The program that the memory viewer needs comes out of the recording.
    assert status(f"{url}data/plugin/profile/module_list?run=baseline") == 200
    folder = next(iter(servers._running.values())).folder / "plugins/profile/baseline"
    (program,) = folder.glob("*.hlo_proto.pb")
    assert status(f"{tool}memory_viewer&module_name={program.name.removesuffix('.hlo_proto.pb')}") == 200
    assert status(f"{url}data/plugin/profile/runs?session_path=/") == 403
    port = int(url.rstrip("/").rpartition(":")[2])
    for address in {each[4][0] for each in socket.getaddrinfo(socket.gethostname(), port, socket.AF_INET)}:
        if not str(address).startswith("127."):
            with socket.socket() as probe:
                assert probe.connect_ex((address, port)) != 0
    servers.stop()
    assert servers.running(sides) is None
    assert not folder.exists()
    with socket.socket() as probe:
        assert probe.connect_ex(("127.0.0.1", port)) != 0


@needs_xprof
@pytest.mark.slow
@pytest.mark.skipif(sys.platform == "win32", reason="kills a process")
def test_xprof_ends_with_a_dashboard_that_is_killed() -> None:
    code = (
        "import sys, time; from dashboard.xprof import Servers; servers = Servers();"
        f"print(servers.url([('a', {COMPILED!r})]), flush=True); time.sleep(600)"
    )
    process = subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None
    port = int(process.stdout.readline().strip().rstrip("/").rpartition(":")[2])
    os.kill(process.pid, signal.SIGKILL)
    process.wait()
    deadline = time.monotonic() + 60
    while time.monotonic() < deadline:
        with socket.socket() as probe:
            if probe.connect_ex(("127.0.0.1", port)) != 0:
                return
        time.sleep(0.2)
    raise AssertionError("XProf still runs")
