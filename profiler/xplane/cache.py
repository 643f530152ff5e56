"""The folder that keeps what was fetched: one folder per recording and version, readable by its owner alone.

``PROFILER_CACHE`` names another place, ``PROFILER_CACHE_GB`` another size (20 GB). What was used longest ago goes
first; what was used within the last minutes stays, whatever the size: somebody may be about to open it.
"""

from __future__ import annotations

import errno
import hashlib
import math
import os
import re
import shutil
import stat
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING

from profiler.errors import UnreadableError, UsageError
from profiler.xplane.urls import unsigned

if TYPE_CHECKING:
    from profiler.xplane.remote import RemoteFile

DEFAULT_GB = 20.0
IN_USE_S = 600
POLL_S = 0.1
_FOLDER = re.compile(r"[0-9a-f]{40}")
_NO_LOCKS = (errno.ENOSYS, errno.ENOTSUP, errno.ENOLCK)  # of file systems without them, as Lustre often is
_LONGEST = 120  # characters of a file's name


def root() -> Path:
    """Where everything lies; it need not exist."""
    given = os.environ.get("PROFILER_CACHE")
    if given:
        return Path(given).expanduser().absolute() / "remote"
    if os.environ.get("XDG_CACHE_HOME"):
        base = Path(os.environ["XDG_CACHE_HOME"])
    elif sys.platform == "darwin":
        base = Path.home() / "Library" / "Caches"
    elif sys.platform == "win32":
        base = Path(os.environ.get("LOCALAPPDATA") or Path.home() / "AppData" / "Local")
    else:
        base = Path.home() / ".cache"
    return base.absolute() / "profiler" / "remote"


def places(files: Sequence[RemoteFile]) -> tuple[Path, ...]:
    """Where the files of one recording belong, in a folder of this very version of them; nothing is made.

    No name of a store becomes one on the disk as it is: of it stay letters, digits and ``._=@+-``.
    """
    told = "\n".join(f"{unsigned(file.url)}\0{file.size}\0{file.version}" for file in files)
    folder = root() / hashlib.sha256(told.encode("utf-8", "surrogatepass")).hexdigest()[:40]
    names: list[str] = []
    for file in files:
        name = re.sub(r"[^A-Za-z0-9._=@+-]", "_", file.name)[-_LONGEST:].lstrip(".") or "_"
        names.append(name if name not in names else f"{len(names)}-{name}")
    return tuple(folder / name for name in names)


def make_private() -> None:
    """Makes the folder.

    Raises:
        UnreadableError: it cannot be made, or others could put files there.
    """
    folder = root()
    try:
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        found = folder.stat()
    except OSError as error:
        raise _unusable(f"cannot be made: {error.strerror or error}") from error
    if hasattr(os, "getuid") and (found.st_uid != os.getuid() or stat.S_IMODE(found.st_mode) & 0o022):
        raise _unusable("belongs to others, or others may write to it")


def _unusable(what: str) -> UnreadableError:
    return UnreadableError(what, file=root(), remedy="set PROFILER_CACHE to a folder of your own")


def used(folder: Path) -> None:
    """Notes that a recording was wanted just now."""
    lock = lock_file(folder)
    with suppress(OSError):
        os.close(os.open(lock, os.O_WRONLY | os.O_CREAT, 0o600))
        os.utime(lock)


@contextmanager
def locked(folder: Path, *, wait: bool = True) -> Iterator[bool]:
    """Holds a recording against other processes and threads; gives whether it is held (always, with ``wait``)."""
    descriptor = _held(lock_file(folder), wait)
    try:
        yield descriptor is not None
    finally:
        if descriptor is not None:
            os.close(descriptor)


def make_room(needed: int, keep: set[Path]) -> None:
    """Removes what was used longest ago until ``needed`` bytes more fit.

    Args:
        needed: bytes to come.
        keep: folders that stay.

    Raises:
        UnreadableError: the disk is too full all the same.
        UsageError: PROFILER_CACHE_GB is no size.
    """
    limit = _limit()
    found = [(_last_use(each), _size(each), each) for each in root().iterdir() if _FOLDER.fullmatch(each.name)]
    total = sum(size for _, size, _ in found) + needed
    for last, size, folder in sorted(found):
        if total <= limit:
            break
        if folder in keep or time.time() - last < IN_USE_S:
            continue
        with locked(folder, wait=False) as held:
            if held:
                shutil.rmtree(folder, ignore_errors=True)
                with suppress(OSError):
                    lock_file(folder).unlink()
                total -= size
    free = shutil.disk_usage(root()).free
    if free < needed:
        raise _unusable(f"has {free / 1e9:.1f} GB of room on its disk, and {needed / 1e9:.1f} GB are to come")


def _limit() -> float:
    given = os.environ.get("PROFILER_CACHE_GB")
    try:
        size = float(given) if given else DEFAULT_GB
    except ValueError:
        size = math.nan
    if not size >= 0:
        raise UsageError("is not a size in GB", file=f"PROFILER_CACHE_GB={given}")
    return size * 1e9


def lock_file(folder: Path) -> Path:
    """The file beside a folder by which it is held."""
    return folder.with_name(f"{folder.name}.lock")


def _last_use(folder: Path) -> float:
    try:
        return lock_file(folder).stat().st_mtime
    except OSError:
        return 0.0


def _size(folder: Path) -> int:
    total = 0
    with suppress(OSError):
        for file in folder.iterdir():
            total += file.lstat().st_size
    return total


def _held(lock: Path, wait: bool) -> int | None:
    """A descriptor that holds the lock, None where somebody else does."""
    while True:
        descriptor = os.open(lock, os.O_RDWR | os.O_CREAT | getattr(os, "O_NOFOLLOW", 0), 0o600)
        if _taken(descriptor):
            # The one before may have removed what was opened here: then it holds nobody off.
            with suppress(OSError):
                if os.path.samestat(os.fstat(descriptor), os.stat(lock)):  # noqa: PTH116
                    return descriptor
        os.close(descriptor)
        if not wait:
            return None
        time.sleep(POLL_S)


def _taken(descriptor: int) -> bool:
    try:
        if sys.platform == "win32":
            import msvcrt

            msvcrt.locking(descriptor, msvcrt.LK_NBLCK, 1)
        else:
            import fcntl

            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except (BlockingIOError, PermissionError):
        return False
    except OSError as error:
        return error.errno in _NO_LOCKS  # nobody can be held off there
    return True
