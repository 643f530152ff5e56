"""Fetching: whole or not at all, of one version, from where it stopped, and with one clear line where it fails."""

from __future__ import annotations

import base64
import hashlib
import os
import stat
import traceback
from collections.abc import Callable
from pathlib import Path

import pytest

from profiler.errors import UnreadableError
from profiler.xplane import remote

Fetched = Callable[[str], tuple[Path, ...]]
NAME = "/runs/a.xplane.pb.gz"
PART = 64 << 10


def partials(folder: Path) -> list[Path]:
    return sorted(folder.glob("*/*.part"))


def test_a_file_comes_in_parts_and_only_once(web, profile: bytes, fetched: Fetched, cache_folder: Path) -> None:
    web.files[NAME] = profile
    (file,) = fetched(web.url + NAME)
    assert file.read_bytes() == profile
    assert sorted(web.begins()) == list(range(0, len(profile), PART))
    assert not partials(cache_folder)
    web.gets.clear()
    assert fetched(web.url + NAME) == (file,)
    assert not web.gets


@pytest.mark.skipif(os.name == "nt", reason="permissions of POSIX")
def test_what_was_fetched_is_for_its_owner_alone(web, profile: bytes, fetched: Fetched) -> None:
    web.files[NAME] = profile
    (file,) = fetched(web.url + NAME)
    assert stat.S_IMODE(file.stat().st_mode) == 0o600
    assert {stat.S_IMODE(folder.stat().st_mode) for folder in (file.parent, file.parent.parent)} == {0o700}


def test_an_empty_file_is_one(web, fetched: Fetched) -> None:
    web.files[NAME] = b""
    assert fetched(web.url + NAME)[0].read_bytes() == b""


def test_cut_connections_are_taken_up_again(web, profile: bytes, fetched: Fetched) -> None:
    web.files[NAME] = profile
    web.cut_after, web.cuts = 1000, 6
    assert fetched(web.url + NAME)[0].read_bytes() == profile


def test_errors_of_the_server_that_pass_are_waited_for(web, profile: bytes, fetched: Fetched) -> None:
    web.files[NAME] = profile
    web.statuses = [503, 0, 500, 429, 0, 502]
    assert fetched(web.url + NAME)[0].read_bytes() == profile


def test_an_interrupted_download_goes_on_where_it_stopped(
    web, profile: bytes, fetched: Fetched, cache_folder: Path
) -> None:
    web.files[NAME] = profile
    web.lost_from = 3 * PART
    with pytest.raises(UnreadableError, match="5 times"):
        fetched(web.url + NAME)
    (partial,) = partials(cache_folder)
    here = partial.stat().st_size
    assert here == 3 * PART
    assert profile.startswith(partial.read_bytes())
    web.lost_from = None
    web.gets.clear()
    assert fetched(web.url + NAME)[0].read_bytes() == profile
    assert min(web.begins()) == here
    assert not partials(cache_folder)


def test_a_partial_file_of_any_length_is_gone_on_with(
    web, profile: bytes, fetched: Fetched, cache_folder: Path
) -> None:
    web.files[NAME] = profile
    (file,) = fetched(web.url + NAME)
    for length in (0, 1, PART - 1, PART, len(profile) - 1, len(profile)):
        file.with_name(file.name + ".part").write_bytes(profile[:length])
        file.unlink()
        assert fetched(web.url + NAME) == (file,)
        assert file.read_bytes() == profile


def test_an_object_that_changed_between_two_tries_begins_anew(web, profile: bytes, fetched: Fetched) -> None:
    web.files[NAME] = profile
    web.lost_from = 3 * PART
    with pytest.raises(UnreadableError):
        fetched(web.url + NAME)
    other = bytes(reversed(profile))
    web.files[NAME], web.lost_from = other, None
    assert fetched(web.url + NAME)[0].read_bytes() == other


@pytest.mark.parametrize("longer", [-100_000, 0, 100_000], ids=["shorter", "as long", "longer"])
def test_an_object_that_changes_under_way_is_refused_and_nothing_stays(
    web, profile: bytes, fetched: Fetched, cache_folder: Path, longer: int
) -> None:
    web.files[NAME] = profile
    other = bytes(reversed(profile + bytes(max(longer, 0))))[: len(profile) + longer]
    web.before_get = lambda number: web.files.__setitem__(NAME, profile if number <= 3 else other)
    with pytest.raises(UnreadableError, match="changed while it was read"):
        fetched(web.url + NAME)
    assert [path for path in cache_folder.rglob("*") if path.suffix != ".lock" and path.is_file()] == []
    assert fetched(web.url + NAME)[0].read_bytes() == other


