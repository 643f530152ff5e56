"""From hand-made files to op tables, devices and warnings."""

from __future__ import annotations

import json

import pytest

import profiler
from profiler.api import Options
from profiler.errors import UnreadableError, UsageError
from profiler.xplane.write import SpaceBuilder

MS = 10**9


def codes(result) -> set[str]:
    return {note.code for note in result.warnings}


def test_a_loop_of_ten_ms_that_holds_two_ops_of_four_is_ten_ms_in_all(tpu_space, saved) -> None:
    space = tpu_space(
        {"TPU:0": {"XLA Ops": [("while.1", 0, 10 * MS), ("add.2", MS, 4 * MS), ("multiply.3", 5 * MS, 4 * MS)]}}
    )
    ops = {row["op"]: row for row in profiler.ops(saved(space)).ops.iter_rows(named=True)}
    assert {name: row["self_time_ps"] for name, row in ops.items()} == {
        "while.1": 2 * MS,
        "add.2": 4 * MS,
        "multiply.3": 4 * MS,
    }
    assert ops["while.1"]["total_time_ps"] == 10 * MS


def test_ops_without_a_symbol_get_no_row_but_still_take_time_from_their_parent(saved) -> None:
    space = SpaceBuilder()
    line = space.plane("/device:TPU:0").line("XLA Ops")
    line.event("%while.1 = …", 0, 10, display_name="while.1", metadata_stats={"program_id": 7, "symbol_id": 3})
    line.event("%fusion.2 = …", 2, 5, display_name="fusion.2", metadata_stats={"program_id": 7, "symbol_id": 0})
    table = profiler.ops(saved(space))
    assert table.ops.select("op", "self_time_ps").rows() == [("while.1", 5)]
    assert table.unattributed.select("op", "self_time_ps").rows() == [("fusion.2", 5)]


def test_flops_of_a_custom_call_that_the_compiler_counted_as_zero_are_unknown_not_zero(saved) -> None:
    space = SpaceBuilder()
    line = space.plane("/device:TPU:0").line("XLA Ops")
    stats = {"program_id": 7, "symbol_id": 3, "hlo_category": "custom-call", "flops": 0}
    line.event("%gmm.1 = f32[8] custom-call()", 0, 10, display_name="gmm.1", metadata_stats=stats)
    assert profiler.ops(saved(space)).ops["flops"].to_list() == [None]


def test_flops_and_bytes_are_those_of_all_occurrences(tpu_space, saved) -> None:
    space = tpu_space({"TPU:0": {"XLA Ops": [("add.1", 0, 5), ("add.1", 10, 5)]}})
    assert profiler.ops(saved(space)).ops.select("occurrences", "flops", "bytes_accessed").rows() == [(2, 32, 128)]


def test_two_hosts_with_equal_plane_names_stay_two_devices(tpu_space, saved, tmp_path) -> None:
    for host, duration in (("a", 5), ("b", 7)):
        space = tpu_space({"TPU:0": {"XLA Ops": [("add.1", 0, duration)]}})
        space._header.hostnames[:] = [host.encode()]
        saved(space, f"run/{host}.xplane.pb")
    table = profiler.ops(str(tmp_path / "run"), Options(all_devices=True))
    assert table.devices == 2
    assert table.ops.select("op", "occurrences", "total_time_ps").rows() == [("add.1", 2, 12)]
    summary = profiler.summary(str(tmp_path / "run"), Options(all_devices=True))
    assert [device.name for device in summary.devices] == ["a/TPU:0", "b/TPU:0"]
    only = profiler.ops(str(tmp_path / "run"), Options(host="b"))
    assert only.ops["total_time_ps"].to_list() == [7]
    with pytest.raises(UsageError, match="a, b"):
        profiler.ops(str(tmp_path / "run"), Options(host="c"))


