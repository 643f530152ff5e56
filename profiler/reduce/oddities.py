"""What makes the files of one side a strange set, since nobody would see it from figures that mix them."""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import polars as pl

from profiler.errors import UsageError
from profiler.results import Note
from profiler.runinfo import flat
from profiler.trace import Device
from profiler.xplane.locate import Recording

if TYPE_CHECKING:
    from profiler.reduce.files import FilePart
    from profiler.reduce.host_part import HostPart

MOST_KEYS = 3  # named in a warning
LEAST_SHARED = 0.5  # of the ops of programs of one name, where two hosts run the same
_OF_A_HOST = re.compile(r"(?i)host|process|rank|node|address|port|user|path|dir|file|time|date|seed|run_name")


def refuse_mixed(devices: Sequence[Device], file: str) -> None:
    """Refuses devices of different kinds.

    Raises:
        UsageError: there are some.
    """
    types = sorted({each.type for each in devices if each.type})
    if len({each.platform for each in devices}) > 1 or len(types) > 1:
        raise UsageError(
            f"one side holds different devices: {', '.join(types)}",
            file=file,
            remedy="give recordings of one kind of device, or choose with --device",
        )


def odd_files(parts: Sequence[tuple[Recording, FilePart | HostPart]]) -> list[Note]:
    """A file that was given twice, and files of one recording that are not of one run."""
    notes = []
    files = [str(Path(part.file).resolve()) for _, part in parts]
    if len(set(files)) < len(files):
        notes.append(Note("file_twice", "the same file was given more than once on one side, and counts as often"))
    first: dict[int, FilePart | HostPart] = {}
    for recording, part in parts:
        one = first.setdefault(id(recording), part)
        why = _difference(one, part) if one is not part else None
        if why:
            text = f"{Path(one.file).name} and {Path(part.file).name} are taken as hosts of one run, but {why}"
            notes.append(Note("files_of_different_runs", f"{text}: figures mix both. Give one file, or compare them"))
            break
    return notes


def _difference(one: FilePart | HostPart, other: FilePart | HostPart) -> str | None:
    """What two hosts of one run would not differ in; None where nothing says that these are none."""
    if one.run_info is not other.run_info:
        first, second = (flat((part.run_info or {}).get("config")) for part in (one, other))
        keys = sorted(
            key for key in first.keys() & second.keys() if first[key] != second[key] and not _OF_A_HOST.search(key)
        )
        if keys:
            more = f" and {len(keys) - MOST_KEYS} more" if len(keys) > MOST_KEYS else ""
            return f"their configurations differ ({', '.join(keys[:MOST_KEYS])}{more})"
    return None if one.ops is other.ops else _different_programs(_ops(one), _ops(other))


def _different_programs(one: pl.DataFrame, other: pl.DataFrame) -> str | None:
    names = [set(ops["program"].drop_nulls()) for ops in (one, other)]
    if all(names) and not names[0] & names[1]:
        return f"they run different programs ({min(names[0])}, {min(names[1])})"
    shared = pl.col("program").is_in(list(names[0] & names[1])) | pl.col("program").is_null()
    rows = [set(ops.filter(shared).select("program", "op").iter_rows()) for ops in (one, other)]
    if all(rows) and len(rows[0] & rows[1]) < LEAST_SHARED * min(map(len, rows)):
        return "their programs of one name hold different ops"
    return None


def _ops(part: FilePart | HostPart) -> pl.DataFrame:
    return part.ops if isinstance(part.ops, pl.DataFrame) else part.ops.frame()
