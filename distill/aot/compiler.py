"""One compile: from the cache, or in a process of its own that is watched and can be ended at any time."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from distill.aot import cache as caching
from distill.aot.cache import Cache, read_json
from distill.aot.counts import KernelCalls, kernel_calls
from distill.aot.dump import Dump
from distill.aot.environment import compiler_flags, require, worker_environment
from distill.aot.errors import OutOfMemory, OutOfVmem, explain
from distill.aot.topology import Topology, find
from distill.config import Config, check_for_tpu
from profiler.analysis.memory import Memory, memory
from profiler.errors import ProfilerError, UnreadableError, UsageError
from profiler.hlo import HloModule, parse

# (phase, seconds since the compile began, bytes of memory that the compiling process holds; None if unknown)
Progress = Callable[[str, float, int | None], None]

PROGRAM_FILE, SCHEDULE_FILE, RESULT_FILE = "program.hlo.pb", "schedule.pb", "compiled.json"
_RESULT_KEYS = {"quick", "capacity_bytes", "error", "seconds", "kernels", "notes", "versions", "flags"}
_POLL_S = 0.2


@dataclass(frozen=True)
class Compiled:
    """What a compile told.

    Attributes:
        config: what was compiled.
        topology: for which slice.
        quick: whether it ended with the buffer assignment: no final cycles, no ``memory_analysis``.
        folder: where the files are.
        module: the program, with its buffer assignment; None where the compiler gave up before.
        memory: of one device; None where the compiler gave up before.
        calls: Pallas calls per step.
        capacity_bytes: HBM that the compiler may use on a device.
        error: what ran out, if something did.
        seconds: of each phase: start, trace, lower, compile.
        process_peak_bytes: peak memory of the process that compiled; None for a quick compile.
        analysis: ``memory_analysis()`` of the finished program, in bytes; empty without one.
        kernels: names of the attention and grouped-matmul kernels.
        notes: what was asked for and is not what was compiled.
        versions: of jax, jaxlib, libtpu and tokamax.
        flags: the compiler's, LIBTPU_INIT_ARGS.
        from_cache: whether nothing had to be compiled.
    """

    config: Config
    topology: Topology
    quick: bool
    folder: Path
    module: HloModule | None
    memory: Memory | None
    calls: tuple[KernelCalls, ...]
    capacity_bytes: int | None
    error: OutOfMemory | OutOfVmem | None
    seconds: Mapping[str, float]
    process_peak_bytes: int | None
    analysis: Mapping[str, int]
    kernels: tuple[str, ...]
    notes: tuple[str, ...]
    versions: Mapping[str, str | None]
    flags: str
    from_cache: bool

    @property
    def fits(self) -> bool:
        """Whether the program runs on a device, as far as memory goes."""
        return self.error is None

    @property
    def hlo_proto(self) -> Path | None:
        """HloProto with the buffer assignment; the finished program's instructions unless ``quick``."""
        return _existing(self.folder / PROGRAM_FILE)

    @property
    def schedule(self) -> Path | None:
        """The scheduler's plan, for ``distill.aot.dump.read_schedule``."""
        return _existing(self.folder / SCHEDULE_FILE)


