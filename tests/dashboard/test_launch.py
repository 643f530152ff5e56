"""``profiler dashboard`` as a process: it starts, answers on this machine only, and ends when it is told to."""

from __future__ import annotations

import json
import os
import re
import signal
import socket
import subprocess
import sys
import time
import tomllib
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("streamlit", reason="the dashboard extra is not installed")

import sample_profiles
from dashboard import launch
from profiler import cli
from profiler.errors import UsageError

START_S = 60
SETTINGS = Path(launch.__file__).parent / ".streamlit" / "config.toml"


@pytest.fixture
def started(tmp_path: Path) -> Iterator[Callable[..., tuple[subprocess.Popen[str], str]]]:
    """Starts ``profiler dashboard ARGS`` and gives it with its URL once it answers."""
    running = []

    def start(*args: str) -> tuple[subprocess.Popen[str], str]:
        log = tmp_path / "log"
        port = launch.free_port()
        with log.open("w") as written:
            process = subprocess.Popen(
                [sys.executable, "-m", "profiler", "dashboard", "--no-browser", f"--port={port}", *args],
                stderr=written,
                stdout=written,
                text=True,
                cwd=tmp_path,
                env={**os.environ, "HOME": str(tmp_path)},
            )
        running.append(process)
        url = f"http://localhost:{port}"
        deadline = time.monotonic() + START_S
        while time.monotonic() < deadline and process.poll() is None:
            try:
                with urllib.request.urlopen(f"{url}/_stcore/health", timeout=5) as answer:
                    assert answer.read() == b"ok"
                    return process, url
            except (urllib.error.URLError, ConnectionError):
                time.sleep(0.1)
        raise AssertionError(log.read_text())

    yield start
    for process in running:
        if process.poll() is None:
            process.terminate()
            process.wait(30)


def test_it_serves_the_app_on_this_machine_only_and_ends_with_ctrl_c(started: Any, tmp_path: Path) -> None:
    (tmp_path / "logs").mkdir()
    process, url = started(str(tmp_path / "logs"))
    with urllib.request.urlopen(url, timeout=30) as page:
        assert page.status == 200
    port = int(url.rpartition(":")[2])
    for address in {each[4][0] for each in socket.getaddrinfo(socket.gethostname(), port, socket.AF_INET)}:
        if not str(address).startswith("127."):
            with socket.socket() as probe:
                probe.settimeout(5)
                assert probe.connect_ex((address, port)) != 0
    assert refuses_a_foreign_name(port)
    process.send_signal(signal.SIGINT)
    assert process.wait(30) == 130
    log = (tmp_path / "log").read_text()
    assert "Traceback" not in log
    assert f"dashboard of logs, samples at {url}" in log
    with socket.socket() as probe:
        assert probe.connect_ex(("127.0.0.1", port)) != 0


def refuses_a_foreign_name(port: int) -> bool:
    """Whether the app's connection is refused to a page that reached this server by another name (DNS rebinding)."""
    answers = {}
    for host in ("attacker.example", "localhost"):
        with socket.create_connection(("127.0.0.1", port), timeout=30) as connection:
            head = f"GET /_stcore/stream HTTP/1.1\r\nHost: {host}:{port}\r\nOrigin: http://{host}:{port}\r\n"
            key = "Upgrade: websocket\r\nConnection: Upgrade\r\nSec-WebSocket-Version: 13\r\n"
            connection.sendall((head + key + "Sec-WebSocket-Key: AAAAAAAAAAAAAAAAAAAAAA==\r\n\r\n").encode())
            answers[host] = connection.recv(200).split(b" ")[1]
    return answers == {"attacker.example": b"403", "localhost": b"101"}


@pytest.mark.skipif(sys.platform == "win32", reason="no SIGTERM there")
def test_the_server_ends_with_the_command(started: Any, tmp_path: Path) -> None:
    process, url = started()
    process.terminate()
    assert process.wait(30) == 143
    with socket.socket() as probe:
        assert probe.connect_ex(("127.0.0.1", int(url.rpartition(":")[2]))) != 0
    assert "Traceback" not in (tmp_path / "log").read_text()


