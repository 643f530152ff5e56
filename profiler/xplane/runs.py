"""The recordings below a folder, and what each says about itself, without reducing any.

    found = runs(Path("logs"))
    facts(found.runs[0]).model

A folder below ``plugins/profile``, or one named by its time, is one run with a file per host, and so is a reduced run.
Anywhere else every profile is a run of its own: the two sides of a pair often lie in one folder.
"""

from __future__ import annotations

import json
import math
import os
import re
import stat
from collections import deque
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from profiler import hardware
from profiler.errors import ProfilerError
from profiler.results import Note
from profiler.runinfo import flat, number
from profiler.xplane import scan
from profiler.xplane.locate import MANIFEST, RUN_NAME, SUFFIXES, host_name, is_reduced
from profiler.xplane.read import opened, plane_stats

MOST_RUNS = 10_000
MOST_ENTRIES = 500_000  # files and folders that are looked at: a home folder must not take minutes
MOST_DEPTH = 12
MOST_UNPACKED = 512 << 20  # bytes of a gzipped profile that are unpacked for its facts
MOST_TEXT = 200  # characters of a fact
REDUCED_SUFFIX = ".parquet"  # of the folder of a reduced run, as a rule
_STAMP = re.compile(r"(\d{4})_(\d{2})_(\d{2})[_-](\d{2})_(\d{2})_(\d{2})")
_DEVICE_PLANE = re.compile(r"/device:(TPU|GPU):\d+")


@dataclass(frozen=True, slots=True)
class Run:
    """One recording on the disk.

    Attributes:
        path: a PATH argument: the file, or the folder with the files of all hosts.
        name: where it lies below the folder that was searched, without ``plugins/profile`` and without suffix.
        started: by the folder's name where that is a time stamp (local time), else when the newest file was written.
        files: one per host; of a reduced run its folder alone.
        bytes: size of the files as they are on the disk.
        modified_ns: when the newest file was written, ns since 1970.
        stamped: whether ``started`` is a time stamp.
    """

    path: str
    name: str
    started: datetime
    files: tuple[Path, ...]
    bytes: int
    modified_ns: int
    stamped: bool = False


@dataclass(frozen=True, slots=True)
class Runs:
    """What a search found, newest first; ``notes`` say what was left out."""

    runs: tuple[Run, ...]
    notes: tuple[Note, ...] = ()


@dataclass(frozen=True, slots=True)
class RunFacts:
    """What a run says about itself. None is what it does not say.

    Attributes:
        kind: "recorded" or "compiled"; None where the file cannot be read.
        chip: the product or the device's type, "CPU" where there is no device plane.
        devices: JAX devices of the mesh, else the device planes of a run of one file.
        batch: sequences per device and step. ``sequence``: tokens per sequence.
        mesh: size of every axis.
        commit: git commit of the code that ran. ``started``: when the recording began.
        config: all keys, nested ones with dots.
        error: why the file cannot be read.
    """

    kind: str | None = None
    model: str | None = None
    chip: str | None = None
    topology: str | None = None
    devices: int | None = None
    hosts: int | None = None
    batch: float | None = None
    sequence: float | None = None
    mesh: Mapping[str, int] = field(default_factory=dict)
    commit: str | None = None
    started: datetime | None = None
    versions: Mapping[str, str] = field(default_factory=dict)
    config: Mapping[str, Any] = field(default_factory=dict)
    error: str | None = None


# --- the search ----------------------------------------------------------------------------------------------------


def runs(folder: Path, *, most: int = MOST_RUNS, entries: int = MOST_ENTRIES, depth: int = MOST_DEPTH) -> Runs:
    """Every recording below a folder (or the one that ``folder`` is), newest first.

    Symbolic links and folders whose name begins with a dot are not followed. Names that are no text are left out.

    Args:
        folder: where to search.
        most: runs to find at most; ``entries``: files and folders to look at; ``depth``: levels of folders.
    """
    folder = folder.absolute()
    search = _Search(folder, entries)
    found: list[Run] = []
    for here, files in search.folders(depth):
        found += _runs_of(folder, here, files)
        if len(found) >= most:
            search.stopped = f"the search stopped at {most:,} runs: there may be more, and newer ones"
            break
    found.sort(key=lambda run: (run.started, run.name), reverse=True)
    return Runs(tuple(found[:most]), search.notes())


