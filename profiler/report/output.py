"""Where output goes: stdout or a file that appears whole or not at all, and how much a terminal can show."""

from __future__ import annotations

import contextlib
import io
import os
import stat
import sys
import time
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TextIO

from profiler.errors import UsageError

PLAIN_WIDTH = 100
NARROWEST = 60

_EXTENSIONS = {
    ".txt": "text",
    ".json": "json",
    ".md": "markdown",
    ".markdown": "markdown",
    ".csv": "csv",
    ".parquet": "parquet",
    ".html": "html",
    ".htm": "html",
}


@dataclass(frozen=True, slots=True)
class Style:
    """What the reader's screen can show; the default is what a pipe or a file gets."""

    width: int = PLAIN_WIDTH
    color: bool = False
    unicode: bool = True


@dataclass(frozen=True, slots=True)
class Target:
    """A checked destination: ``path`` is None for stdout."""

    format: str
    path: Path | None
    style: Style

    def write(self, data: bytes | Iterable[bytes]) -> None:
        """Writes ``data``, or its pieces, completely, or raises and leaves the destination as it was."""
        if self.path is not None:
            write_whole(self.path, data)
        else:
            write_stdout(data if isinstance(data, bytes) else b"".join(data))


def stdout() -> TextIO:
    """The process's stdout.

    Raises:
        UsageError: it is closed (``>&-``), for which Python has None.
    """
    stream: TextIO | None = sys.stdout
    if stream is None or getattr(stream, "closed", False):
        raise UsageError("is closed", file="stdout", remedy="redirect it, or name a file with -o where there is one")
    return stream


def write_stdout(data: bytes) -> None:
    """Writes all of ``data`` to stdout.

    Raises:
        BrokenPipeError: whoever read it went away.
        UsageError: stdout is closed or takes no more, as on a full disk.
    """
    stream = stdout()
    try:
        write_all(stream, data)
    except BrokenPipeError:
        raise
    except OSError as error:
        raise UsageError(f"cannot be written: {error.strerror or error}", file="stdout") from error


def write_all(stream: TextIO, data: bytes) -> None:
    """Writes ``data`` to the bytes under a stream, past its buffer: nothing is left that could fail at exit.

    What lies under an unbuffered stream may take a part of what it is given and says how much; a full non-blocking
    pipe takes nothing and is tried again.
    """
    stream.flush()
    buffer = getattr(stream, "buffer", None)
    if buffer is None:  # a replaced stdout without bytes underneath, such as a notebook's
        stream.write(data.decode("utf-8", "replace"))
        stream.flush()
        return
    raw = getattr(buffer, "raw", buffer)
    if not isinstance(raw, io.RawIOBase):
        buffer.write(data)
        buffer.flush()
        return
    left = memoryview(data)
    while left:
        taken = raw.write(left)
        if not taken:
            time.sleep(0.01)
        left = left[taken or 0 :]


def target(format_name: str | None, path: Path | None, allowed: tuple[str, ...]) -> Target:
    """Checks a destination before any work is done.

    Args:
        format_name: what ``--format`` says, if anything.
        path: what ``-o`` says, if anything.
        allowed: the formats that the command knows.

    Raises:
        UsageError: the folder is missing, the path is a folder or cannot be one of a file, the extension asks for an
            unknown format, or stdout is needed and closed.
    """
    if path is not None:
        _check_path(path)
    if format_name is None:
        format_name = _format_of(path, allowed)
    if path is not None:
        return Target(format_name, path, Style())
    stream = stdout()
    if format_name == "parquet" and stream.isatty():
        raise UsageError("parquet is binary", remedy="add -o FILE.parquet or redirect stdout")
    return Target(format_name, None, terminal_style(stream, os.environ))


def _check_path(path: Path) -> None:
    try:
        if path.is_dir():
            raise UsageError("is a folder", file=path, remedy="name a file in it")
        if not path.parent.is_dir():
            raise UsageError("the folder to write into does not exist", file=path, remedy=f"mkdir -p {path.parent}")
        path.exists()  # what is_dir swallows on some versions of Python: a name too long, a folder closed to us
        path.lstat()
    except FileNotFoundError:
        pass
    except (OSError, ValueError) as error:
        raise UsageError(f"cannot be written: {_reason(error)}", file=path) from error