def test_one_device_can_be_chosen_and_a_wrong_name_lists_the_right_ones(tpu_space, saved) -> None:
    path = saved(tpu_space({"TPU:0": {"XLA Ops": [("add.1", 0, 5)]}, "TPU:1": {"XLA Ops": [("add.1", 0, 9)]}}))
    assert profiler.ops(path, Options(device="TPU:1")).ops["total_time_ps"].to_list() == [9]
    with pytest.raises(UsageError, match="TPU:0, TPU:1"):
        profiler.ops(path, Options(device="TPU:2"))


def test_run_info_travels_with_the_trace(tpu_space, saved) -> None:
    space = tpu_space({"TPU:0": {"XLA Ops": [("add.1", 0, 1000)], "Steps": [("1", 0, 1000), ("2", 1000, 1000)]}})
    info = {"model_tflops_per_device_per_step": 1e-9, "convention": "maxtext", "config": {"remat_policy": "full"}}
    space.plane("/host:run_info", stats={"run_info": json.dumps(info)})
    summary = profiler.summary(saved(space))
    assert summary.run_info == info
    assert summary.mfu_inputs.convention == "maxtext"
    # 1e-9 TFLOP in 1000 ps on a chip of 918 TFLOP/s.
    assert summary.mfu == pytest.approx(1e-9 * 1e12 / (1000e-12 * 918e12))


def test_run_info_that_is_no_json_object_is_a_warning(tpu_space, saved) -> None:
    space = tpu_space({"TPU:0": {"XLA Ops": [("add.1", 0, 5)]}})
    space.plane("/host:run_info", stats={"run_info": "[" * 100_000})
    assert "run_info_unreadable" in codes(profiler.summary(saved(space)))


def test_a_compiled_profile_says_so(tpu_space, saved) -> None:
    space = tpu_space({"TPU:0": {"XLA Ops": [("add.1", 0, 5)]}})
    space.plane("/host:run_info", stats={"run_info": json.dumps({"kind": "compiled"})})
    assert profiler.summary(saved(space)).kind == "compiled"


def test_what_the_recorder_reported_is_shown(tpu_space, saved) -> None:
    space = tpu_space({"TPU:0": {"XLA Ops": [("add.1", 0, 5)]}})
    space.error("lost 3 buffers")
    space.warning("slow host")
    notes = profiler.ops(saved(space)).warnings
    assert ("recorder_error", "lost 3 buffers") in [(note.code, note.message) for note in notes]
    assert ("recorder_warning", "slow host") in [(note.code, note.message) for note in notes]


def test_a_cut_file_gives_what_is_whole_with_a_warning(tpu_space, tmp_path) -> None:
    first = tpu_space({"TPU:0": {"XLA Ops": [("add.1", 0, 5)]}}).to_bytes()
    second = tpu_space({"TPU:1": {"XLA Ops": [("add.1", 0, 5)]}}).to_bytes()
    path = tmp_path / "cut.xplane.pb"
    path.write_bytes(first + second[: len(second) // 2])
    table = profiler.ops(str(path))
    assert "truncated" in codes(table)
    assert table.ops["occurrences"].to_list() == [1]


def test_a_gzipped_file_reads_as_the_plain_one(tpu_space, saved) -> None:
    space = tpu_space({"TPU:0": {"XLA Ops": [("add.1", 0, 5)]}})
    assert profiler.ops(saved(space)).ops.equals(profiler.ops(saved(space, "x.xplane.pb.gz")).ops)


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("empty.xplane.pb", b"", "is empty"),
        ("text.xplane.pb", b"this is no profile, just words\n" * 9, "is not an xplane profile"),
        ("json.xplane.pb", b'{"traceEvents": []}', "is not an xplane profile"),
        ("broken.xplane.pb.gz", b"\x1f\x8b\x08\x00broken", "is not a whole gzip file"),
        ("no.xplane.pb.gz", b"plain text", "is not an xplane profile"),
    ],
)
def test_what_is_no_profile_is_one_clear_error(tmp_path, name, content, message) -> None:
    (tmp_path / name).write_bytes(content)
    with pytest.raises(UnreadableError, match=message) as caught:
        profiler.ops(str(tmp_path / name))
    assert name in str(caught.value)
    assert "\n" not in str(caught.value)


