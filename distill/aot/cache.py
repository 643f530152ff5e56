"""Finished compiles on disk, each in a folder named by everything that decides about its program."""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from distill.config import Config
from profiler.analysis.opfacts import words

# Keys of a run that the step does not depend on.
_OUTSIDE = words(
    """base_output_directory run_name enable_checkpointing checkpoint_period max_num_checkpoints_to_keep
    load_parameters_path profiler skip_first_n_steps_for_profiler profiler_steps hardware dataset_type grain_train_files
    tokenizer_path data_shuffle_seed init_weights_seed xla_flags"""
)
# What the program is made from, under distill/; xla_flags count as the compiler sees them.
SOURCES = (
    "kernels", "model", "losses.py", "mesh.py", "optimizer.py", "remat.py", "settings", "state.py", "step.py",
    "aot/dump.py", "aot/environment.py", "aot/topology.py", "aot/worker.py",
)  # fmt: skip


class Cache:
    """Entries under one folder. An entry appears whole or not at all, and is never changed."""

    def __init__(self, root: Path | None = None):
        self.root = root or Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache", "distill", "aot")

    def find(self, key: str) -> Path | None:
        """The folder of an entry; None if there is none."""
        folder = self.root / key
        return folder if folder.is_dir() else None

    def discard(self, key: str) -> None:
        """Removes an entry that turned out to be damaged."""
        aside = Path(tempfile.mkdtemp(prefix=".partial-", dir=self.root))
        try:
            with suppress(FileNotFoundError):  # another process was faster
                (self.root / key).rename(aside / key)
        finally:
            shutil.rmtree(aside, ignore_errors=True)

    @contextmanager
    def making(self, key: str) -> Iterator[Path]:
        """A folder to fill, which becomes the entry; it is deleted if that fails."""
        self.root.mkdir(parents=True, exist_ok=True)
        partial = Path(tempfile.mkdtemp(prefix=".partial-", dir=self.root))
        try:
            yield partial
            try:
                partial.rename(self.root / key)
            except OSError:
                if not (self.root / key).is_dir():  # else another process was faster: the same entry
                    raise
        finally:
            shutil.rmtree(partial, ignore_errors=True)


def key(config: Config, topology: str, versions: Mapping[str, str | None], flags: str, quick: bool) -> str:
    """The name of an entry."""
    facts = {
        "config": {name: value for name, value in config.to_dict().items() if name not in _OUTSIDE},
        "topology": topology,
        "versions": dict(versions),
        "flags": flags,
        "sources": _sources(),
    }
    digest = hashlib.sha256(json.dumps(facts, sort_keys=True).encode()).hexdigest()[:32]
    return f"{digest}-quick" if quick else digest


def _sources() -> str:
    """A digest of the code that makes the program."""
    root, digest = Path(__file__).parent.parent, hashlib.sha256()
    for name in SOURCES:
        path = root / name
        for file in sorted(path.rglob("*.py")) if path.is_dir() else [path]:
            digest.update(f"{file.relative_to(root)}\0".encode() + file.read_bytes() + b"\0")
    return digest.hexdigest()


def read_json(path: Path) -> dict[str, Any]:
    """A JSON object from a file; empty if it is missing or damaged."""
    try:
        found = json.loads(path.read_text(encoding="utf-8"))
    except (FileNotFoundError, ValueError):
        return {}
    return found if isinstance(found, dict) else {}
