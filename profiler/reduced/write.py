"""``profiler reduce``: the hosts of a run beside each other, then one folder, whole or not at all.

What is done is kept until the end (profiler.reduced.partial), so that an interrupted run goes on where it stopped. The
same profiles give the same bytes, on whatever machines and in whatever order they were read.
"""

from __future__ import annotations

import hashlib
import json
import os
import shutil
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import polars as pl

import profiler
from profiler.errors import UnreadableError, UsageError
from profiler.fleet import FAILED
from profiler.reduce import hosts as first_pass
from profiler.reduce import pool
from profiler.reduce.engines import Engine
from profiler.reduce.files import FilePart, program_protos, reduce_opened
from profiler.reduce.host_part import Failure, HostPart, Outcome, Packed, Task
from profiler.reduced import HOSTS, MODULES, OPS, PROGRAMS, RUN_INFO, SPANS, STEPS, VERSION, device_name, sums_name
from profiler.reduced.partial import Partial, packed
from profiler.reduced.read import SPANS_COLUMNS, ReducedRun
from profiler.results import Note
from profiler.trace import Marks, Timeline
from profiler.xplane.locate import MANIFEST, REDUCED, Recording, Side, host_name, is_reduced
from profiler.xplane.read import opened

KEEP = ("median", "all")


@dataclass(frozen=True, slots=True)
class Reduced:
    """What was written: ``bytes`` of ``source_bytes`` (unpacked), and what could not be read."""

    path: str
    hosts: int
    hosts_read: int
    hosts_resumed: int
    devices: int
    bytes: int
    source_bytes: int
    warnings: tuple[Note, ...]


def reduce_run(
    recording: Recording,
    target: Path,
    *,
    keep: str = "median",
    engine: Engine = pool.run,
    workers: int | None = None,
    progress: Callable[[int, int], None] = lambda done, of: None,
) -> Reduced:
    """Writes the reduced form of one recording.

    Args:
        recording: its files.
        target: the folder to write; another reduced run there is replaced.
        keep: whose spans are kept: those of the "median" device (of a run of one host all of its devices), or of "all".
        engine, workers: who reads the files.
        progress: called after each host: how many are done, of how many.

    Raises:
        UnreadableError: no host can be read.
        UsageError: something else is at ``target``, it cannot be written or is being written by somebody else, or the
            run is reduced already.
    """
    _check(recording, target)
    partial = Partial(_real(target))
    try:
        with partial.held() as ours:
            if not ours:
                raise UsageError("is being written by another profiler reduce", file=target, remedy="wait for it")
            return _reduce(recording, target, partial, keep, engine, workers, progress)
    except OSError as error:
        remedy = "what is done is kept: the same command goes on" if partial.known() else None
        raise UsageError(f"cannot be written: {error.strerror or error}", file=target, remedy=remedy) from error


def _reduce(
    recording: Recording,
    target: Path,
    partial: Partial,
    keep: str,
    engine: Engine,
    workers: int | None,
    progress: Callable[[int, int], None],
) -> Reduced:
    """What reduce_run does, once nobody else writes the target."""
    known = partial.known()
    tasks = [
        Task(file, name, whole=True, known=known) for file, name in zip(recording.files, recording.names, strict=True)
    ]
    done: dict[int, str | Failure] = {}
    for index, outcome in engine(tasks, workers):
        if isinstance(outcome, Packed):
            partial.add(outcome)
        if not isinstance(outcome, HostPart):  # which no whole task gives
            done[index] = outcome if isinstance(outcome, Failure) else outcome.key
        progress(len(done), len(tasks))
    failures = [each for each in done.values() if isinstance(each, Failure)]
    if len(failures) == len(tasks):
        raise next(each for _, each in sorted(done.items()) if isinstance(each, Failure)).error()
    new = partial.folder / "new"
    shutil.rmtree(new, ignore_errors=True)
    new.mkdir(parents=True)
    order = [done[index] for index in range(len(tasks))]
    _tables(new, order, partial)
    described = _fleet(recording, order, new)
    kept = _spans(new, recording, described, _kept(described, keep))
    _programs(new, recording, order, partial)
    _manifest(new, recording, order, partial, kept, keep)
    _rename(new, partial)
    return Reduced(
        path=str(target),
        hosts=len(tasks),
        hosts_read=len(tasks) - len(failures),
        hosts_resumed=len({each for each in order if each in known}),
        devices=len(described.fleet.devices),
        bytes=sum(path.stat().st_size for path in partial.target.rglob("*") if path.is_file()),
        source_bytes=sum(host.bytes or 0 for host in described.fleet.hosts),
        warnings=tuple(dict.fromkeys(described.notes)),
    )


