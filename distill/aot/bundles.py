"""How long the kernels of a program take per grid step: each is compiled alone, and its code is read.

A process of its own compiles them, with the flags of the program. That takes seconds (a backward attention up to a
minute), so what was read is kept on disk, under the kernel's description, the versions and the flags.
"""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from distill.aot.bundles_call import Call, call_alone, kernel_key
from distill.aot.cache import Cache, read_json
from distill.aot.environment import compiler_flags, versions, worker_environment
from distill.aot.model import KernelCycles
from distill.aot.topology import Topology
from distill.config import Config
from profiler.hlo import HloModule

# What decides about what is read from a kernel's code, under distill/.
SOURCES = ("aot/bundles_call.py", "aot/bundles_dump.py", "aot/bundles_worker.py")
LIMIT_S = 900.0  # for all kernels of a program together; those that are not there by then have no cycles
_POLL_S = 0.2


@dataclass(frozen=True)
class KernelCode:
    """What was read.

    Attributes:
        cycles: by distill.aot.bundles_call.kernel_key.
        seconds: of each compile, by the same key; what was on disk counts too.
        notes: kernels without cycles, and why.
    """

    cycles: Mapping[str, KernelCycles] = field(default_factory=dict)
    seconds: Mapping[str, float] = field(default_factory=dict)
    notes: tuple[str, ...] = ()


def kernel_code(
    module: HloModule,
    config: Config,
    topology: Topology,
    *,
    cache: Cache | None = None,
    progress: Callable[[str, float, int | None], None] | None = None,
) -> KernelCode:
    """The cycles of every grouped matmul and splash attention of a program; without a compiler, none and a note.

    Args:
        module: the compiled program, or a lowered one.
        config: its xla_flags reach the compiler.
        topology: a slice of the chips that the kernels are for.
        cache: where what was read is kept; by default that of compiles.
        progress: called a few times a second: phase, seconds since the start, None.
    """
    calls: dict[str, tuple[str, Call]] = {}
    for each in module.instructions.values():
        if each.custom_call_target != "tpu_custom_call":
            continue
        key, call = kernel_key(each), call_alone(each)
        if key is not None and call is not None:
            calls.setdefault(key, (each.name, call))
    if not calls or versions()["libtpu"] is None:
        return KernelCode(notes=("no kernel was compiled alone: libtpu is not installed",) if calls else ())
    flags = compiler_flags(config, os.environ)
    folder = (cache or Cache()).root / "kernels" / _surroundings(flags, topology)
    missing = {key: call for key, (_, call) in calls.items() if not _whole(read_json(folder / f"{key}.json"))}
    failed = ""
    if missing:
        try:
            failed = _compile(missing, config, topology, folder, progress)
        except OSError as error:  # a full disk, a read-only cache
            failed = str(error)
    cycles, seconds, notes = {}, {}, []
    for key, (name, _) in calls.items():
        found = read_json(folder / f"{key}.json")
        if not _whole(found):
            notes.append(f"{name}: no cycles from its code ({found.get('failed') or failed or 'the compiler ended'})")
            (folder / f"{key}.json").unlink(missing_ok=True)
            continue
        cycles[key] = KernelCycles(found["step"], tuple(found["blocks"]), found["edges"])
        seconds[key] = found["seconds"]
    return KernelCode(cycles, seconds, tuple(notes))


def _whole(found: Mapping[str, Any]) -> bool:
    """Whether a kernel's file says all: it may be missing or damaged, or say why there are no cycles."""
    return found.keys() >= {"step", "blocks", "edges", "seconds"}


def _surroundings(flags: str, topology: Topology) -> str:
    """All that decides about a kernel's cycles besides its description, as a folder's name."""
    root = Path(__file__).parent.parent
    digest = hashlib.sha256(json.dumps([versions(), flags, topology.chip.key]).encode())
    for name in SOURCES:
        digest.update((root / name).read_bytes())
    return digest.hexdigest()[:16]


def _compile(
    kernels: Mapping[str, Call],
    config: Config,
    topology: Topology,
    folder: Path,
    progress: Callable[[str, float, int | None], None] | None,
) -> str:
    """Fills the folder with a file per kernel; returns why some may lack, if anything went wrong."""
    folder.mkdir(parents=True, exist_ok=True)
    work = Path(tempfile.mkdtemp(prefix=".partial-", dir=folder))
    dump, spec = work / "dump", work / "spec.json"
    try:
        dump.mkdir()
        content: dict[str, Any] = {"topology": topology.name, "kernels": kernels}
        spec.write_text(json.dumps(content | {"dump": str(dump), "results": str(folder)}), encoding="utf-8")
        environment = worker_environment(config, work, os.environ)
        environment["LIBTPU_INIT_ARGS"] += f" --xla_jf_dump_to={dump} --xla_jf_dump_llo_pass_label_regex=final_bundles"
        command = [sys.executable, "-m", "distill.aot.bundles_worker", str(spec)]
        with (work / "log.txt").open("wb") as log:
            process = subprocess.Popen(command, stdout=log, stderr=log, env=environment, start_new_session=True)
        try:
            return _wait(process, progress)
        finally:
            if process.poll() is None:
                process.kill()
            process.wait()
    finally:
        shutil.rmtree(work, ignore_errors=True)


def _wait(process: subprocess.Popen[bytes], progress: Callable[[str, float, int | None], None] | None) -> str:
    began = time.monotonic()
    while (elapsed := time.monotonic() - began) < LIMIT_S:
        try:
            code = process.wait(_POLL_S)
        except subprocess.TimeoutExpired:
            if progress is not None:
                progress("kernels", elapsed, None)
            continue
        return f"the compiler ended with exit code {code}" if code else ""
    return f"not compiled after {LIMIT_S:.0f} s"
