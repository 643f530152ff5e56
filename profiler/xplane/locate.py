"""From what a user typed to the files of one recording.

A PATH is an .xplane.pb file, the same gzipped, a run folder (one file per host), a log folder (its latest run), a
reduced run, any of them as ``label=PATH``, or several recordings of one side joined by commas.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from profiler.errors import UnreadableError
from profiler.xplane.urls import is_remote, shown_argument

if TYPE_CHECKING:
    from profiler.xplane.remote import RemoteFile

SUFFIXES = (".xplane.pb", ".xplane.pb.gz")
MANIFEST = "manifest.json"
REDUCED = "profiler reduced run"  # the format that the manifest names, in its first bytes
_LABEL = re.compile(r"(?P<label>[^=/\\:]+)=(?P<path>.+)", re.DOTALL)
RUN_NAME = re.compile(r"\d{4}_\d{2}_\d{2}[_-]\d{2}_\d{2}_\d{2}.*")


@dataclass(frozen=True, slots=True)
class Recording:
    """The files of one run, one per host; of a reduced run its folder alone.

    Attributes:
        name: how it is called.
        files: on this machine; those of a URL exist once profiler.xplane.fetch has fetched them.
        remote: what each is in the store; empty for what lies on this machine.
    """

    name: str
    files: tuple[Path, ...]
    remote: tuple[RemoteFile, ...] = ()

    @property
    def names(self) -> tuple[str, ...]:
        """The files as people know them: their paths, or URLs without secrets."""
        return tuple(file.shown for file in self.remote) or tuple(map(str, self.files))


@dataclass(frozen=True, slots=True)
class Side:
    """One side of a comparison: one recording, or several of the same configuration; ``named`` by who gave it."""

    label: str
    recordings: tuple[Recording, ...]
    named: bool = False


def locate(argument: str) -> Side:
    """The recordings that a PATH argument names.

    Args:
        argument: see the module's docstring. What exists on disk as it stands is never split at "=" or ",".

    Raises:
        UnreadableError: nothing is there, or what is there holds no .xplane.pb file.
    """
    label, parts = split(argument)
    recordings = tuple(_remote(part) if is_remote(part) else _recording(_expanded(part)) for part in parts)
    return Side(label or recordings[0].name, recordings, named=bool(label))


def split(argument: str) -> tuple[str | None, list[str]]:
    """(label, paths and URLs) of a PATH argument.

    A comma in a URL belongs to it, unless what follows is a URL or exists on disk.

    Raises:
        UnreadableError: there is no path.
    """
    label, rest = None, argument
    match = _LABEL.fullmatch(argument)
    if match and not _exists(argument):
        label, rest = match["label"], match["path"]
    parts: list[str] = [rest] if rest and _exists(rest) else []
    for part in rest.split(",") if not parts else ():
        if parts and is_remote(parts[-1]) and part and not is_remote(part) and not _exists(part):
            parts[-1] += f",{part}"
        elif part:
            parts.append(part)
    if not parts:
        raise UnreadableError("names no file", file=shown_argument(argument) or "''")
    return label, parts


def labels(arguments: Sequence[str | Side]) -> list[str]:
    """The labels of sides that are compared: those of one name get the nearest folder that tells them apart before it.

    Raises:
        UnreadableError: as ``locate``.
    """
    sides = [locate(argument) if isinstance(argument, str) else argument for argument in arguments]
    folders = [_folders(side) for side in sides]
    found = []
    for side, own in zip(sides, folders, strict=True):
        alike = [each for other, each in zip(sides, folders, strict=True) if other.label == side.label and each != own]
        at = next((k for k, name in enumerate(own) if alike and all(each[k : k + 1] != [name] for each in alike)), None)
        found.append(side.label if at is None or side.named else f"{own[at]}/{side.label}")
    return found


def _folders(side: Side) -> list[str]:
    """The names of the folders that a side lies in, innermost first."""
    recording = side.recordings[0]
    inner = Path(recording.remote[0].shown) if recording.remote else recording.files[0].absolute()
    names = [parent.name for parent in inner.parents if parent.name]
    if recording.name != host_name(inner) and recording.name in names:
        names = names[names.index(recording.name) + 1 :]
    return names


def _exists(text: str) -> bool:
    """Whether a path exists; a text that cannot even be a path, such as many paths joined by commas, does not."""
    try:
        return Path(text).exists()
    except (OSError, ValueError):
        return False


def _expanded(text: str) -> Path:
    try:
        return Path(text).expanduser()
    except RuntimeError as error:
        raise UnreadableError("no such user", file=text) from error


def host_name(file: Path) -> str:
    """The host that wrote a file, as its name says: ``<host>.xplane.pb``."""
    for suffix in reversed(SUFFIXES):
        if file.name.endswith(suffix):
            return file.name[: -len(suffix)]
    return file.stem


def is_reduced(path: Path) -> bool:
    """Whether a path is what ``profiler reduce`` wrote; see profiler.reduced."""
    try:
        with (path / MANIFEST).open("rb") as file:
            return REDUCED.encode() in file.read(64)
    except (OSError, ValueError):
        return False


def _remote(url: str) -> Recording:
    from profiler.xplane.cache import places
    from profiler.xplane.remote import find

    name, files = find(url)
    return Recording(name, places(files), files)


def _recording(path: Path) -> Recording:
    try:
        if is_reduced(path):
            return Recording(path.stem, (path,))
        if path.is_dir():
            return _run(path)
        if not path.exists():
            raise UnreadableError("no such file or folder", file=path)
        if not path.is_file():
            raise UnreadableError("not a file", file=path)
    except OSError as error:
        raise UnreadableError(f"cannot be read: {error.strerror or error}", file=path) from error
    except ValueError as error:
        raise UnreadableError(f"is no path: {error}", file=repr(str(path))) from error
    return Recording(host_name(path), (path,))


def _run(folder: Path) -> Recording:
    """A run folder as it is; of a log folder, the latest run below plugins/profile."""
    files = _profiles(folder)
    if files:
        return Recording(folder.name, files)
    runs = {file.parent for suffix in SUFFIXES for file in folder.glob(f"**/plugins/profile/*/*{suffix}")}
    if folder.name == "profile" or not runs:
        runs |= {file.parent for suffix in SUFFIXES for file in folder.glob(f"*/*{suffix}")}
    if not runs:
        raise UnreadableError(
            "holds no .xplane.pb file",
            file=folder,
            remedy="give a file, a run folder, or a log folder above plugins/profile",
        )
    latest = max(runs, key=_age_key)
    # Runs are named by their time; the log folder's own name says more.
    return Recording(folder.name or latest.name, _profiles(latest))


def _age_key(run: Path) -> tuple[str, float]:
    """Runs named by their start time compare by name (a copy resets file times); others by their newest file."""
    stamped = run.name if RUN_NAME.fullmatch(run.name) else ""
    return stamped, max(file.stat().st_mtime for file in _profiles(run))


def _profiles(folder: Path) -> tuple[Path, ...]:
    return tuple(sorted(file for file in folder.iterdir() if file.name.endswith(SUFFIXES) and file.is_file()))