def compile_step(
    config: Config,
    topology: str,
    *,
    out: Path | None = None,
    quick: bool = False,
    progress: Progress | None = None,
    cache: Cache | None = None,
) -> Compiled:
    """Compiles the training step of a configuration for a slice. Running out of memory is a result, not an error.

    Args:
        config: what to train and how; its xla_flags reach the compiler.
        topology: a slice's name, such as "tpu7x-4x4x4".
        out: folder that gets the files too; else they are in the cache only.
        quick: end once schedule, optimized HLO and buffer assignment are out. A whole compile in the cache serves, too.
        progress: called a few times a second.
        cache: where finished compiles are kept; by default under $XDG_CACHE_HOME.

    Raises:
        UsageError: no such topology, or a configuration that it or the TPU kernels cannot run.
        ProfilerError: there is no TPU compiler, or it failed for another reason than memory.
    """
    slice_, versions = find(topology), require()
    check_for_tpu(config)
    cache, flags = cache or Cache(), compiler_flags(config, os.environ)
    keys = [caching.key(config, slice_.name, versions, flags, each) for each in ((False, True) if quick else (False,))]
    compiled = next((found for key in keys if (found := _kept(config, slice_, cache, key))), None)
    if compiled is None:
        with cache.making(keys[-1]) as partial:
            facts = {"versions": versions, "flags": flags, "topology": slice_.name, "config": config.to_dict()}
            _compile(config, slice_, partial, facts, quick, progress)
        compiled = _read(config, slice_, cache.root / keys[-1], from_cache=False)
    if out is not None:
        out.mkdir(parents=True, exist_ok=True)
        for name in (PROGRAM_FILE, SCHEDULE_FILE, RESULT_FILE):
            (out / name).unlink(missing_ok=True)
            if (compiled.folder / name).exists():
                shutil.copyfile(compiled.folder / name, out / name)
        compiled = replace(compiled, folder=out)
    return compiled


def _kept(config: Config, topology: Topology, cache: Cache, key: str) -> Compiled | None:
    """An entry of the cache; None if there is none. A damaged one is removed: a full disk cuts files short."""
    folder = cache.find(key)
    if folder is None:
        return None
    try:
        result = read_json(folder / RESULT_FILE)
        sizes = result.get("file_bytes", {})
        if result.keys() >= _RESULT_KEYS and sizes.items() <= _sizes(folder).items():
            compiled = _read(config, topology, folder, from_cache=True)
            if compiled.memory is not None or not compiled.fits:
                return compiled
    except UnreadableError:
        pass
    cache.discard(key)
    return None


def _sizes(folder: Path) -> dict[str, int]:
    """Bytes of the files beside the result."""
    return {name: (folder / name).stat().st_size for name in (PROGRAM_FILE, SCHEDULE_FILE) if (folder / name).exists()}


def _compile(
    config: Config, topology: Topology, folder: Path, facts: dict[str, Any], quick: bool, progress: Progress | None
) -> None:
    """Fills a folder with program, schedule and result."""
    dump, work = Dump(folder / "dump"), folder / "work"
    for each in (dump.folder, work):
        each.mkdir()
    spec, result_file = work / "spec.json", work / "result.json"
    spec.write_text(
        json.dumps({"config": config.to_dict(), "topology": topology.name, "result": str(result_file)}),
        encoding="utf-8",
    )
    with _Worker(spec, work / "log.txt", worker_environment(config, dump.folder, os.environ)) as worker:
        ended_early = worker.wait(lambda: quick and _fits(dump, result_file), progress)
    result = read_json(result_file)
    if ended_early:
        result = read_json(_target(result_file)) | {"seconds": worker.seconds}
    elif not result:
        raise ProfilerError(
            f"the TPU compiler ended with exit code {worker.code}: {_last_words(work / 'log.txt')}",
            remedy="a flag in xla_flags that it does not know ends it, and so does a machine without memory",
        )
    if "failed" in result:
        raise (UsageError if result["usage"] else ProfilerError)(result["failed"])
    program = dump.program(whole=not ended_early)
    error = result.get("error")
    if error and explain(error, None) is None:
        raise ProfilerError(f"the TPU compiler failed: {' '.join(error.split())[:600]}")
    if program is not None:
        (folder / PROGRAM_FILE).write_bytes(program)
    if dump.schedule is not None:
        dump.schedule.rename(folder / SCHEDULE_FILE)
    facts |= {"quick": ended_early, "file_bytes": _sizes(folder)}
    (folder / RESULT_FILE).write_text(json.dumps(facts | result, indent=1), encoding="utf-8")
    for each in (dump.folder, work):
        shutil.rmtree(each)


