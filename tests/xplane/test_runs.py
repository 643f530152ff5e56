"""The recordings below a folder, and what each says about itself."""

from __future__ import annotations

import gzip
import json
import os
import shutil
import sys
from datetime import UTC, datetime
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

import sample_profiles
from profiler import api
from profiler.runinfo import flat
from profiler.xplane.locate import locate
from profiler.xplane.runs import Run, facts, runs
from profiler.xplane.write import PlaneBuilder, append_plane

SAMPLE = sample_profiles.path("cpu-remat/baseline.xplane.pb.gz")


def touch(folder: Path, *files: str) -> None:
    for file in files:
        (folder / file).parent.mkdir(parents=True, exist_ok=True)
        (folder / file).write_bytes(b"\x0a\x00")


def names(folder: Path, **limits: int) -> list[str]:
    return [run.name for run in runs(folder, **limits).runs]


def only(file: Path) -> Run:
    (run,) = runs(file).runs
    return run


def test_a_run_is_a_folder_of_hosts_below_plugins_profile_or_named_by_its_time(tmp_path):
    touch(
        tmp_path,
        "base/plugins/profile/2026_11_30_10_00_00/host-0.xplane.pb",
        "base/plugins/profile/2026_11_30_10_00_00/host-1.xplane.pb.gz",
        "base/plugins/profile/named/host-0.xplane.pb",
        "2026_11_29_10_00_00/host-0.xplane.pb",
        "pair/baseline.xplane.pb",
        "pair/optimized.xplane.pb",
        "pair/notes.txt",
    )
    found = {run.name: len(run.files) for run in runs(tmp_path).runs}
    assert found == {
        "base/2026_11_30_10_00_00": 2,
        "base/named": 1,
        "2026_11_29_10_00_00": 1,
        "pair/baseline": 1,
        "pair/optimized": 1,
    }


def test_the_path_of_a_run_is_an_argument_that_names_its_files(tmp_path):
    touch(tmp_path, "logs/plugins/profile/2026_11_30_10_00_00/a.xplane.pb", "logs/b.xplane.pb")
    touch(tmp_path, "logs/plugins/profile/2026_11_30_10_00_00/c.xplane.pb.gz")
    for run in runs(tmp_path).runs:
        (recording,) = locate(run.path).recordings
        assert recording.files == run.files


def test_the_newest_run_is_first_by_its_name_or_its_file(tmp_path):
    touch(tmp_path, "2026_11_30_10_00_00/a.xplane.pb", "2026_12_01_10_00_00/a.xplane.pb", "x.xplane.pb")
    when = datetime(2026, 11, 30, 12).astimezone().timestamp()
    os.utime(tmp_path / "x.xplane.pb", (when, when))
    assert names(tmp_path) == ["2026_12_01_10_00_00", "x", "2026_11_30_10_00_00"]


@pytest.mark.parametrize("stamp", ["2026_13_01_00_00_00", "2026_02_31_00_00_00", "0000_01_01_00_00_00"])
def test_a_name_that_is_no_time_leaves_the_time_of_the_file(tmp_path, stamp):
    touch(tmp_path, f"{stamp}/a.xplane.pb")
    os.utime(tmp_path / stamp / "a.xplane.pb", (1e9, 1e9))
    assert runs(tmp_path).runs[0].started == datetime.fromtimestamp(1e9, UTC)


@pytest.mark.skipif(sys.platform == "win32", reason="links need rights there")
def test_links_are_not_followed(tmp_path):
    touch(tmp_path, "outside/a.xplane.pb", "logs/b.xplane.pb", "logs/2026_11_30_10_00_00/host-0.xplane.pb")
    (tmp_path / "logs/folder").symlink_to("../outside")
    (tmp_path / "logs/loop").symlink_to(".")
    (tmp_path / "logs/link.xplane.pb").symlink_to("../outside/a.xplane.pb")
    (tmp_path / "logs/2026_11_30_10_00_00/host-1.xplane.pb").symlink_to("../../outside/a.xplane.pb")
    found = runs(tmp_path / "logs")
    # The folder of a run means all that is in it; with a link among that, its files are runs of their own.
    assert sorted(run.name for run in found.runs) == ["2026_11_30_10_00_00/host-0", "b"]
    assert [note.code for note in found.notes] == ["runs_linked"]


def test_hidden_folders_are_left_alone(tmp_path):
    touch(tmp_path, ".cache/a.xplane.pb", "b.xplane.pb")
    assert names(tmp_path) == ["b"]


def test_a_search_that_stops_says_so(tmp_path):
    touch(tmp_path, *(f"{number:03d}/a.xplane.pb" for number in range(30)), "x/y/z/deep.xplane.pb")
    assert len(names(tmp_path, most=10)) == 10
    assert [note.code for note in runs(tmp_path, most=10).notes] == ["runs_stopped"]
    assert [note.code for note in runs(tmp_path, entries=10).notes] == ["runs_stopped"]
    assert "x/y/z/deep" in names(tmp_path)
    assert "x/y/z/deep" not in names(tmp_path, depth=2)
    assert [note.code for note in runs(tmp_path, depth=2).notes] == ["runs_deep"]
    assert runs(tmp_path).notes == ()


