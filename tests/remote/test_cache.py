"""The cache: of a bounded size, for its owner alone, and never of half a file."""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

from profiler.errors import UnreadableError, UsageError
from profiler.xplane import cache

Fetched = Callable[[str], tuple[Path, ...]]


def age(file: Path, seconds: float) -> None:
    lock = file.parent.with_name(f"{file.parent.name}.lock")
    os.utime(lock, (lock.stat().st_atime, lock.stat().st_mtime - seconds))


def test_what_was_used_longest_ago_goes_first(
    web, profile: bytes, fetched: Fetched, monkeypatch: pytest.MonkeyPatch, cache_folder: Path
) -> None:
    files = {}
    for number in range(4):
        web.files[f"/{number}.xplane.pb.gz"] = profile
        (files[number],) = fetched(f"{web.url}/{number}.xplane.pb.gz")
        age(files[number], 10_000 - number)
    fetched(f"{web.url}/0.xplane.pb.gz")  # used again
    web.files["/new.xplane.pb.gz"] = profile
    monkeypatch.setenv("PROFILER_CACHE_GB", str(3.5 * len(profile) / 1e9))
    (new,) = fetched(f"{web.url}/new.xplane.pb.gz")
    assert [number for number, file in files.items() if file.exists()] == [0, 3]
    assert new.exists()
    assert sorted(path.stem for path in cache_folder.glob("*.lock")) == sorted(
        file.parent.name for file in (files[0], files[3], new)
    )


def test_what_is_in_use_stays_whatever_the_size(
    web, profile: bytes, fetched: Fetched, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PROFILER_CACHE_GB", "0")
    places = []
    for name in ("just used", "held", "old"):
        web.files[f"/{name.replace(' ', '-')}.xplane.pb.gz"] = profile
        places += fetched(f"{web.url}/{name.replace(' ', '-')}.xplane.pb.gz")
    for file in places[1:]:
        age(file, 10_000)
    web.files["/new.xplane.pb.gz"] = profile
    with cache.locked(places[1].parent):
        fetched(f"{web.url}/new.xplane.pb.gz")
    assert [file.exists() for file in places] == [True, True, False]


def test_only_folders_of_the_cache_are_removed(
    web, profile: bytes, fetched: Fetched, monkeypatch: pytest.MonkeyPatch, cache_folder: Path
) -> None:
    (cache_folder / "mine").mkdir(parents=True, mode=0o700)
    cache_folder.chmod(0o700)
    (cache_folder / "mine" / "file").write_bytes(b"x" * 1000)
    monkeypatch.setenv("PROFILER_CACHE_GB", "0")
    web.files["/a.xplane.pb.gz"] = profile
    fetched(f"{web.url}/a.xplane.pb.gz")
    assert (cache_folder / "mine" / "file").exists()


def test_a_file_that_was_cut_in_the_cache_is_fetched_again(web, profile: bytes, fetched: Fetched) -> None:
    web.files["/a.xplane.pb.gz"] = profile
    (file,) = fetched(f"{web.url}/a.xplane.pb.gz")
    file.write_bytes(profile[:100])
    assert fetched(f"{web.url}/a.xplane.pb.gz")[0].read_bytes() == profile


@pytest.mark.skipif(os.name == "nt", reason="permissions of POSIX")
def test_a_folder_that_others_may_write_to_is_refused(
    web, profile: bytes, fetched: Fetched, cache_folder: Path
) -> None:
    cache_folder.mkdir(parents=True)
    cache_folder.chmod(0o777)
    web.files["/a.xplane.pb.gz"] = profile
    with pytest.raises(UnreadableError, match=r"others may write to it \(set PROFILER_CACHE"):
        fetched(f"{web.url}/a.xplane.pb.gz")


def test_a_folder_that_cannot_be_one_is_said(
    web, profile: bytes, fetched: Fetched, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    (tmp_path / "file").write_bytes(b"")
    monkeypatch.setenv("PROFILER_CACHE", str(tmp_path / "file"))
    web.files["/a.xplane.pb.gz"] = profile
    with pytest.raises(UnreadableError, match="cannot be made"):
        fetched(f"{web.url}/a.xplane.pb.gz")


def test_a_full_disk_is_said_before_anything_is_fetched(
    web, profile: bytes, fetched: Fetched, monkeypatch: pytest.MonkeyPatch
) -> None:
    usage = shutil.disk_usage(".")._replace(free=1000)
    monkeypatch.setattr(shutil, "disk_usage", lambda _: usage)
    web.files["/a.xplane.pb.gz"] = profile
    with pytest.raises(UnreadableError, match="room on its disk"):
        fetched(f"{web.url}/a.xplane.pb.gz")
    assert not web.gets


@pytest.mark.parametrize("size", ["much", "-1", "nan"])
def test_a_size_that_is_none_is_refused(
    web, profile: bytes, fetched: Fetched, monkeypatch: pytest.MonkeyPatch, size: str
) -> None:
    monkeypatch.setenv("PROFILER_CACHE_GB", size)
    web.files["/a.xplane.pb.gz"] = profile
    with pytest.raises(UsageError, match="PROFILER_CACHE_GB"):
        fetched(f"{web.url}/a.xplane.pb.gz")


def test_where_the_cache_lies(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "xdg"))
    assert cache.root() == tmp_path / "cache" / "remote"
    monkeypatch.delenv("PROFILER_CACHE")
    assert cache.root() == tmp_path / "xdg" / "profiler" / "remote"
    monkeypatch.delenv("XDG_CACHE_HOME")
    assert cache.root().parts[-2:] == ("profiler", "remote")
