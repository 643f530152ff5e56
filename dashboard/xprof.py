"""XProf on the chosen recordings: one server per set of runs, on this machine only, on a private folder.

XProf's own command listens on all addresses, with a second port for its workers, and reads any folder that a URL names.
Here its pages are served by the same code without either: ``python -m dashboard.xprof FOLDER PORT``.
"""

from __future__ import annotations

import atexit
import importlib.util
import json
import re
import shutil
import subprocess
import sys
import tempfile
import threading
import time
import urllib.error
import urllib.request
import zlib
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs

from dashboard.launch import free_port, stop
from profiler.errors import UnreadableError, UsageError
from profiler.xplane.locate import Recording, host_name, locate
from profiler.xplane.read import opened

INSTALL = "pip install 'profiler[xprof]'"
MOST_SERVERS = 3
MOST_UNPACKED = 8 << 30  # bytes of one gzipped recording
_START_S = 90.0
_RUNS = "/data/plugin/profile/runs"
_NAMES_A_PLACE = {"session_path", "run_path"}  # parameters by which XProf would read elsewhere


@dataclass(frozen=True)
class _Server:
    process: subprocess.Popen[bytes]
    folder: Path
    url: str


class Servers:
    """The XProf servers of one dashboard; they end with it."""

    def __init__(self) -> None:
        self._running: dict[tuple[tuple[str, str], ...], _Server] = {}
        self._lock = threading.Lock()
        atexit.register(self.stop)

    def url(self, sides: Sequence[tuple[str, str]]) -> str:
        """The page of XProf on these recordings, which is started unless it runs already.

        Args:
            sides: a name and a PATH argument for each; the paths have been checked.

        Raises:
            UsageError: XProf is not installed, or did not start.
            UnreadableError: a recording cannot be read.
        """
        if not available():
            raise UsageError("XProf is not installed", remedy=INSTALL)
        key = tuple(sides)
        with self._lock:
            found = self._running.get(key)
            if found and found.process.poll() is None:
                return found.url
            while len(self._running) >= MOST_SERVERS:
                _end(self._running.pop(next(iter(self._running))))
            folder = Path(tempfile.mkdtemp(prefix=".profiler-xprof-")).resolve()
            try:
                names = lay_out(folder, sides)
                self._running[key] = server = _start(folder)
            except BaseException:
                shutil.rmtree(folder, ignore_errors=True)
                raise
            try:
                _wait(server, names)
            except BaseException:
                _end(self._running.pop(key))
                raise
            return server.url

    def running(self, sides: Sequence[tuple[str, str]]) -> str | None:
        """The page on these recordings where its server runs."""
        found = self._running.get(tuple(sides))
        return found.url if found and found.process.poll() is None else None

    def end(self, sides: Sequence[tuple[str, str]]) -> None:
        """Ends the server of these recordings, and removes its folder."""
        with self._lock:
            found = self._running.pop(tuple(sides), None)
            if found:
                _end(found)

    def stop(self) -> None:
        """Ends all of them."""
        for sides in list(self._running):
            self.end(sides)


def available() -> bool:
    """Whether XProf is installed."""
    return importlib.util.find_spec("xprof") is not None


def lay_out(folder: Path, sides: Sequence[tuple[str, str]]) -> list[str]:
    """Puts recordings where XProf looks: ``plugins/profile/<run>/<host>.xplane.pb``; returns the names of the runs.

    A file as it is becomes a link, a gzipped one is unpacked. XProf takes the programs that memory and graph viewer
    need out of the recording itself, and writes them and its caches beside it, in this folder.
    """
    names: list[str] = []
    for label, path in sides:
        recordings = locate(path).recordings
        for number, recording in enumerate(recordings, 1):
            name = _unused(_plain(label if len(recordings) == 1 else f"{label}-{number}"), names)
            names.append(name)
            _place(folder / "plugins" / "profile" / name, recording)
    return names


