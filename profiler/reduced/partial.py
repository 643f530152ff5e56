"""What an interrupted reduce has done: a file for every host, by the content and name of its profile.

They lie in ``NAME.partial`` beside the reduced run that is being made, and go when it is whole.
"""

from __future__ import annotations

import io
import json
import zipfile
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import polars as pl

import profiler
from profiler.reduce.host_part import HostPart, Packed
from profiler.reduced import VERSION, host_tables
from profiler.xplane.cache import lock_file, locked


class Partial:
    """The folder of one reduced run in the making; ``target`` is where that will be."""

    def __init__(self, target: Path):
        self.target = target
        self.folder = target.with_name(f"{target.name}.partial")
        self._hosts = self.folder / "hosts"
        self._suffix = f".{profiler.__version__}.{VERSION}.zip"  # another version may reduce otherwise

    @contextmanager
    def held(self) -> Iterator[bool]:
        """Holds the folder against other processes, by a file beside it; gives whether it is held.

        Raises:
            OSError: nothing can be written there.
        """
        with locked(self.folder, wait=False) as ours:
            try:
                yield ours
            finally:
                if ours:
                    with suppress(OSError):  # elsewhere than on Windows, which cannot remove what is open
                        lock_file(self.folder).unlink()

    def known(self) -> frozenset[str]:
        """The files that are done, by profiler.reduce.host_part.file_key."""
        try:
            done = [path for path in self._hosts.iterdir() if path.name.endswith(self._suffix)]
        except OSError:
            return frozenset()
        # A machine that went down can leave a file of the right name without its end.
        return frozenset(path.name.removesuffix(self._suffix) for path in done if zipfile.is_zipfile(path))

    def add(self, host: Packed) -> None:
        """Keeps one host, whole or not at all."""
        self._hosts.mkdir(parents=True, exist_ok=True)
        place = self._place(host.key)
        new = place.with_suffix(".new")
        new.write_bytes(host.data)
        new.replace(place)

    def get(self, key: str) -> Kept:
        """One host that is done."""
        return Kept(self._place(key))

    def _place(self, key: str) -> Path:
        return self._hosts / f"{key}{self._suffix}"


class Kept:
    """One host of a partial folder; each of its tables is read when it is asked for."""

    def __init__(self, path: Path):
        self.path = path
        self.facts: dict[str, Any] = json.loads(self._read("facts.json"))

    def run_info(self) -> dict[str, Any] | None:
        """What the run says of itself."""
        info: dict[str, Any] | None = json.loads(self._read("run_info.json"))
        return info

    def ops(self) -> pl.DataFrame:
        """Trace.ops of the file."""
        return pl.read_parquet(io.BytesIO(self._read("ops.parquet")))

    def steps(self) -> pl.DataFrame:
        """See host_tables.steps."""
        return pl.read_parquet(io.BytesIO(self._read("steps.parquet")))

    def sums(self) -> pl.DataFrame:
        """See host_tables.sums."""
        return pl.read_parquet(io.BytesIO(self._read("sums.parquet")))

    def _read(self, name: str) -> bytes:
        with zipfile.ZipFile(self.path) as archive:
            return archive.read(name)


def pack(part: HostPart) -> bytes:
    """One host as a file; where it is read, so that who collects them has little to do."""
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w") as archive:
        archive.writestr("facts.json", json.dumps({**host_tables.facts(part), "ops": part.ops.digest}))
        archive.writestr("run_info.json", json.dumps(part.run_info))
        archive.writestr("ops.parquet", packed(part.ops.frame()))
        archive.writestr("steps.parquet", packed(host_tables.steps(part)))
        archive.writestr("sums.parquet", packed(host_tables.sums(part)))
    return buffer.getvalue()


def packed(frame: pl.DataFrame) -> bytes:
    """A table as bytes, equal for equal tables."""
    buffer = io.BytesIO()
    frame.write_parquet(buffer, compression="zstd", compression_level=9, row_group_size=1 << 20)
    return buffer.getvalue()