@pytest.mark.skipif(sys.platform != "linux", reason="such names cannot be made there")
def test_names_that_are_no_text_are_left_out_and_counted(tmp_path):
    touch(tmp_path, "a.xplane.pb")
    (Path(os.fsdecode(os.fsencode(tmp_path) + b"/\xff.xplane.pb"))).write_bytes(b"x")
    found = runs(tmp_path)
    assert [run.name for run in found.runs] == ["a"]
    assert [note.code for note in found.notes] == ["runs_nameless"]


def test_a_folder_without_runs_or_without_anything_gives_none(tmp_path):
    assert runs(tmp_path).runs == ()
    touch(tmp_path, "notes.txt")
    assert runs(tmp_path).runs == runs(tmp_path / "notes.txt").runs == ()
    assert [note.code for note in runs(tmp_path / "nothing").notes] == ["runs_unreadable"]


def test_a_sample_says_what_its_run_info_says():
    path = sample_profiles.path("qwen3-30b/optimized.xplane.pb")
    said, summary = facts(only(path)), api.summary(str(path))
    info = summary.run_info
    assert info is not None
    assert (said.kind, said.model, said.topology) == ("compiled", info["config"]["model_name"], info["topology"])
    assert (said.batch, said.sequence) == (6, 8192)
    assert said.mesh == info["mesh"]
    assert said.devices == 128
    assert said.config == flat(info["config"])
    assert dict(said.versions) == info["versions"]
    assert said.error is None


def test_a_recording_says_when_it_began_and_which_commit_ran():
    said = facts(only(sample_profiles.path("tiny-qwen3/baseline.xplane.pb.gz")))
    assert said.kind == "recorded"
    assert said.chip == "CPU"
    assert said.commit == "ef9270ea583cdb96215fcc41eb443c536c9273a7"
    assert said.started is not None and said.started.astimezone(UTC).isoformat(timespec="seconds").startswith(
        "2026-12-01T01"
    )
    assert said.versions["jax"] == "0.10.2"


@pytest.mark.recordings
def test_the_chip_is_the_one_that_a_summary_names(recordings):
    for name in ("tpu_v6e_inference", "mi300x_conv_new", "gfx950_fused_attention", "nvidia_8gpu_tf2"):
        path = recordings / f"{name}.xplane.pb"
        kinds = {device.type for device in api.summary(str(path)).devices}
        said = facts(only(path)).chip
        assert said is not None
        assert kinds == {said} or said == "TPU v6e"


def test_a_file_without_run_info_says_what_it_can(tmp_path):
    shutil.copy(SAMPLE, tmp_path / "a.xplane.pb.gz")
    said = facts(only(tmp_path / "a.xplane.pb.gz"))
    assert (said.kind, said.model, said.batch, said.config, said.mesh) == ("recorded", None, None, {}, {})


def with_info(tmp_path: Path, text: str) -> Run:
    file = tmp_path / "a.xplane.pb"
    file.write_bytes(gzip.decompress(SAMPLE.read_bytes()))
    append_plane(file, PlaneBuilder("/host:run_info", stats={"run_info": text}))
    return only(file)


@pytest.mark.parametrize(
    "text",
    [
        "",
        "no json",
        "[1, 2]",
        "[" * 100_000,
        '{"config": 3, "mesh": [1], "versions": 7, "topology": {}, "git_commit": 5, "kind": []}',
        '{"config": {"per_device_batch_size": "many", "max_target_length": -1, "model_name": ["x"]}}',
        '{"mesh": {"data": NaN, "fsdp": "x", "y": 1e400}, "config": {"a": {"b": {}}}}',
    ],
)
def test_run_info_of_any_form_is_no_failure(tmp_path, text):
    said = facts(with_info(tmp_path, text))
    assert said.error is None
    assert said.kind == "recorded"
    assert (said.model, said.batch, said.sequence, said.mesh, said.commit) == (None, None, None, {}, None)


def test_long_texts_are_cut(tmp_path):
    said = facts(with_info(tmp_path, json.dumps({"config": {"model_name": "x" * 10_000}})))
    assert said.model == "x" * 200


@pytest.mark.parametrize("data", [b"", b"text", b"\x1f\x8b", b"\x1f\x8b" + b"x" * 99, b"\x00" * 100, b"\xff" * 1000])
def test_a_broken_file_is_an_error_in_words(tmp_path, data):
    (tmp_path / "a.xplane.pb").write_bytes(data)
    said = facts(only(tmp_path / "a.xplane.pb"))
    assert said.kind is None
    assert said.error
    assert str(tmp_path) not in said.error


def test_a_file_that_went_away_is_an_error_in_words(tmp_path):
    touch(tmp_path, "a.xplane.pb")
    run = only(tmp_path / "a.xplane.pb")
    (tmp_path / "a.xplane.pb").unlink()
    assert facts(run).error


def test_a_gzipped_file_that_is_too_large_to_unpack_is_an_error_in_words():
    said = facts(only(SAMPLE), most_unpacked=1 << 20)
    assert said.error == "unpacks to more than 1 MiB"


@given(cut=st.integers(0, 20_000), flip=st.integers(0, 20_000), byte=st.integers(0, 255))
def test_facts_of_damaged_files_never_fail(tmp_path_factory, cut, flip, byte):
    file = tmp_path_factory.getbasetemp() / "damaged.xplane.pb"
    data = bytearray(gzip.decompress(SAMPLE.read_bytes()))[: 20_000 - cut]
    if flip < len(data):
        data[flip] = byte
    file.write_bytes(bytes(data))
    said = facts(only(file))
    assert (said.error is None) == (said.kind is not None)