def _check(recording: Recording, target: Path) -> None:
    if any(is_reduced(file) for file in recording.files):
        raise UsageError("is a reduced run already", file=recording.name)
    try:
        real = _real(target)
        if real.exists() and not is_reduced(real):
            raise UsageError("exists and is no reduced run", file=target, remedy="name another folder")
        if not real.parent.is_dir():
            raise UsageError("no such folder", file=target.parent)
    except (OSError, ValueError) as error:
        raise UsageError(f"cannot be written: {getattr(error, 'strerror', None) or error}", file=target) from error


def _real(target: Path) -> Path:
    """The target from the root on, whatever is renamed; of a link what it leads to."""
    return Path(os.path.realpath(target))


def _tables(new: Path, order: Sequence[str | Failure], partial: Partial) -> None:
    """Hosts, steps, op sums, ops and run info of all hosts that were read."""
    tables: dict[str, int] = {}
    infos: dict[str, int] = {}
    facts: list[tuple[int, str]] = []
    steps: list[pl.DataFrame] = []
    ops: list[pl.DataFrame] = []
    shard: list[pl.DataFrame] = []
    (new / sums_name(0)).parent.mkdir()
    for index, key in enumerate(order):
        kept = None if isinstance(key, Failure) else partial.get(key)
        if kept is not None:
            table = tables.setdefault(kept.facts["ops"], len(tables))
            if table == len(ops):
                ops.append(kept.ops().select(pl.lit(table, pl.Int32).alias("table"), pl.all()))
            info = infos.setdefault(json.dumps(kept.run_info(), sort_keys=True), len(infos))
            facts.append((index, json.dumps({**kept.facts, "ops": table, "run_info": info}, sort_keys=True)))
            host = pl.lit(index, pl.Int32).alias("host")
            steps.append(kept.steps().select(host, pl.all()))
            shard.append(kept.sums().select(host, pl.all()))
        if shard and (index + 1 == len(order) or sums_name(index + 1) != sums_name(index)):
            (new / sums_name(index)).write_bytes(packed(pl.concat(shard)))
            shard = []
    (new / HOSTS).write_bytes(packed(pl.DataFrame(facts, {"host": pl.Int32, "facts": pl.String}, orient="row")))
    (new / STEPS).write_bytes(packed(pl.concat(steps)))
    (new / OPS).write_bytes(packed(pl.concat(ops)))
    (new / RUN_INFO).write_text(f"[{','.join(infos)}]\n", encoding="utf-8")


def _fleet(recording: Recording, order: Sequence[str | Failure], new: Path) -> first_pass.Described:
    """The fleet as a reader of the new tables will have it, under the names of the files that it was read from."""
    side = Side(recording.name, (recording,))
    run = ReducedRun(new, recording.names)
    found: list[tuple[int, Outcome]] = [
        (index, each if isinstance(each, Failure) else run.part(index)) for index, each in enumerate(order)
    ]
    return first_pass.together(found, side, [0] * len(found)).fleet([], None)


def _kept(described: first_pass.Described, keep: str) -> tuple[int, ...]:
    """The devices whose spans are kept: those that are shown, unless all are asked for."""
    fleet = described.fleet
    if keep == "all" or len(fleet.hosts) == 1 or not fleet.devices:
        return tuple(range(len(fleet.devices)))
    return first_pass.shown(described, None)


