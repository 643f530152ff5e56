"""Folders of a store are looked through by the rules for the disk, and no name in one leads elsewhere."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from profiler.errors import UnreadableError
from profiler.xplane import cache, remote
from profiler.xplane.locate import Side, labels, locate

Fetched = Callable[[str], tuple[Path, ...]]
STAMPS = ("2026_11_30_10_00_00", "2026_12_01_09_00_00")


@pytest.fixture
def memory() -> Iterator[SimpleNamespace]:
    import fsspec

    fs = fsspec.filesystem("memory")
    yield fs
    for name in fs.ls("/", detail=False):
        fs.rm(name, recursive=True)


def found(side: Side, top: str) -> tuple[str, list[str]]:
    """(label, files below the folder); of the URL what it shows."""
    names = [name.replace(os.sep, "/") for recording in side.recordings for name in recording.names]
    return side.label, sorted(name.partition(top)[2] for name in names)


def both(memory, folder: Path, files: list[str], below: str) -> tuple[object, object]:
    """What a folder with these files is on the disk and in the store; the message where it is nothing."""
    results = []
    for name in files:
        path = folder / "logs" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(b"x")
        memory.pipe(f"/logs/{name}", b"x")
    for top in (str(folder / "logs"), "memory:///logs"):
        try:
            results.append(found(locate(f"{top}/{below}".rstrip("/")), "logs"))
        except UnreadableError as error:
            results.append(error.what)
    return results[0], results[1]


@pytest.mark.parametrize(
    ("files", "below"),
    [
        (["a.xplane.pb"], ""),
        (["a.xplane.pb"], "a.xplane.pb"),
        (["h0.xplane.pb", "h1.xplane.pb.gz", "notes.txt"], ""),
        ([f"plugins/profile/{STAMPS[0]}/h0.xplane.pb", f"plugins/profile/{STAMPS[1]}/h0.xplane.pb"], ""),
        ([f"plugins/profile/{STAMPS[1]}/h0.xplane.pb", f"plugins/profile/{STAMPS[0]}/h0.xplane.pb"], "plugins/profile"),
        ([f"plugins/profile/{STAMPS[0]}/h0.xplane.pb"], "plugins"),
        ([f"train/plugins/profile/{STAMPS[1]}/h.xplane.pb", f"plugins/profile/{STAMPS[0]}/h.xplane.pb"], ""),
        ([f"{STAMPS[0]}/h0.xplane.pb", f"{STAMPS[1]}/h0.xplane.pb", f"{STAMPS[1]}/h1.xplane.pb"], ""),
        (["checkpoints/7/state", "a/b/c.xplane.pb"], ""),
        (["readme.txt"], ""),
        (["a.xplane.pb"], "nothing"),
        ([f"plugins/profile/{STAMPS[0]}/deeper/h.xplane.pb"], ""),
    ],
)
def test_a_store_is_read_like_the_disk(memory, tmp_path: Path, files: list[str], below: str) -> None:
    on_disk, in_store = both(memory, tmp_path, files, below)
    assert in_store == on_disk


_places = st.sampled_from(["", "plugins/", "plugins/profile/", "train/plugins/profile/", "a/b/plugins/profile/", "x/"])


@given(
    runs=st.lists(st.tuples(_places, st.integers(1, 3), st.booleans()), min_size=1, max_size=5),
    below=st.sampled_from(["", "plugins", "plugins/profile", "train"]),
)
@settings(max_examples=40, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_any_log_folder_is_read_like_the_disk(
    tmp_path_factory: pytest.TempPathFactory, memory, runs: list[tuple[str, int, bool]], below: str
) -> None:
    if memory.exists("/logs"):
        memory.rm("/logs", recursive=True)
    files = [
        f"{place}2026_12_0{day}_10_00_00/h{host}{suffix}"
        for day, (place, hosts, profiles) in enumerate(runs, 1)
        for host in range(hosts)
        for suffix in (".xplane.pb" if profiles else ".txt",)
    ]
    on_disk, in_store = both(memory, tmp_path_factory.mktemp("tree"), files, below)
    assert in_store == on_disk


def test_labels_of_stores_are_told_apart(memory) -> None:
    for side in ("base", "opt"):
        memory.pipe(f"/{side}/run/h0.xplane.pb", b"x")
    assert labels(["memory:///base/run", "memory:///opt/run"]) == ["base/run", "opt/run"]
    assert labels(["old=memory:///base/run", "memory:///opt/run"]) == ["old", "run"]


def test_sides_may_mix_stores_and_the_disk(memory, tmp_path: Path) -> None:
    (tmp_path / "b.xplane.pb").write_bytes(b"x")
    memory.pipe("/a.xplane.pb", b"x")
    side = locate(f"two=memory:///a.xplane.pb,{tmp_path / 'b.xplane.pb'},memory:///a.xplane.pb")
    assert side.label == "two"
    assert [len(recording.remote) for recording in side.recordings] == [1, 0, 1]


def test_a_comma_in_a_url_belongs_to_it(memory) -> None:
    memory.pipe("/lr=0.1,wd=0/h0.xplane.pb", b"x")
    assert locate("memory:///lr=0.1,wd=0/h0.xplane.pb").recordings[0].names == ("memory:///lr=0.1,wd=0/h0.xplane.pb",)


def test_a_changed_run_is_another_one(memory) -> None:
    memory.pipe("/run/h0.xplane.pb", b"old")
    before = locate("memory:///run").recordings[0].files
    memory.pipe("/run/h0.xplane.pb", b"new")
    assert locate("memory:///run").recordings[0].files != before


def test_an_index_page_is_a_folder(web, profile: bytes, fetched: Fetched) -> None:
    web.pages["/logs/"] = '<a href="../">up</a><a href="plugins/">plugins/</a>'
    web.pages["/logs/plugins/"] = '<a href="profile/">profile/</a>'
    web.pages["/logs/plugins/profile/"] = "".join(f'<a href="{stamp}/">{stamp}</a>' for stamp in STAMPS)
    for stamp in STAMPS:
        web.pages[f"/logs/plugins/profile/{stamp}/"] = '<a href="h%200.xplane.pb">h 0</a>'
        web.files[f"/logs/plugins/profile/{stamp}/h%200.xplane.pb"] = profile + stamp.encode()
    (file,) = fetched(f"{web.url}/logs/")
    assert file.read_bytes() == profile + STAMPS[1].encode()
    side = locate(f"{web.url}/logs/")
    assert side.label == "logs"
    assert side.recordings[0].names == (f"{web.url}/logs/plugins/profile/{STAMPS[1]}/h 0.xplane.pb",)


def test_links_that_lead_out_of_the_folder_are_not_followed(web) -> None:
    web.pages["/run/"] = "".join(
        f'<a href="{link}">x</a>'
        for link in (
            "../secret.xplane.pb",
            "..%2F..%2Fsecret.xplane.pb",
            "a/../../secret.xplane.pb",
            "/secret.xplane.pb",
            "http://127.0.0.1:9/run/secret.xplane.pb",
            "%2e%2e/secret.xplane.pb",
            "..\\secret.xplane.pb",
            "x%00.xplane.pb",
            "in.xplane.pb",
        )
    )
    web.files["/run/in.xplane.pb"] = web.files["/secret.xplane.pb"] = b"x"
    assert locate(f"{web.url}/run/").recordings[0].names == (f"{web.url}/run/in.xplane.pb",)


def test_a_server_without_an_index_page_asks_for_a_file(web) -> None:
    with pytest.raises(UnreadableError, match="over http give the URL of a file"):
        locate(f"{web.url}/logs")
    web.pages["/empty/"] = "<p>nothing"
    with pytest.raises(UnreadableError, match=r"holds no .xplane.pb file \(over http give the URL of a file"):
        locate(f"{web.url}/empty/")


def test_a_store_of_too_many_folders_asks_for_a_run(memory, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(remote, "MOST_FOLDERS", 5)
    for number in range(10):
        memory.pipe(f"/logs/{number}/x.txt", b"")
    with pytest.raises(UnreadableError, match=r"holds more than 5 folders \(name the run's folder\)"):
        locate("memory:///logs")


@given(names=st.lists(st.text(min_size=1, max_size=300), min_size=1, max_size=4))
@settings(max_examples=200, deadline=None)
def test_no_name_of_a_store_leaves_the_cache(names: list[str]) -> None:
    files = [
        remote.RemoteFile(name, "s3://b/x", f"s3://b/{name}", 1, "etag:1", None, 0.0, name, None)
        for name in (*names, "../../etc/passwd", "..", ".", "/etc/passwd", "C:\\x", ".part")
    ]
    places = cache.places(files)
    assert len(set(places)) == len(places)
    for place in places:
        assert place.parent.parent == cache.root()
        assert place.name not in ("", ".", "..") and "/" not in place.name and "\\" not in place.name
        assert len(place.name.encode()) < 200
        assert Path(os.path.normpath(place)) == place


@pytest.mark.parametrize(
    ("url", "what"),
    [
        ("nonsense://a/b", "nonsense:// is no scheme that fsspec knows"),
        ("file:///etc/passwd", "is no URL of a store"),
        ("simplecache::s3://a/b", "no such file or folder"),
        ("zip://a.xplane.pb::s3://a/b", "is no URL of a store"),
        ("memory:///nothing.xplane.pb", "no such file or folder"),
    ],
)
def test_urls_that_name_nothing(url: str, what: str) -> None:
    with pytest.raises(UnreadableError, match=what):
        locate(url)
