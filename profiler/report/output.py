"""Where output goes: stdout or a file that appears whole or not at all, and how much a terminal can show."""

from __future__ import annotations

import contextlib
import os
import sys
from collections.abc import Mapping
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

    def write(self, data: bytes) -> None:
        """Writes ``data`` completely, or raises and leaves the destination as it was."""
        if self.path is not None:
            write_whole(self.path, data)
            return
        stream = getattr(sys.stdout, "buffer", None)
        if stream is None:  # a replaced stdout without bytes underneath, such as a notebook's
            sys.stdout.write(data.decode("utf-8", "replace"))
        else:
            sys.stdout.flush()
            stream.write(data)
        sys.stdout.flush()


def target(format_name: str | None, path: Path | None, allowed: tuple[str, ...]) -> Target:
    """Checks a destination before any work is done.

    Args:
        format_name: what ``--format`` says, if anything.
        path: what ``-o`` says, if anything.
        allowed: the formats that the command knows.

    Raises:
        UsageError: the folder is missing, the path is a folder, or the extension asks for an unknown format.
    """
    if path is not None:
        if path.is_dir():
            raise UsageError("is a folder", file=path, remedy="name a file in it")
        if not path.parent.is_dir():
            raise UsageError("the folder to write into does not exist", file=path, remedy=f"mkdir -p {path.parent}")
    if format_name is None:
        format_name = _format_of(path, allowed)
    if format_name == "parquet" and path is None and sys.stdout.isatty():
        raise UsageError("parquet is binary", remedy="add -o FILE.parquet or redirect stdout")
    style = Style() if path is not None else terminal_style(sys.stdout, os.environ)
    return Target(format_name, path, style)


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
    try:
        columns = int(environ.get("COLUMNS") or os.get_terminal_size(stream.fileno()).columns)
    except (OSError, ValueError):
        columns = PLAIN_WIDTH
    return Style(width=max(NARROWEST, min(columns, PLAIN_WIDTH)), color=color, unicode=unicode)


def write_whole(path: Path, data: bytes) -> None:
    """Writes a file so that it appears complete or not at all: a temporary beside it, then a rename.

    Raises:
        UsageError: the file cannot be written.
    """
    real = Path(os.path.realpath(path))  # a link stays a link: what it points to is replaced
    try:
        if real.exists() and not real.is_file():  # /dev/stdout, a fifo: nothing to rename over
            with real.open("wb") as special:
                special.write(data)
            return
        temporary = real.with_name(f".{real.name[:200]}.{os.getpid()}.part")
        try:
            with temporary.open("xb") as file:
                file.write(data)
                file.flush()
                os.fsync(file.fileno())
            temporary.replace(real)
        except BaseException:
            with contextlib.suppress(OSError):
                temporary.unlink()
            raise
    except BrokenPipeError:
        raise
    except OSError as error:
        raise UsageError(f"cannot be written: {error.strerror or error}", file=path) from error
