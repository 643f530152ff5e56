"""What a PATH argument may be."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from profiler.errors import UnreadableError
from profiler.xplane.locate import host_name, labels, locate


def profile(path: Path) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(b"x")
    return path


def files(argument: object) -> list[str]:
    return [file.name for recording in locate(str(argument)).recordings for file in recording.files]


def test_a_file_is_itself_and_its_label_is_its_host(tmp_path) -> None:
    path = profile(tmp_path / "t1v-0.xplane.pb")
    side = locate(str(path))
    assert side.label == "t1v-0"
    assert side.recordings[0].files == (path,)
    assert host_name(Path("a.b.xplane.pb.gz")) == "a.b"


def test_a_run_folder_is_all_its_hosts_in_order(tmp_path) -> None:
    for name in ("b.xplane.pb", "a.xplane.pb.gz", "a.trace.json.gz", "ALL_HOSTS.op_stats.pb"):
        profile(tmp_path / "run" / name)
    assert files(tmp_path / "run") == ["a.xplane.pb.gz", "b.xplane.pb"]
    assert locate(str(tmp_path / "run")).label == "run"


def test_a_log_folder_is_its_latest_run_by_name_not_by_when_it_was_copied(tmp_path) -> None:
    old = profile(tmp_path / "plugins/profile/2026_01_02_03_04_05/h.xplane.pb")
    new = profile(tmp_path / "plugins/profile/2026_11_02_03_04_05/h.xplane.pb")
    os.utime(new, (1, 1))
    assert locate(str(tmp_path)).recordings[0].files == (new,)
    assert locate(str(tmp_path / "plugins/profile")).recordings[0].files == (new,)
    assert old.exists()


def test_runs_with_other_names_go_by_their_newest_file(tmp_path) -> None:
    first = profile(tmp_path / "logs/plugins/profile/zeta/h.xplane.pb")
    second = profile(tmp_path / "logs/plugins/profile/alpha/h.xplane.pb")
    os.utime(first, (1, 1))
    assert locate(str(tmp_path)).recordings[0].files == (second,)


def test_a_label_goes_before_an_equals_sign_unless_that_is_the_files_name(tmp_path) -> None:
    path = profile(tmp_path / "lr=0.1.xplane.pb")
    assert locate(str(path)).label == "lr=0.1"
    assert locate(f"before={path}").label == "before"
    assert files(f"before={path}") == [path.name]


def test_commas_join_recordings_of_one_side_unless_they_are_in_a_name(tmp_path) -> None:
    one, two = profile(tmp_path / "1.xplane.pb"), profile(tmp_path / "2.xplane.pb")
    comma = profile(tmp_path / "a,b.xplane.pb")
    assert files(f"{one},{two}") == ["1.xplane.pb", "2.xplane.pb"]
    assert len(locate(f"opt={one},{two}").recordings) == 2
    assert files(comma) == ["a,b.xplane.pb"]


def test_a_windows_drive_letter_is_no_label() -> None:
    with pytest.raises(UnreadableError, match=r"^C:\\runs\\a=b\.xplane\.pb: no such file"):
        locate(r"C:\runs\a=b.xplane.pb")
    with pytest.raises(UnreadableError, match=r"^C:/runs/a\.xplane\.pb: no such file"):
        locate("base=C:/runs/a.xplane.pb")


@pytest.mark.parametrize("argument", ["", ",", "missing.xplane.pb", "x=missing"])
def test_what_is_not_there_is_an_error(argument) -> None:
    with pytest.raises(UnreadableError):
        locate(argument)


def test_a_folder_without_profiles_says_what_would_do(tmp_path) -> None:
    with pytest.raises(UnreadableError, match=r"holds no \.xplane\.pb file .*plugins/profile"):
        locate(str(tmp_path))


def test_sides_of_one_name_are_told_apart_by_the_nearest_folder_that_differs(tmp_path) -> None:
    paths = [tmp_path / folder / "logs" / "host.xplane.pb" for folder in ("a", "b")] + [tmp_path / "c" / "x.xplane.pb"]
    for path in paths:
        path.parent.mkdir(parents=True)
        path.touch()
    a, b, c = map(str, paths)
    assert labels([a, b, c]) == ["a/host", "b/host", "x"]
    assert labels([a, a]) == ["host", "host"]
    assert labels([f"old={a}", b]) == ["old", "host"]
    assert labels([str(tmp_path / "a" / "logs"), str(tmp_path / "b" / "logs")]) == ["a/logs", "b/logs"]