@pytest.mark.parametrize(
    ("args", "code", "words"),
    [
        (["nothing"], 3, "nothing: no such file or folder"),
        (["--port", "0"], 2, "0 is no port"),
        (["--port", "99999"], 2, "is more than 65535"),
        (["--host", "no-such-host.invalid"], 2, "is no address of this machine"),
        (["--host", "192.0.2.1"], 2, "192.0.2.1 is no address of this machine"),
    ],
)
def test_what_cannot_be_is_said_before_anything_starts(capsys: Any, args: list[str], code: int, words: str) -> None:
    assert cli.main(["dashboard", *args]) == code
    said = capsys.readouterr().err
    assert words in said
    assert said.count("\n") == 1


def test_a_taken_port_is_said_before_anything_starts(capsys: Any) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        assert cli.main(["dashboard", "--host", "127.0.0.1", "--port", str(port)]) == 2
    assert f"port {port} of 127.0.0.1 is taken" in capsys.readouterr().err


@pytest.mark.parametrize(("installed", "words"), [(None, "none is installed"), ("1.40.2", "1.40.2 is installed")])
def test_without_streamlit_the_remedy_is_said(
    capsys: Any, monkeypatch: pytest.MonkeyPatch, installed: str | None, words: str
) -> None:
    def version(package: str) -> str:
        if installed is None:
            raise launch.importlib.metadata.PackageNotFoundError(package)
        return installed

    monkeypatch.setattr(launch.importlib.metadata, "version", version)
    assert cli.main(["dashboard"]) == 2
    said = capsys.readouterr().err
    assert words in said
    assert "pip install 'profiler[dashboard]'" in said


@pytest.fixture
def command(monkeypatch: pytest.MonkeyPatch) -> Callable[..., list[str]]:
    """What ``profiler dashboard ARGS`` would run."""

    def ran(*args: str) -> list[str]:
        found: list[str] = []
        monkeypatch.setattr(launch, "serve", lambda command: found.extend(command) or 0)
        assert cli.main(["dashboard", *args]) == 0
        return found

    return ran


def test_the_options_reach_the_server(command: Any, capsys: Any) -> None:
    sample = str(sample_profiles.path("cpu-remat/baseline.xplane.pb.gz"))
    given = command(sample, f"new={sample}", "--no-browser", "--max-upload-mb", "7")
    assert given[given.index("--") + 1 :] == [sample, f"new={sample}"]
    assert {
        "--server.address=localhost",
        "--browser.gatherUsageStats=false",
        "--server.fileWatcherType=none",
        "--server.headless=true",
        "--server.maxUploadSize=7",
    } <= set(given)
    assert "warning" not in capsys.readouterr().err


def test_serving_others_is_warned_about(command: Any, capsys: Any) -> None:
    assert "--server.allowedHosts=*" in command("--host", "0.0.0.0")
    assert "there is no login" in capsys.readouterr().err


def test_the_settings_keep_to_this_machine_and_say_nothing_to_others() -> None:
    settings = tomllib.loads(SETTINGS.read_text("utf-8"))
    assert settings["server"]["address"] == "localhost"
    assert settings["server"]["allowedHosts"] == ["localhost", "127.0.0.1", "::1"]
    assert settings["server"]["enableCORS"] is settings["server"]["enableXsrfProtection"] is True
    assert settings["browser"]["gatherUsageStats"] is False
    assert settings["client"]["toolbarMode"] == "viewer"


def test_the_settings_are_ones_that_streamlit_knows() -> None:
    from streamlit import config

    def names(table: dict[str, Any], prefix: str = "") -> Iterator[str]:
        for key, value in table.items():
            yield from names(value, f"{prefix}{key}.") if isinstance(value, dict) else [f"{prefix}{key}"]

    for name in names(tomllib.loads(SETTINGS.read_text("utf-8"))):
        assert name in config._config_options_template, name


def test_the_least_versions_are_those_that_the_extra_asks_for() -> None:
    extras = tomllib.loads((Path(__file__).parents[2] / "pyproject.toml").read_text())["project"]
    asked = {
        re.split(">=", need)[0]: tuple(map(int, re.split(">=", need)[1].split(".")))
        for need in extras["optional-dependencies"]["dashboard"]
    }
    assert {name: least[: len(asked[name])] for name, least in launch.NEEDS} == asked


def test_a_server_that_cannot_start_gives_its_exit_code() -> None:
    assert launch.serve([sys.executable, "-c", "raise SystemExit(5)"]) == 5


def test_the_ports_of_two_servers_differ() -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        with pytest.raises(UsageError):
            launch._port("127.0.0.1", port)
    assert launch._port("127.0.0.1", None) >= launch.FIRST_PORT


def test_help_lists_the_command() -> None:
    assert "dashboard" in json.dumps(cli.build_parser().format_help())
