"""Profiles that browsers send: kept in a private folder while the server runs, each seen by its own session only."""

from __future__ import annotations

import atexit
import gzip
import hashlib
import re
import shutil
import tempfile
import threading
import zlib
from collections import OrderedDict
from pathlib import Path
from typing import Any, BinaryIO

from profiler.errors import UnreadableError

PREFIX = "upload:"
KINDS = (".xplane.pb", ".xplane.pb.gz", ".yml")
MOST_BYTES = 1 << 30  # of all uploads together, or room for four of the largest
MOST_UNPACKED = 10  # times as much may a gzipped one unpack to; profiles pack about ten to one
_CHUNK = 1 << 20
_GZIP_MAGIC = b"\x1f\x8b"
_TEXT = re.compile(r"upload:(?P<digest>[0-9a-f]{16})/(?P<name>[A-Za-z0-9_-][A-Za-z0-9._-]*)")


class Uploads:
    """The uploads of one server process.

    They lie in a folder that only this user may open (mode 700), removed when the process ends; a process that is
    killed leaves it behind. When all together grow too large, the oldest go.
    """

    def __init__(self, most_bytes: int | None = None):
        self._most_bytes = most_bytes
        self._files: OrderedDict[Path, int] = OrderedDict()
        self._lock = threading.RLock()
        self._folder: Path | None = None

    @property
    def most_bytes(self) -> int:
        """Of all of them together."""
        if self._most_bytes is None:
            from streamlit import get_option  # what the server was started with

            self._most_bytes = max(MOST_BYTES, 4 * int(get_option("server.maxUploadSize")) << 20)
        return self._most_bytes

    @property
    def folder(self) -> Path:
        """Made when first needed. The dot keeps it out of a root that it may lie below."""
        with self._lock:
            if self._folder is None:
                self._folder = Path(tempfile.mkdtemp(prefix=".profiler-uploads-")).resolve()
                atexit.register(shutil.rmtree, self._folder, ignore_errors=True)
            return self._folder

    def add(self, session: str, name: str, data: BinaryIO) -> str:
        """Keeps a file and returns the text by which this session names it: ``upload:DIGEST/NAME``.

        Args:
            session: the browser session that sent it; no other can name it.
            name: as the browser gives it; only plain characters are kept.
            data: its bytes, from where it stands.

        Raises:
            UnreadableError: another kind of file, too large, or a gzip file that unpacks to more than profiles do.
        """
        name = _clean(name)
        with self._new() as kept:
            file = Path(kept.name)
            try:
                digest, size = self._copy(data, kept, name)
                kept.flush()
                self._refuse_bomb(file, name)
                place = self._home(session) / digest / name
                with self._lock:
                    place.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
                    file.replace(place)
                    self._files.pop(place, None)
                    self._files[place] = size
                    self._drop_oldest()
            except BaseException:
                file.unlink(missing_ok=True)
                raise
        return f"{PREFIX}{digest}/{name}"

    def path(self, session: str, text: str) -> Path | None:
        """The file that a session calls by this text; None where it is not there, or another's."""
        match = _TEXT.fullmatch(text)
        with self._lock:
            if not match or not self._files:
                return None
            place = self._home(session) / match["digest"] / match["name"]
            return place if place in self._files else None

    def holds(self, file: Path) -> bool:
        """Whether a file is one of these."""
        with self._lock:
            return file in self._files

    def texts(self, session: str) -> tuple[str, ...]:
        """What a session has sent and is still there, oldest first."""
        with self._lock:
            mine = [file for file in self._files if file.parent.parent == self._home(session)]
        return tuple(f"{PREFIX}{file.parent.name}/{file.name}" for file in mine)

    def _new(self) -> Any:
        return tempfile.NamedTemporaryFile(dir=self.folder, delete=False)

    def _home(self, session: str) -> Path:
        return self.folder / hashlib.sha256(session.encode("utf-8", "replace")).hexdigest()[:32]

    def _copy(self, data: BinaryIO, kept: BinaryIO, name: str) -> tuple[str, int]:
        digest, size = hashlib.sha256(), 0
        while chunk := data.read(_CHUNK):
            size += len(chunk)
            if size > self.most_bytes:
                raise UnreadableError(f"is larger than {self.most_bytes >> 20:,} MiB", file=name)
            digest.update(chunk)
            kept.write(chunk)
        return digest.hexdigest()[:16], size

    def _refuse_bomb(self, file: Path, name: str) -> None:
        """Unpacks once and keeps nothing; a damaged file is left to the reader, which says what is wrong with it."""
        limit, unpacked = MOST_UNPACKED * self.most_bytes, 0
        with file.open("rb") as stream:
            if stream.read(2) != _GZIP_MAGIC:
                return
            stream.seek(0)
            reader = gzip.GzipFile(fileobj=stream)
            try:
                while chunk := reader.read(_CHUNK):
                    unpacked += len(chunk)
                    if unpacked > limit:
                        raise UnreadableError(f"unpacks to more than {limit >> 20:,} MiB", file=name)
            except (gzip.BadGzipFile, EOFError, zlib.error):
                return

    def _drop_oldest(self) -> None:
        while sum(self._files.values()) > self.most_bytes:
            file, _ = self._files.popitem(last=False)
            file.unlink(missing_ok=True)


def _clean(name: str) -> str:
    """A file name of plain characters with a known suffix."""
    name = re.split(r"[/\\]", name)[-1]
    suffix = next((kind for kind in sorted(KINDS, key=len, reverse=True) if name.lower().endswith(kind)), None)
    if suffix is None:
        raise UnreadableError(f"is none of {', '.join(KINDS)}", file=re.sub(r"[^\w. -]", "_", name)[:80] or "''")
    stem = re.sub(r"[^A-Za-z0-9._-]", "_", name[: -len(suffix)]).lstrip(".")[:80]
    return (stem or "profile") + suffix