def _place(home: Path, recording: Recording) -> None:
    home.mkdir(parents=True)
    hosts: list[str] = []
    for file in recording.files:
        if file.is_dir():
            raise UnreadableError(
                "is a reduced run",
                file=recording.name,
                remedy="XProf opens profiles: choose the run that it was made of",
            )
        hosts.append(_unused(_plain(host_name(file)), hosts))
        target = home / f"{hosts[-1]}.xplane.pb"
        with file.open("rb") as stream:
            packed = stream.read(2) == b"\x1f\x8b"
        if packed:
            with opened(file, most_unpacked=MOST_UNPACKED) as (data, _), target.open("wb") as written:
                written.write(data)
            continue
        try:
            target.symlink_to(file.resolve())
        except OSError:  # Windows, where links need rights
            shutil.copyfile(file, target)


def _plain(text: str) -> str:
    return re.sub(r"[^A-Za-z0-9._-]", "_", text).strip(".")[:60] or "run"


def _unused(name: str, taken: Iterable[str]) -> str:
    taken = set(taken)
    return next(each for each in (name, *(f"{name}-{n}" for n in range(2, 10_000))) if each not in taken)


def _start(folder: Path) -> _Server:
    port = free_port()
    log = (folder / "log").open("wb")
    with log:
        process = subprocess.Popen(
            [sys.executable, "-m", "dashboard.xprof", str(folder), str(port)],
            stdin=subprocess.PIPE,  # held open: the server ends when this process does, however it ends
            stdout=log,
            stderr=log,
        )
    return _Server(process, folder, f"http://localhost:{port}/")


def _wait(server: _Server, names: Sequence[str]) -> None:
    """Until it answers and lists the runs."""
    deadline = time.monotonic() + _START_S
    while time.monotonic() < deadline and server.process.poll() is None:
        try:
            if set(names) <= set(_listed(server.url)):
                return
        except (OSError, ValueError):
            pass  # not yet
        time.sleep(0.1)
    raise UsageError(f"XProf did not start: {_last_words(server.folder / 'log')}")


def _listed(url: str) -> list[str]:
    with urllib.request.urlopen(url.rstrip("/") + _RUNS, timeout=5) as answer:
        data = answer.read()
        # It compresses whether that was asked for or not.
        if answer.headers.get("Content-Encoding") in ("gzip", "deflate"):
            data = zlib.decompress(data, wbits=47)
    found = json.loads(data)
    return found if isinstance(found, list) else []


def _last_words(log: Path) -> str:
    try:
        lines = [line for line in log.read_text("utf-8", "replace").splitlines() if line.strip()]
    except OSError:
        lines = []
    return lines[-1][:200] if lines else "it says nothing"


def _end(server: _Server) -> None:
    stop(server.process)
    if server.process.stdin:
        server.process.stdin.close()
    shutil.rmtree(server.folder, ignore_errors=True)


# --- the server's own process ----------------------------------------------------------------------------------------

App = Callable[[dict[str, Any], Any], Iterable[bytes]]


def guarded(app: App) -> App:
    """The pages without what they should not do: answer to other names, read other folders, capture."""

    def answer(environ: dict[str, Any], start_response: Any) -> Iterable[bytes]:
        host = str(environ.get("HTTP_HOST", "")).rpartition(":")[0] or str(environ.get("HTTP_HOST", ""))
        asked = parse_qs(str(environ.get("QUERY_STRING", "")), keep_blank_values=True)
        elsewhere = _NAMES_A_PLACE & asked.keys() or any(".." in value for values in asked.values() for value in values)
        acts = environ.get("REQUEST_METHOD") not in ("GET", "HEAD") or "capture_profile" in environ.get("PATH_INFO", "")
        if host not in ("localhost", "127.0.0.1") or elsewhere or acts:
            start_response("403 Forbidden", [("Content-Type", "text/plain")])
            return [b"Forbidden"]
        return app(environ, start_response)

    return answer


def _serve(folder: str, port: int) -> None:
    from cheroot import wsgi
    from xprof import server

    context = server.TBContext(folder, server.DataProvider(folder), server.TBContext.Flags(False))
    context.hide_capture_profile_button = True
    context.enable_tab_name_label = False
    context.src_prefix = None
    plugin = server.ProfilePluginLoader().load(context)
    running = wsgi.Server(("127.0.0.1", port), guarded(server.make_wsgi_app(plugin)))

    def end_with_the_dashboard() -> None:
        sys.stdin.buffer.read()
        running.stop()

    threading.Thread(target=end_with_the_dashboard, daemon=True).start()
    running.start()


if __name__ == "__main__":
    _serve(sys.argv[1], int(sys.argv[2]))