def test_a_profile_without_device_ops_is_one_clear_error(saved) -> None:
    space = SpaceBuilder()
    space.plane("/host:CPU").line("python").event("main", 0, 5)
    with pytest.raises(UnreadableError, match="holds no device ops"):
        profiler.summary(saved(space))


@pytest.mark.recordings
def test_a_recording_rewritten_as_text_is_named_for_what_it_is(recordings) -> None:
    with pytest.raises(UnreadableError, match="rewritten as UTF-8 text: 258,174 times the bytes EF BF BD"):
        profiler.summary(str(recordings / "corrupt_utf8.xplane.pb"))


@pytest.mark.recordings
def test_every_recording_gives_a_summary_or_one_clear_error(recordings, run_cli) -> None:
    for path in sorted(recordings.glob("*.xplane.pb")):
        done = run_cli("summary", path)
        assert "Traceback" not in done.stderr, path
        if path.name.startswith("corrupt"):
            assert (done.returncode, done.stdout, done.stderr.count("\n")) == (3, "", 1)
        else:
            assert done.returncode == 0, done.stderr
            assert "Where the" in done.stdout


def test_a_file_joined_to_itself_has_every_device_twice_under_names_of_their_own(tpu_space, tmp_path) -> None:
    data = tpu_space({"TPU:0": {"XLA Ops": [("add.1", 0, 5)]}}).to_bytes()
    (tmp_path / "twice.xplane.pb").write_bytes(data + data)
    summary = profiler.summary(str(tmp_path / "twice.xplane.pb"))
    assert [device.name for device in summary.devices] == ["TPU:0", "TPU:0#2"]