def _reason(error: OSError | ValueError) -> str:
    return (error.strerror if isinstance(error, OSError) else None) or str(error)


def protect(outputs: Sequence[Path], inputs: Iterable[Path]) -> None:
    """Checks that no output is an input or in a folder that is one, by whatever name, and no two outputs are one file.

    Raises:
        UsageError: one of them is.
    """
    # A device or a pipe holds nothing that could be overwritten.
    outputs = [path for path in outputs if path.is_file() or not path.exists()]
    for index, path in enumerate(outputs):
        if any(_same(path, other) for other in outputs[:index]):
            raise UsageError("is named for two outputs", file=path, remedy="name two files")
    for source in inputs if outputs else ():
        for path in outputs:
            if _same(path, source) or (source.is_dir() and _inside(path, source)):
                raise UsageError("is an input and would be overwritten", file=path, remedy="name another file")


def _same(one: Path, other: Path) -> bool:
    with contextlib.suppress(OSError, ValueError):
        if one.samefile(other):
            return True
    first, second = (os.path.normcase(os.path.realpath(path)) for path in (one, other))
    return first == second


def _inside(path: Path, folder: Path) -> bool:
    return Path(os.path.realpath(path)).is_relative_to(os.path.realpath(folder))


def _format_of(path: Path | None, allowed: tuple[str, ...]) -> str:
    if path is None or not path.suffix:
        return "text"
    found = _EXTENSIONS.get(path.suffix.lower())
    if found in allowed:
        return found
    remedy = "use --html FILE of the diff command" if found == "html" else f"add --format {'|'.join(allowed)}"
    raise UsageError(f"cannot write {path.suffix!r} files", file=path, remedy=remedy)


def terminal_style(stream: TextIO, environ: Mapping[str, str]) -> Style:
    """Width, colour and character set for a stream; plain when piped, and with NO_COLOR or TERM=dumb."""
    encoding = (getattr(stream, "encoding", None) or "utf-8").lower().replace("-", "").replace("_", "")
    unicode = encoding.startswith("utf")
    if not stream.isatty():
        return Style(unicode=unicode)
    color = not environ.get("NO_COLOR") and environ.get("TERM") != "dumb"
    columns = _columns(environ.get("COLUMNS"))
    if not columns:
        with contextlib.suppress(OSError, ValueError):
            columns = os.get_terminal_size(stream.fileno()).columns
    # A terminal that does not know its size says 0.
    return Style(width=max(NARROWEST, min(columns or PLAIN_WIDTH, PLAIN_WIDTH)), color=color, unicode=unicode)


def _columns(text: str | None) -> int:
    """What COLUMNS says, 0 where it says nothing that makes sense."""
    try:
        return max(int(text or 0), 0)
    except ValueError:
        return 0


def write_whole(path: Path, data: bytes | Iterable[bytes]) -> None:
    """Writes a file so that it appears complete or not at all: a temporary beside it, then a rename.

    A file that was there keeps its permissions. Of pieces only one is held at a time.

    Raises:
        UsageError: the file cannot be written.
    """
    pieces = (data,) if isinstance(data, bytes) else data
    try:
        if path.exists() and not path.is_file():  # /dev/stdout, a fifo: nothing to rename over
            with path.open("wb") as special:
                special.writelines(pieces)
            return
        real = Path(os.path.realpath(path))  # a link stays a link: what it points to is replaced
        # Not made of the file's name, which may be as long as a name can be.
        temporary = real.with_name(f".profiler-{os.getpid()}-{os.urandom(4).hex()}.part")
        try:
            with temporary.open("xb") as file:
                file.writelines(pieces)
                file.flush()
                os.fsync(file.fileno())
            with contextlib.suppress(FileNotFoundError):
                temporary.chmod(stat.S_IMODE(real.stat().st_mode))
            temporary.replace(real)
        except BaseException:
            with contextlib.suppress(OSError):
                temporary.unlink()
            raise
    except BrokenPipeError:
        raise
    except (OSError, ValueError) as error:
        raise UsageError(f"cannot be written: {_reason(error)}", file=path) from error