def _read(config: Config, topology: Topology, folder: Path, *, from_cache: bool) -> Compiled:
    result = read_json(folder / RESULT_FILE)
    program = folder / PROGRAM_FILE
    module = parse(program.read_bytes()) if program.exists() else None
    held = memory(module) if module is not None else None
    return Compiled(
        config=config,
        topology=topology,
        quick=result["quick"],
        folder=folder,
        module=module,
        memory=held,
        calls=kernel_calls(module) if module is not None else (),
        capacity_bytes=result["capacity_bytes"],
        error=explain(result["error"], held) if result["error"] else None,
        seconds=result["seconds"],
        process_peak_bytes=result.get("process_peak_bytes"),
        analysis=result.get("memory", {}),
        kernels=tuple(result["kernels"]),
        notes=tuple(result["notes"]),
        versions=result["versions"],
        flags=result["flags"],
        from_cache=from_cache,
    )


def _fits(dump: Dump, result_file: Path) -> bool:
    """Whether a compile in progress has said all that a quick one is for. One that runs out of memory soon says so."""
    if not dump.has_memory:
        return False
    try:
        held = memory(parse(dump.program(whole=False) or b""))
    except UnreadableError:  # still being written: on a busy machine the report can be there first
        return False
    capacity = read_json(_target(result_file)).get("capacity_bytes")
    return held is not None and (capacity is None or held.allocated_bytes <= capacity)


def _target(result_file: Path) -> Path:
    return result_file.with_name(result_file.name + ".target")


class _Worker:
    """The process that compiles, in a session of its own: Ctrl-C reaches this process only, which then ends it."""

    def __init__(self, spec: Path, log: Path, environment: Mapping[str, str]):
        self._command = [sys.executable, "-m", "distill.aot.worker", str(spec)]
        self._log, self._environment = log, environment
        self._phase, self._begun = "start", time.monotonic()
        self._start = self._begun
        self.seconds: dict[str, float] = {}
        self.code: int | None = None

    def __enter__(self) -> _Worker:
        with self._log.open("wb") as log:
            self._process = subprocess.Popen(
                self._command, stdout=subprocess.PIPE, stderr=log, env=self._environment, start_new_session=True
            )
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()
        return self

    def __exit__(self, *_: object) -> None:
        if self._process.poll() is None:
            self._process.kill()
        self.code = self._process.wait()
        self._reader.join()
        self.seconds[self._phase] = time.monotonic() - self._begun

    def wait(self, enough: Callable[[], bool], progress: Progress | None) -> bool:
        """Waits for the end, or until there is enough; True for the latter."""
        asked = time.monotonic()
        while True:
            try:
                self.code = self._process.wait(_POLL_S)
                return False
            except subprocess.TimeoutExpired:
                pass
            now = time.monotonic()
            if progress is not None:
                progress(self._phase, now - self._start, _resident_bytes(self._process.pid))
            if now - asked > 1:
                if enough():
                    return True
                asked = time.monotonic()

    def _read(self) -> None:
        assert self._process.stdout is not None
        for line in self._process.stdout:
            try:
                phase = json.loads(line)["phase"]
            except (ValueError, KeyError, TypeError):  # something in the process prints for itself
                continue
            now = time.monotonic()
            if phase != self._phase:
                self.seconds[self._phase] = now - self._begun
                self._phase, self._begun = phase, now


def _resident_bytes(pid: int) -> int | None:
    try:
        pages = int(Path(f"/proc/{pid}/statm").read_text().split()[1])
    except (OSError, ValueError, IndexError):
        return None
    return pages * os.sysconf("SC_PAGE_SIZE")


def _last_words(log: Path) -> str:
    """The last line of a log that says something."""
    lines = [line.strip() for line in log.read_text(encoding="utf-8", errors="replace").splitlines()]
    found = next((line for line in reversed(lines) if line and not line.startswith("@")), "it said nothing")
    return found[:300]


def _existing(path: Path) -> Path | None:
    return path if path.exists() else None