def test_an_object_that_is_deleted_under_way_is_not_there(web, profile: bytes, fetched: Fetched) -> None:
    web.files[NAME] = profile
    web.before_get = lambda number: web.files.pop(NAME, None) if number == 3 else None
    with pytest.raises(UnreadableError, match="no such file or folder"):
        fetched(web.url + NAME)


def test_a_server_without_ranges_gives_the_whole_file(web, profile: bytes, fetched: Fetched) -> None:
    web.files[NAME], web.ranges = profile, False
    assert fetched(web.url + NAME)[0].read_bytes() == profile
    web.files[NAME] = profile[::-1]
    web.cut_after, web.cuts = 1000, 8
    assert fetched(web.url + NAME)[0].read_bytes() == profile[::-1]


def test_what_nothing_but_its_size_identifies_comes_in_one_answer_every_time(
    web, profile: bytes, fetched: Fetched
) -> None:
    web.files[NAME], web.etags = profile, False
    assert fetched(web.url + NAME)[0].read_bytes() == profile
    assert not web.begins()
    web.files[NAME] = profile[::-1]
    assert fetched(web.url + NAME)[0].read_bytes() == profile[::-1]


def test_a_server_that_does_not_say_the_size_is_believed(web, profile: bytes, fetched: Fetched) -> None:
    web.files[NAME], web.sizes = profile, False
    assert fetched(web.url + NAME)[0].read_bytes() == profile


def test_a_checksum_is_checked(web, profile: bytes, fetched: Fetched, cache_folder: Path) -> None:
    web.files[NAME] = profile
    right = base64.b64encode(hashlib.md5(profile).digest()).decode()
    web.headers["Content-MD5"] = base64.b64encode(bytes(16)).decode()
    web.etags = False
    with pytest.raises(UnreadableError, match="came damaged"):
        fetched(web.url + NAME)
    assert not list(cache_folder.glob("*/*"))
    web.headers["Content-MD5"] = right
    assert fetched(web.url + NAME)[0].read_bytes() == profile


@pytest.mark.parametrize(
    ("status", "what"),
    [
        (401, "no credentials, or ones that do not hold"),
        (403, "no permission, or no such object"),
        (404, "no such file or folder"),
        (410, "no such file or folder"),
        (500, "the server answers 500, 5 times"),
        (418, "the server answers 418"),
    ],
)
def test_a_refusal_is_one_line_without_secrets(web, profile: bytes, fetched: Fetched, status: int, what: str) -> None:
    web.files[NAME] = profile
    web.statuses = [status] * 99
    url = web.url.replace("://", "://ada:passw0rd@") + NAME + "?X-Amz-Signature=s3cret"
    with pytest.raises(UnreadableError) as caught:
        fetched(url)
    assert what in str(caught.value)
    assert str(caught.value).startswith(f"{web.url}{NAME}: ")
    told = "".join(traceback.format_exception(caught.value)) + repr(caught.value)
    assert "\n" not in str(caught.value)
    assert not any(secret in told.replace(url, "") for secret in ("passw0rd", "s3cret"))


def test_a_server_that_does_not_answer_is_given_up(
    web, profile: bytes, fetched: Fetched, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(remote, "TIMEOUT_S", 0.1)
    web.files[NAME], web.pause_s = profile, 1.0
    with pytest.raises(UnreadableError, match="does not answer in time, 5 times"):
        fetched(web.url + NAME)


def test_a_server_that_is_not_there_is_said(web, fetched: Fetched) -> None:
    with pytest.raises(UnreadableError, match="the connection fails, 5 times"):
        fetched("http://127.0.0.1:9/a.xplane.pb")
    with pytest.raises(UnreadableError, match="the name of the server cannot be resolved"):
        fetched("http://no-such-host.invalid/a.xplane.pb")


def test_a_url_that_is_signed_anew_is_the_same_file_and_another_query_is_not(
    web, profile: bytes, fetched: Fetched
) -> None:
    web.files[NAME] = profile
    first = fetched(f"{web.url}{NAME}?X-Amz-Signature=1&X-Amz-Date=2")
    web.gets.clear()
    assert fetched(f"{web.url}{NAME}?X-Amz-Signature=3&X-Amz-Date=4") == first
    assert not web.gets
    assert fetched(f"{web.url}{NAME}?id=7") != first


def test_many_files_come_beside_each_other(web, profile: bytes, fetched: Fetched) -> None:
    hosts = {f"/runs/r/host-{number}.xplane.pb": profile[number * 1000 :] for number in range(12)}
    web.files.update(hosts)
    web.pages["/runs/r/"] = "".join(f'<a href="{Path(name).name}">x</a>' for name in hosts)
    files = fetched(f"{web.url}/runs/r/")
    assert {file.name: file.read_bytes() for file in files} == {Path(name).name: data for name, data in hosts.items()}
    assert len({file.parent for file in files}) == 1
