"""Brings remote recordings here: in parts beside each other, from where a try was interrupted, whole or not at all.

    fetch(recordings)   # afterwards the files of each exist

Parts are written in their order, so the length of a partial file says how far it is. It lies in a folder of its
object's version: what changed meanwhile begins anew, and is looked up once more at the end, so that no file is made of
two versions. An object that nothing but its size identifies comes in one answer, every time.
"""

from __future__ import annotations

import hashlib
import os
import sys
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass
from operator import itemgetter
from pathlib import Path
from typing import TYPE_CHECKING, Any

from profiler.errors import UnreadableError
from profiler.xplane import cache
from profiler.xplane.remote import PIECE_BYTES, RemoteFile, is_web, version_now
from profiler.xplane.remote_errors import ATTEMPTS, Short, attempt
from profiler.xplane.workers import Workers

if TYPE_CHECKING:
    from profiler.xplane.locate import Recording

PART_BYTES = 8 << 20
AHEAD = 8  # parts that are asked for while one is written

Advance = Callable[[int], None]


def fetch(recordings: Iterable[Recording]) -> None:
    """Fetches what of remote recordings is not here yet, with a progress display where stderr is a terminal.

    Raises:
        UnreadableError: an object cannot be fetched, changed meanwhile, or does not fit on the disk.
    """
    wanted = {each.files[0].parent: each for each in recordings if each.remote}
    if not wanted:
        return
    cache.make_private()
    try:
        with ExitStack() as held:
            for folder, recording in sorted(
                wanted.items(), key=itemgetter(0)
            ):  # in one order: nobody waits for one that waits for him
                cache.used(folder)
                if _missing(recording):
                    held.enter_context(cache.locked(folder))
            loads = [load for recording in wanted.values() for load in _missing(recording)]
            here = sum(load.here for load in loads)
            total = sum(load.file.size or 0 for load in loads)
            if loads:
                cache.make_room(total - here, set(wanted))
                with _progress(len(loads), total, here) as advance:
                    _fetch_all(loads, advance)
            for folder in wanted:
                cache.used(folder)
    except OSError as error:
        what = f"cannot be written: {error.strerror or error}"
        raise UnreadableError(what, file=cache.root(), remedy="PROFILER_CACHE names another folder") from error


def _missing(recording: Recording) -> list[_Load]:
    loads = [_Load(file, place) for file, place in zip(recording.remote, recording.files, strict=True)]
    return [load for load in loads if not load.whole]


@dataclass(slots=True)
class _Load:
    """One object on its way to its place."""

    file: RemoteFile
    place: Path
    complete: bool = False  # all of it is in the partial file

    @property
    def part(self) -> Path:
        return self.place.with_name(f"{self.place.name}.part")

    @property
    def whole(self) -> bool:
        """Whether it is here: one without a version may be another by now."""
        if not self.file.version:
            return False
        with suppress(OSError):
            return self.file.size in (None, self.place.stat().st_size)
        return False

    @property
    def here(self) -> int:
        """Bytes that an interrupted try has left."""
        with suppress(OSError):
            return min(self.part.stat().st_size, self.file.size or 0) if self.file.ranged else 0
        return 0

    def ranges(self) -> Iterator[tuple[int, int] | None]:
        """The parts that are still to come; None for all of it in one answer."""
        if not self.file.ranged:
            yield None
            return
        size = self.file.size or 0
        yield from ((at, min(at + PART_BYTES, size)) for at in range(self.here, size, PART_BYTES))
        if self.here == size:
            yield size, size

    def read(self, begin: int, end: int) -> bytes | None:
        """A part; None where the server gives nothing but the whole."""
        return attempt(self._range, begin, end, url=self.file.url)

    def _range(self, begin: int, end: int) -> bytes | None:
        if begin == end:
            return b""
        if is_web(self.file.shown):
            # Unlike cat_file it looks whether the answer is the part that was asked for, and reads no more than that.
            try:
                with self.file.fs.open(
                    self.file.path, "rb", size=self.file.size, block_size=PART_BYTES, cache_type="none"
                ) as opened:
                    opened.seek(begin)
                    data: bytes = opened.read(end - begin)
            except ValueError:
                return None
        else:
            data = self.file.fs.cat_file(self.file.path, start=begin, end=end)
        if len(data) != end - begin:
            raise Short
        return data

    def write(self, data: bytes) -> None:
        with _opened(self.part, os.O_APPEND) as file:
            _write(file, data)

    def stream(self, advance: Advance) -> None:
        """All of it in one answer."""
        taken = 0
        try:
            with (
                self.file.fs.open(self.file.path, "rb", block_size=0) as source,
                _opened(self.part, os.O_TRUNC) as file,
            ):
                while data := source.read(PIECE_BYTES):
                    _write(file, data)
                    taken += len(data)
                    advance(len(data))
            if self.file.size not in (None, taken):
                raise Short
        except BaseException:
            advance(-taken)
            self.drop()
            raise

    def changed(self, tries: int = ATTEMPTS) -> bool:
        """Whether the object is not the one any more that was looked up."""
        return bool(self.file.version) and version_now(self.file, tries) != (self.file.size, self.file.version)

    def refuse_changed(self, changed: bool) -> None:
        if changed:
            self.drop()
            raise UnreadableError(
                "changed while it was read", file=self.file.shown, remedy="try again when it is written to the end"
            )

    def finish(self, changed: bool) -> None:
        """Puts it in its place when it is what it should be."""
        self.refuse_changed(changed)
        size = self.part.stat().st_size
        if self.file.size not in (None, size):
            self.drop()
            raise UnreadableError(f"came with {size:,} bytes instead of {self.file.size:,}", file=self.file.shown)
        with _opened(self.part, 0) as file:
            os.fsync(file.fileno())
        if self.file.md5 and self._digest() != self.file.md5:
            self.drop()
            raise UnreadableError("came damaged: its checksum differs", file=self.file.shown, remedy="try again")
        self.part.replace(self.place)

    def drop(self) -> None:
        self.part.unlink(missing_ok=True)

    def _digest(self) -> bytes:
        with self.part.open("rb") as file:
            return hashlib.file_digest(file, lambda: hashlib.md5(usedforsecurity=False)).digest()