def test_a_cut_gzip_file_gives_what_could_be_unpacked(tpu_space, saved, tmp_path) -> None:
    whole = tpu_space({f"TPU:{i}": {"XLA Ops": [(f"add.{j}", j, 1) for j in range(500)]} for i in range(20)})
    path = saved(whole, "x.xplane.pb.gz")
    data = (tmp_path / "x.xplane.pb.gz").read_bytes()
    (tmp_path / "x.xplane.pb.gz").write_bytes(data[: len(data) // 2])
    table = profiler.ops(path)
    assert 0 < table.devices < 20
    assert {"gzip_damaged", "truncated"} <= codes(table)


def test_gzip_is_known_by_its_bytes_not_by_its_name(tpu_space, saved, tmp_path) -> None:
    space = tpu_space({"TPU:0": {"XLA Ops": [("add.1", 0, 5)]}})
    (tmp_path / "plain.xplane.pb.gz").write_bytes(space.to_bytes())
    packed = saved(space, "packed.xplane.pb.gz")
    renamed = tmp_path / "packed.xplane.pb"
    renamed.write_bytes((tmp_path / "packed.xplane.pb.gz").read_bytes())
    for path in (str(tmp_path / "plain.xplane.pb.gz"), packed, str(renamed)):
        assert profiler.ops(path).ops["occurrences"].to_list() == [1]


def test_a_gzip_bomb_is_refused(tmp_path) -> None:
    import gzip

    with gzip.open(tmp_path / "bomb.xplane.pb.gz", "wb", compresslevel=9) as stream:
        for _ in range(400):
            stream.write(bytes(1 << 20))
    with pytest.raises(UnreadableError, match="unpacks to more than 200 times its size"):
        profiler.ops(str(tmp_path / "bomb.xplane.pb.gz"))


def test_damage_is_the_reason_given_when_nothing_is_left_to_read(tpu_space, tmp_path) -> None:
    data = tpu_space({"TPU:0": {"XLA Ops": [("add.1", 0, 5)]}}).to_bytes()
    (tmp_path / "half.xplane.pb").write_bytes(data[:20])
    with pytest.raises(UnreadableError, match="ends inside a message"):
        profiler.summary(str(tmp_path / "half.xplane.pb"))


def test_devices_of_two_kinds_on_one_side_are_refused(tpu_space, saved) -> None:
    ops = {"TPU:0": {"XLA Ops": [("add.1", 0, 5)]}}
    one, two = (
        saved(tpu_space(ops, device_type_string=kind), f"{i}.xplane.pb") for i, kind in enumerate(("TPU v5", "TPU v4"))
    )
    with pytest.raises(UsageError, match="different devices: TPU v4, TPU v5"):
        profiler.summary(f"{one},{two}")


def test_one_sparse_core_plane_beside_two_planes_of_its_chip_is_read_once(tpu_space, saved) -> None:
    space = tpu_space({"TPU:0": {"XLA Ops": [("add.1", 0, 5)]}})
    space.plane("/device:TPU:0").line("XLA Ops").event("%b.1 = …", 0, 5, display_name="b.1")
    space.plane("/device:TPU:0 SparseCore 0").line("XLA Ops").event("%c.1 = …", 0, 5, display_name="c.1")
    assert len(profiler.summary(saved(space)).devices) == 2


@pytest.mark.parametrize(
    "text",
    [
        "a: [1, 2\n",
        "a: 2024-13-45\n",
        "- a list\n",
        f"a: 1{'0' * 5000}\n",
        "a: &a {b: *a}\n",
        "a0: &a0 [0]\n" + "".join(f"a{i}: &a{i} [{','.join([f'*a{i - 1}'] * 9)}]\n" for i in range(1, 9)),
    ],
)
def test_a_configuration_that_cannot_be_used_is_one_clear_error(tpu_space, saved, tmp_path, text) -> None:
    (tmp_path / "c.yml").write_text(text)
    path = saved(tpu_space({"TPU:0": {"XLA Ops": [("add.1", 0, 5)]}}))
    with pytest.raises(UnreadableError, match=r"c\.yml") as caught:
        profiler.summary(path, Options(config=tmp_path / "c.yml"))
    assert "\n" not in str(caught.value)


def test_a_fact_of_the_wrong_type_is_named(tpu_space, saved, tmp_path) -> None:
    path = saved(tpu_space({"TPU:0": {"XLA Ops": [("add.1", 0, 5)]}}))
    (tmp_path / "c.yml").write_text("model_tflops_per_device_per_step: -5\nlayers: many\ntokens_per_step: 1e3\n")
    summary = profiler.summary(path, Options(config=tmp_path / "c.yml"))
    unusable = [note.message for note in summary.warnings if note.code == "fact_unusable"]
    assert [message.split(":")[0] for message in unusable] == [
        "model_tflops_per_device_per_step is '-5'",
        "layers is 'many'",
    ]
    assert summary.tokens_per_s == 1e3 / 5e-12


def test_tokens_of_all_devices_are_shared_out_by_the_mesh(tpu_space, saved) -> None:
    space = tpu_space({"TPU:0": {"XLA Ops": [("add.1", 0, 1000)]}})
    info = {"tokens_per_step": 64, "mesh": {"data": 4, "fsdp": 4}}
    space.plane("/host:run_info", stats={"run_info": json.dumps(info)})
    assert profiler.summary(saved(space)).tokens_per_s == pytest.approx(4 / 1e-9)


def test_hosts_that_are_not_of_one_run_are_a_warning(tpu_space, saved, tmp_path) -> None:
    def host(number: int, batch: int, ops: str = "add.1 multiply.2 copy.3", name: str = "x") -> None:
        lines = {"XLA Ops": [(op, at * MS, MS) for at, op in enumerate(ops.split())]}
        space = tpu_space({"TPU:0": lines})
        space._header.hostnames[:] = [f"host-{number}".encode()]
        config = {"per_device_batch_size": batch, "process_id": number, "run_name": name}
        space.plane("/host:run_info", stats={"run_info": json.dumps({"config": config})})
        saved(space, f"run/host-{number}.xplane.pb")

    def found() -> list[str]:
        notes = profiler.summary(str(tmp_path / "run")).warnings
        return [note.message for note in notes if note.code == "files_of_different_runs"]

    host(0, 4)
    host(1, 4, name="y")
    assert found() == []
    host(1, 8)
    assert "their configurations differ (per_device_batch_size)" in found()[0]
    host(1, 4, "dot.7 dot.8 dot.9")
    assert "hold different ops" in found()[0]