def _spans(
    new: Path, recording: Recording, described: first_pass.Described, kept: Sequence[int]
) -> list[dict[str, Any]]:
    """The spans of the devices that are kept; gives their places and the names of their lanes."""
    (new / SPANS).mkdir()
    (new / MODULES).mkdir()
    found: list[dict[str, Any]] = []
    part: FilePart | None = None
    for index in kept:
        number = described.part_of[index]
        source = described.sources[number]
        name = recording.names[source]
        if part is None or part.file != name:  # devices of one host come after each other
            with opened(recording.files[source]) as (buffer, packing):
                if hashlib.sha256(buffer).hexdigest() != described.parts[number].digest:
                    raise _changed(name)
                part = replace(reduce_opened(recording.files[source], buffer, packing), file=name)
        own = [each.name for each in described.parts[number].devices].index(described.own_names[index])
        device = next(each for each in part.devices if each.name == described.own_names[index])
        (new / SPANS / device_name(source, own)).write_bytes(packed(_span_table(device.timeline)))
        if device.modules is not None:
            (new / MODULES / device_name(source, own)).write_bytes(packed(_module_table(device.modules)))
        found.append({"host": source, "device": own, "lanes": list(device.timeline.lanes)})
    return found


def _changed(name: str) -> UnreadableError:
    return UnreadableError("changed while it was read", file=name, remedy="try again")


def _span_table(timeline: Timeline) -> pl.DataFrame:
    return pl.DataFrame({name: getattr(timeline, name) for name in SPANS_COLUMNS}, SPANS_COLUMNS)


def _module_table(modules: Marks) -> pl.DataFrame:
    return pl.DataFrame({"start_ps": modules.start_ps, "end_ps": modules.end_ps, "name": list(modules.names)})


def _programs(new: Path, recording: Recording, order: Sequence[str | Failure], partial: Partial) -> None:
    """Every HLO program once, from the first host that has it."""
    wanted: dict[str, int] = {}
    for index, key in enumerate(order):
        if not isinstance(key, Failure):
            for program in partial.get(key).facts["programs"].values():
                wanted.setdefault(program, index)
    found: dict[str, bytes] = {}
    for index in sorted(set(wanted.values())):
        protos = program_protos(recording.files[index])
        own = {digest: proto for digest, proto in protos.items() if wanted.get(digest) == index}
        if len(own) < sum(first == index for first in wanted.values()):
            raise _changed(recording.names[index])
        found |= own
    rows = sorted(found.items())
    (new / PROGRAMS).write_bytes(packed(pl.DataFrame(rows, {"digest": pl.String, "proto": pl.Binary}, orient="row")))


def _manifest(
    new: Path,
    recording: Recording,
    order: Sequence[str | Failure],
    partial: Partial,
    kept: Sequence[dict[str, Any]],
    keep: str,
) -> None:
    hosts: list[dict[str, Any]] = []
    for name, each in zip(recording.names, order, strict=True):
        file = Path(name).name
        if isinstance(each, Failure):
            hosts.append({"file": file, "host": host_name(Path(name)), "status": FAILED, "why": each.what})
        else:
            known = partial.get(each).facts
            said = {"bytes": known["bytes"], "digest": known["digest"]}
            hosts.append({"file": file, "host": known["hosts"][0], "status": "read", **said})
    manifest = {
        "format": REDUCED,
        "version": VERSION,
        "profiler": profiler.__version__,
        "keep": keep,
        "kept": list(kept),
        "hosts": hosts,
    }
    (new / MANIFEST).write_text(json.dumps(manifest, indent=1) + "\n", encoding="utf-8")


def _rename(new: Path, partial: Partial) -> None:
    """Puts the new folder in its place, and takes away what it was made from."""
    old = partial.folder / "old"
    shutil.rmtree(old, ignore_errors=True)
    if partial.target.exists():
        partial.target.rename(old)
    try:
        new.rename(partial.target)
    except OSError:
        if old.exists():
            old.rename(partial.target)
        raise
    shutil.rmtree(partial.folder, ignore_errors=True)