def _opened(path: Path, flags: int) -> Any:
    path.parent.mkdir(mode=0o700, exist_ok=True)
    flags |= os.O_WRONLY | os.O_CREAT | getattr(os, "O_NOFOLLOW", 0) | getattr(os, "O_BINARY", 0)
    return os.fdopen(os.open(path, flags, 0o600), "wb", buffering=0)


def _write(file: Any, data: bytes) -> None:
    """All of it, past any buffer: what an interruption leaves is as long as the file says."""
    left = memoryview(data)
    while left:
        left = left[file.write(left) :]


def _fetch_all(loads: list[_Load], advance: Advance) -> None:
    """One writer; what is to come is asked for across the files, so that many small ones do not wait either."""
    with Workers.of(load.file.fs for load in loads) as workers:
        parts: deque[tuple[_Load, tuple[int, int] | None, Future[bytes | None] | None]] = deque()
        checks: deque[tuple[_Load, Future[bool]]] = deque()
        jobs = ((load, each) for load in loads for each in load.ranges())
        while True:
            while len(parts) < AHEAD and (job := next(jobs, None)):
                load, each = job
                parts.append((load, each, workers.start(load.read, *each) if each else None))
            while checks and (checks[0][1].done() or not parts):
                load, check = checks.popleft()
                load.finish(workers.result(check))
            if not parts:
                return
            load, each, part = parts.popleft()
            if load.complete:
                continue
            try:
                _take(load, each, workers.result(part) if part else None, advance)
            except UnreadableError:
                load.refuse_changed(load.changed(tries=1))  # says what the matter is better than that a part fails
                raise
            if load.complete:
                checks.append((load, workers.start(load.changed)))


def _take(load: _Load, each: tuple[int, int] | None, data: bytes | None, advance: Advance) -> None:
    """Writes one part, or all where parts are not to be had."""
    if data is None:
        advance(-load.here)
        attempt(load.stream, advance, url=load.file.url)
    else:
        load.write(data)
        advance(len(data))
    load.complete = each is None or data is None or each[1] == load.file.size


@contextmanager
def _progress(files: int, total: int, here: int) -> Iterator[Advance]:
    """A bar on stderr; nothing where nobody looks. Says no name: those of a store are untrusted."""
    stream = sys.stderr
    if stream is None or not stream.isatty():
        yield lambda _: None
        return
    from rich.console import Console
    from rich.errors import LiveError
    from rich.progress import BarColumn, DownloadColumn, Progress, TextColumn, TimeRemainingColumn, TransferSpeedColumn

    columns = (TextColumn("{task.description}"), BarColumn(), DownloadColumn(), TransferSpeedColumn())
    bar = Progress(*columns, TimeRemainingColumn(), console=Console(stderr=True), transient=True)
    task = bar.add_task(f"fetching {files} file{'s' * (files > 1)}", total=total or None, completed=here)
    try:
        bar.start()
    except LiveError:  # another one runs
        yield lambda _: None
        return
    try:
        yield lambda count: bar.advance(task, count)
    finally:
        bar.stop()