class _Search:
    """A walk that counts what it leaves out. Later names come first, so that newer runs are found before a limit is."""

    def __init__(self, folder: Path, entries: int):
        self.folder, self.entries = folder, entries
        self.stopped = ""
        self.unreadable = self.deep = self.linked = self.nameless = 0

    def folders(self, depth: int) -> Iterator[tuple[Path, list[Path]]]:
        """Every folder that holds profiles, with them."""
        if _regular(self.folder):
            yield self.folder.parent, [self.folder] if self.folder.name.endswith(SUFFIXES) else []
            return
        waiting = deque([(self.folder, 0)])
        while waiting:
            here, level = waiting.popleft()
            profiles = []
            entries = self._entries(here)
            if any(entry.name == MANIFEST for entry in entries) and is_reduced(here):
                yield here, [here]
                continue
            for entry in entries:
                if entry.name.endswith(SUFFIXES):
                    if entry.is_file(follow_symlinks=False):
                        profiles.append(here / entry.name)
                    else:
                        self.linked += entry.is_symlink()
                elif entry.is_dir(follow_symlinks=False) and not entry.name.startswith("."):
                    if level < depth:
                        waiting.append((here / entry.name, level + 1))
                    else:
                        self.deep += 1
            if profiles:
                yield here, sorted(profiles)
            if self.stopped:
                return

    def _entries(self, folder: Path) -> list[os.DirEntry[str]]:
        kept: list[os.DirEntry[str]] = []
        try:
            with os.scandir(folder) as listed:
                for entry in listed:
                    if self.entries == 0:
                        self.stopped = "the search stopped: there are too many files and folders; name a smaller folder"
                        break
                    self.entries -= 1
                    if entry.name.isascii() or _is_text(entry.name):
                        kept.append(entry)
                    else:
                        self.nameless += 1
        except OSError:
            self.unreadable += 1
        return sorted(kept, key=lambda entry: entry.name, reverse=True)

    def notes(self) -> tuple[Note, ...]:
        counts = (
            ("runs_unreadable", self.unreadable, "folders cannot be read"),
            ("runs_deep", self.deep, "folders lie too deep and were not searched"),
            ("runs_linked", self.linked, "profiles are symbolic links, which are not followed"),
            ("runs_nameless", self.nameless, "files or folders have names that are no text"),
        )
        stopped = [Note("runs_stopped", self.stopped)] if self.stopped else []
        return (*stopped, *(Note(code, f"{count:,} {text}") for code, count, text in counts if count))


def _is_text(name: str) -> bool:
    try:
        name.encode()
    except UnicodeEncodeError:  # bytes that are not UTF-8
        return False
    return True


def _regular(path: Path) -> bool:
    try:
        return stat.S_ISREG(path.lstat().st_mode)
    except (OSError, ValueError):
        return False


def _runs_of(top: Path, here: Path, files: list[Path]) -> Iterator[Run]:
    """The runs that the profiles of one folder are: one, or one for each; a reduced run is the folder."""
    whole = RUN_NAME.fullmatch(here.name) or (here.parent.name == "profile" and here.parent.parent.name == "plugins")
    # A folder as a PATH means all that is in it, links too: those of the search would be fewer.
    if whole and here != top.parent and files == _all_profiles(here):
        run = _run(top, here, files)
        if run:
            yield run
        return
    for file in files:
        run = _run(top, file, [file])
        if run:
            yield run


def reduced(run: Run) -> bool:
    """Whether it is a reduced run."""
    return len(run.files) == 1 and not run.files[0].name.endswith(SUFFIXES)


def _all_profiles(folder: Path) -> list[Path]:
    return sorted(path for path in folder.iterdir() if path.name.endswith(SUFFIXES))


def _run(top: Path, path: Path, files: list[Path]) -> Run | None:
    """None where a file went away meanwhile."""
    try:
        inside = list(path.rglob("*")) if files == [path] and path.is_dir() else files
        facts = [file.lstat() for file in inside]
    except OSError:
        return None
    stamp = _stamp(path.name) or _stamp(path.parent.name)
    newest = max(each.st_mtime_ns for each in facts)
    return Run(
        path=str(path),
        name=_name(top, path),
        started=stamp or _time(newest),
        files=tuple(files),
        bytes=sum(each.st_size for each in facts),
        modified_ns=newest,
        stamped=stamp is not None,
    )


def _name(top: Path, path: Path) -> str:
    parts = list(path.relative_to(top).parts) or [path.name]
    for at in range(len(parts) - 2, -1, -1):
        if parts[at : at + 2] == ["plugins", "profile"]:
            del parts[at : at + 2]
    if path.name.endswith(SUFFIXES):
        parts[-1] = host_name(path)
    elif path.name.endswith(REDUCED_SUFFIX):
        parts[-1] = path.name.removesuffix(REDUCED_SUFFIX)
    return "/".join(parts)


def _stamp(name: str) -> datetime | None:
    match = _STAMP.match(name)
    try:
        return datetime(*(int(part) for part in match.groups())).astimezone() if match else None  # type: ignore[arg-type]
    except (ValueError, OverflowError, OSError):  # a 13th month, the year 0
        return None


def _time(ns: int) -> datetime:
    return datetime.fromtimestamp(ns / 1e9, UTC).astimezone()


# --- what a run says -----------------------------------------------------------------------------------------------


