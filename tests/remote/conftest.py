"""A web server that misbehaves on request, and a cache of each test's own."""

from __future__ import annotations

import re
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass, field
from hashlib import sha256
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest

import sample_profiles

pytest.importorskip("fsspec")
pytest.importorskip("aiohttp")

PART = 64 << 10


@dataclass
class Web:
    """What the server serves, how it fails, and what it was asked."""

    url: str = ""
    files: dict[str, bytes] = field(default_factory=dict)
    pages: dict[str, str] = field(default_factory=dict)
    headers: dict[str, str] = field(default_factory=dict)
    ranges: bool = True
    etags: bool = True
    sizes: bool = True
    statuses: list[int] = field(default_factory=list)  # of the next GETs; 0 is fine
    cut_after: int | None = None  # bytes of an answer after which the connection is closed
    cuts: int = 10**9  # so many times
    lost_from: int | None = None  # answers of parts that begin here or later are cut at once
    silent_from: int | None = None  # parts that begin here or later get no answer
    pause_s: float = 0.0  # before every answer
    before_get: Callable[[int], None] | None = None  # gets the number of the GET, from 1
    gets: list[tuple[str, str]] = field(default_factory=list)  # (path, Range)

    def begins(self) -> list[int]:
        """Where the parts that were asked for begin."""
        return [int(match[1]) for _, asked in self.gets if (match := re.match(r"bytes=(\d+)-", asked))]


class _Handler(BaseHTTPRequestHandler):
    web: Web

    def log_message(self, *_: Any) -> None:
        pass

    def do_HEAD(self) -> None:
        self._answer(body=False)

    def do_GET(self) -> None:
        self._answer(body=True)

    def _answer(self, body: bool) -> None:
        web, path, asked = self.web, self.path.partition("?")[0], self.headers.get("Range", "")
        if body:
            web.gets.append((path, asked))
            if web.before_get:
                web.before_get(len(web.gets))
        time.sleep(web.pause_s)
        status = web.statuses.pop(0) if web.statuses and body else 0
        data = web.pages[path].encode() if path in web.pages else web.files.get(path)
        if status or data is None:
            self.send_error(status or 404)
            return
        etag = sha256(data).hexdigest()
        begin, end = 0, len(data)
        match = re.fullmatch(r"bytes=(\d+)-(\d+)", asked) if web.ranges else None
        if match:
            begin, end = int(match[1]), min(int(match[2]) + 1, len(data))
        if web.silent_from is not None and begin >= web.silent_from:
            time.sleep(60)
            return
        self.send_response(206 if match else 200)
        if match:
            self.send_header("Content-Range", f"bytes {begin}-{end - 1}/{len(data)}")
        if web.sizes:
            self.send_header("Content-Length", str(end - begin))
        if web.etags:
            self.send_header("ETag", f'"{etag}"')
        self.send_header("Content-Type", "text/html" if path in web.pages else "application/octet-stream")
        for name, value in web.headers.items():
            self.send_header(name, value)
        self.end_headers()
        if not body:
            return
        sent = data[begin:end]
        if web.cut_after is not None and web.cuts > 0 and len(sent) > web.cut_after:
            web.cuts -= 1
            sent = sent[: web.cut_after]
        if web.lost_from is not None and begin >= web.lost_from:
            sent = b""
        with suppress(OSError):
            self.wfile.write(sent)
        self.close_connection = True


@pytest.fixture
def web() -> Iterator[Web]:
    state = Web()
    server = ThreadingHTTPServer(("127.0.0.1", 0), type("Handler", (_Handler,), {"web": state}))
    server.daemon_threads = True
    state.url = f"http://127.0.0.1:{server.server_port}"
    thread = threading.Thread(target=server.serve_forever, args=(0.02,), daemon=True)
    thread.start()
    yield state
    server.shutdown()
    server.server_close()
    thread.join()


@pytest.fixture(autouse=True)
def cache_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Small parts, short waits, and an empty cache."""
    from profiler.xplane import fetch, remote_errors

    monkeypatch.setattr(remote_errors, "FIRST_WAIT_S", 0.01)
    monkeypatch.setattr(fetch, "PART_BYTES", PART)
    monkeypatch.setenv("PROFILER_CACHE", str(tmp_path / "cache"))
    monkeypatch.delenv("PROFILER_CACHE_GB", raising=False)
    return tmp_path / "cache" / "remote"


@pytest.fixture(scope="session")
def profile() -> bytes:
    """A real recording of many parts."""
    return sample_profiles.path("tiny-qwen3/baseline.xplane.pb.gz").read_bytes()


@pytest.fixture
def fetched() -> Callable[[str], tuple[Path, ...]]:
    """Locates and fetches a URL; the files on this machine."""

    def get(url: str) -> tuple[Path, ...]:
        from profiler.xplane.fetch import fetch
        from profiler.xplane.locate import locate

        recordings = locate(url).recordings
        fetch(recordings)
        return tuple(file for recording in recordings for file in recording.files)

    return get
