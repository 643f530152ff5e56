"""Recordings of a run: jax.profiler around chosen steps, and the run info that explains them.

A recording lies where TensorBoard and XProf look for it, ``<folder>/plugins/profile/<time>/<host>.xplane.pb``, and
carries one plane of ours with what no event tells: configuration, model FLOPs, versions, metrics (docs/run-info.md).
"""

from __future__ import annotations

import contextlib
import ctypes
import json
import os
import platform
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import jax

from profiler.errors import ProfilerError
from profiler.xplane.write import PlaneBuilder, append_plane

RUN_INFO_PLANE = "/host:run_info"

# glibc's mallopt parameters (malloc.h).
_M_TRIM_THRESHOLD, _M_MMAP_MAX, _M_ARENA_MAX = -1, -4, -8


def start(folder: Path) -> None:
    """Starts to record; the next steps should be annotated with jax.profiler.StepTraceAnnotation.

    Python frames are left out: they are most of a default recording and say nothing about the device. Level 2 of the
    host tracer is the lowest that still records the ops of a CPU.
    """
    options = jax.profiler.ProfileOptions()
    options.python_tracer_level = 0
    options.host_tracer_level = 2
    jax.profiler.start_trace(folder, profiler_options=options)


def stop(folder: Path) -> Path:
    """Stops to record.

    Returns:
        The recording of this host.

    Raises:
        ProfilerError: it could not be written.
    """
    before = _recordings(folder)
    try:
        jax.profiler.stop_trace()
        made = sorted(_recordings(folder) - before, key=lambda file: file.stat().st_mtime)
        if not made:
            raise OSError("no file was made")
    except (OSError, RuntimeError, ValueError) as error:
        reason = str(error).splitlines()[0] if str(error) else type(error).__name__
        raise ProfilerError(
            f"the recording cannot be written: {reason}", file=folder, remedy="make room, or name a folder with -o"
        ) from error
    # Other hosts write to the same folder.
    return ([file for file in made if file.name.startswith(platform.node())] or made)[-1]


def abandon() -> None:
    """Ends a recording that an error has cut short; nothing where none is being made."""
    with contextlib.suppress(RuntimeError):
        jax.profiler.stop_trace()


def add_run_info(file: Path, info: Mapping[str, Any]) -> None:
    """Adds the run-info plane to a recording; keys are those of docs/run-info.md."""
    append_plane(file, PlaneBuilder(RUN_INFO_PLANE, stats={"run_info": json.dumps(info)}))


def software() -> dict[str, str]:
    """Versions of what made a recording."""
    from importlib.metadata import version

    import profiler

    versions = {
        "jax": jax.__version__,
        "jaxlib": version("jaxlib"),
        "python": platform.python_version(),
        "profiler": profiler.__version__,
    }
    if jax.default_backend() != "cpu":
        versions[jax.default_backend()] = jax.devices()[0].client.platform_version
    return versions


def git_commit() -> str | None:
    """The commit of this package's checkout, with "+" where files differ from it; None outside a checkout."""
    here = Path(__file__).parent

    def git(*arguments: str) -> str:
        return subprocess.run(
            ["git", "-C", here, *arguments], capture_output=True, text=True, check=True, timeout=10
        ).stdout.strip()

    try:
        # An installed package may lie inside somebody else's checkout, which says nothing about it.
        if not git("ls-files", "--", Path(__file__).name):
            return None
        return git("rev-parse", "HEAD") + ("+" if git("status", "--porcelain", "--", ".") else "")
    except (OSError, subprocess.SubprocessError):
        return None


def xla_flags() -> list[str]:
    """The compiler flags in force, of XLA and of the TPU's library."""
    return [flag for name in ("XLA_FLAGS", "LIBTPU_INIT_ARGS") for flag in os.environ.get(name, "").split()]


def keep_freed_memory() -> None:
    """Lets a CPU keep the memory that it frees, as an accelerator does.

    By default glibc gives large blocks back to the kernel, and a step faults their pages in again. That costs more the
    more activations a policy keeps, and would hide what rematerialisation costs. Elsewhere than on glibc: nothing.
    """
    if sys.platform != "linux" or platform.libc_ver()[0] != "glibc":
        return
    mallopt = ctypes.CDLL(None).mallopt
    mallopt(_M_MMAP_MAX, 0)
    mallopt(_M_TRIM_THRESHOLD, -1)
    mallopt(_M_ARENA_MAX, 1)


def _recordings(folder: Path) -> set[Path]:
    return set(folder.glob("plugins/profile/*/*.xplane.pb"))