def facts(run: Run, *, most_unpacked: int = MOST_UNPACKED) -> RunFacts:
    """What a run says about itself, from its first file; its events and programs are not looked at.

    A file as it is costs what its size costs to step over, a gzipped one its unpacking. Never raises.

    Args:
        run: the run.
        most_unpacked: bytes that a gzipped file may unpack to; above, there are no facts but that it is large.
    """
    try:
        if reduced(run):
            return _reduced_facts(run)
        with opened(run.files[0], most_unpacked=most_unpacked) as (buffer, _):
            space = scan.index(buffer)
            if not space.planes:
                return RunFacts(error="is not an xplane profile")
            return _facts(run, buffer, space)
    except ProfilerError as error:
        return RunFacts(error=error.what)
    except (OSError, MemoryError, ValueError) as error:
        return RunFacts(error=str(error) or type(error).__name__)


def _facts(run: Run, buffer: Any, space: scan.Space) -> RunFacts:
    stats: dict[str, dict[str, Any]] = {}
    for plane in space.planes:
        if plane.name in ("/host:run_info", "/host:metadata", "Task Environment") and plane.name not in stats:
            stats[plane.name] = plane_stats(buffer, plane)
    planes = [plane for plane in space.planes if _DEVICE_PLANE.fullmatch(plane.name)]
    found = _of_info(_info(stats.get("/host:run_info", {}).get("run_info")), stats.get("/host:metadata", {}))
    return replace(
        found,
        chip=_chip(planes[0].name, plane_stats(buffer, planes[0])) if planes else "CPU",
        devices=found.devices or ((len(planes) or None) if len(run.files) == 1 else None),
        hosts=len(run.files),
        started=_profile_start(stats.get("Task Environment", {}).get("profile_start_time")),
    )


def _reduced_facts(run: Run) -> RunFacts:
    """Those of a reduced run, from its table of hosts (docs/reduced.md)."""
    import polars as pl

    from profiler.reduced import HOSTS, RUN_INFO

    folder = run.files[0]
    try:
        hosts = [json.loads(text) for text in pl.read_parquet(folder / HOSTS)["facts"]]
        infos = [each for each in json.loads((folder / RUN_INFO).read_text("utf-8")) if isinstance(each, dict)]
        devices = [device for host in hosts for device in host["devices"]]
        found = _of_info(infos[0] if infos else {}, hosts[0]["versions"] if hosts else {})
        began = [host["started_ns"] for host in hosts if host.get("started_ns")]
        return replace(
            found,
            chip=_chip(devices[0]["plane"], devices[0]["stats"]) if devices else None,
            devices=found.devices or len(devices) + sum(len(host["idle"]) for host in hosts) or None,
            hosts=len(hosts),
            started=_profile_start(min(began, default=None)),
        )
    except (pl.exceptions.PolarsError, LookupError, TypeError, AttributeError, RecursionError) as error:
        return RunFacts(error=f"is a damaged reduced run ({type(error).__name__})")


def _of_info(info: Mapping[str, Any], stats: Mapping[str, Any]) -> RunFacts:
    """What the run info says; ``stats`` have the versions of the software."""
    found = info.get("config")
    config = flat(found) if isinstance(found, Mapping) else {}
    mesh = _mesh(info.get("mesh"))
    return RunFacts(
        kind="compiled" if info.get("kind") == "compiled" else "recorded",
        model=_text(config.get("model_name")),
        topology=_text(info.get("topology")),
        devices=math.prod(mesh.values()) if mesh else None,
        batch=number(config.get("per_device_batch_size")),
        sequence=number(config.get("max_target_length")),
        mesh=mesh,
        commit=_text(info.get("git_commit")),
        versions=_versions(info.get("versions"), stats),
        config=config,
    )


def _info(text: Any) -> dict[str, Any]:
    try:
        info = json.loads(text) if isinstance(text, str) else None
    except (ValueError, RecursionError):
        info = None
    return info if isinstance(info, dict) else {}


def _text(value: Any) -> str | None:
    return value[:MOST_TEXT] if isinstance(value, str) and value else None


def _mesh(value: Any) -> dict[str, int]:
    if not isinstance(value, Mapping):
        return {}
    sizes = {str(axis)[:MOST_TEXT]: number(size) for axis, size in value.items()}
    return {axis: int(size) for axis, size in sizes.items() if size and size >= 1}


def _chip(plane: str, stats: Mapping[str, Any]) -> str | None:
    """The product that a device plane is of; "CPU" of any other plane."""
    match = _DEVICE_PLANE.fullmatch(plane)
    if not match:
        return "CPU"
    chip, kind = hardware.of_plane(match[1].lower(), stats)
    return chip.name if chip else _text(kind)


def _profile_start(value: Any) -> datetime | None:
    try:
        return _time(value) if isinstance(value, int) and value > 0 else None
    except (ValueError, OverflowError, OSError):
        return None


def _versions(said: Any, stats: Mapping[str, Any]) -> dict[str, str]:
    found = {key.removesuffix("_version"): value for key, value in stats.items() if key.endswith("_version")}
    found |= said if isinstance(said, Mapping) else {}
    # CPU recordings say cpu_version "cpu".
    return {str(key): str(value)[:MOST_TEXT] for key, value in found.items() if value and value != key}
