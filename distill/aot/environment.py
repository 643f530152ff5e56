"""What a process needs before jax starts in it to compile for a TPU that is not there.

libtpu reads its surroundings once: a machine that it believes to be a TPU host, and its compiler's flags.
"""

from __future__ import annotations

import importlib.metadata
import sys
from collections.abc import Mapping
from pathlib import Path

from distill.config import Config
from profiler.errors import ProfilerError

# What decides about a compiled program besides the configuration; tokamax only where it is installed.
PACKAGES = ("jax", "jaxlib", "libtpu", "tokamax")
PROGRAM = "jit_train_step"  # the name of the step's HLO module: the only one that is dumped

_FIXED = {
    "JAX_PLATFORMS": "cpu",  # jax itself runs on the CPU; the TPU's compiler is asked for by topology
    "JAX_ENABLE_COMPILATION_CACHE": "false",  # jax's own cache would skip the compile and what it dumps
    # Without these libtpu asks the metadata server of a Google Cloud machine, and waits for it.
    "TPU_SKIP_MDS_QUERY": "1",
    "TPU_WORKER_HOSTNAMES": "localhost",
    "TPU_ACCELERATOR_TYPE": "tpu7x-8",
    "ALLOW_MULTIPLE_LIBTPU_LOAD": "1",  # several compiles at once; a real TPU has one process only
}
# Flags of a recipe for other compilers, and where to dump, which is decided here.
_FOREIGN = ("--xla_gpu_", "--xla_cpu_", "--xla_force_host_", "--xla_dump_")


def compiler_flags(config: Config, base: Mapping[str, str]) -> str:
    """LIBTPU_INIT_ARGS: the environment's own, then the recipe's, of which the last of equal ones counts."""
    ours = (flag for flag in config.xla_flags if not flag.startswith(_FOREIGN))
    return " ".join((*base.get("LIBTPU_INIT_ARGS", "").split(), *ours))


def worker_environment(config: Config, dump: Path, base: Mapping[str, str]) -> dict[str, str]:
    """The environment of a process that compiles.

    Args:
        config: its xla_flags reach the compiler.
        dump: folder for what the compiler writes: optimized HLO with the buffer assignment, and the schedule.
        base: the environment to start from.
    """
    # The dump's flags must be in XLA_FLAGS: among libtpu's own they have no effect.
    flags = [flag for flag in base.get("XLA_FLAGS", "").split() if not flag.startswith(_FOREIGN)]
    flags += [
        f"--xla_dump_to={dump}",
        f"--xla_dump_hlo_module_re={PROGRAM}",
        "--xla_dump_hlo_as_proto=true",
        "--xla_dump_hlo_as_text=false",
        "--xla_dump_latency_hiding_schedule=true",
    ]
    # The package is found where it was found for us, also when it is not installed.
    here = str(Path(__file__).parent.parent.parent)
    path = ":".join(filter(None, (here, base.get("PYTHONPATH"))))
    libtpu = {"LIBTPU_INIT_ARGS": compiler_flags(config, base)}
    return {**base, **_FIXED, **libtpu, "XLA_FLAGS": " ".join(flags), "PYTHONPATH": path}


def versions() -> dict[str, str | None]:
    """Installed versions of ``PACKAGES``; None where one is missing."""
    found: dict[str, str | None] = {}
    for name in PACKAGES:
        try:
            found[name] = importlib.metadata.version(name)
        except importlib.metadata.PackageNotFoundError:
            found[name] = None
    return found


def require() -> dict[str, str | None]:
    """The versions, if there is a TPU compiler.

    Raises:
        ProfilerError: it is not installed, with what to install.
    """
    found = versions()
    if found["libtpu"] is None or found["jax"] is None:
        missing = "libtpu" if found["libtpu"] is None else "jax"
        where = "" if sys.platform == "linux" else "; on Linux, there is no libtpu for other systems"
        raise ProfilerError(
            f"compiling for a TPU needs {missing}, which is not installed",
            remedy=f"pip install 'profiler[distill,tpu]'{where}",
        )
    return found
