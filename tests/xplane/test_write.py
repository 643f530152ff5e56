"""What the builder writes is what the schema, protobuf's own merge and xprof read."""

from __future__ import annotations

import gzip
import importlib.util
import json

import numpy as np
import pytest

from profiler.xplane.schema import xspace
from profiler.xplane.write import PlaneBuilder, Ref, SpaceBuilder, append_plane


def parse(data: bytes):
    return xspace().XSpace.FromString(data)


def named(entries) -> dict[int, bytes]:
    return {entry.key: entry.value.name for entry in entries}


def stats_of(plane, stats) -> dict[bytes, tuple[str, object]]:
    names = named(plane.stat_metadata)
    kinds = [(stat, stat.WhichOneof("value")) for stat in stats]
    return {names[stat.metadata_id]: (kind, getattr(stat, kind)) for stat, kind in kinds}


def tpu_space() -> SpaceBuilder:
    """One TPU that runs a loop with a fusion inside three times."""
    space = SpaceBuilder()
    plane = space.plane(
        "/device:TPU:0", stats={"device_type_string": "TPU v6 Lite", "peak_teraflops_per_second": 918.0}
    )
    ops = plane.line("XLA Ops")
    loop = {"hlo_category": "while", "program_id": 2**63 + 5, "symbol_id": 1, "flops": 0, "bytes_accessed": 0}
    fusion = {"hlo_category": "loop fusion", "program_id": 2**63 + 5, "symbol_id": 2, "flops": 64, "bytes_accessed": 32}
    for run in range(3):
        start = run * 10_000_000
        ops.event("%while.1 = f32[8] while(f32[8] %p)", start, 9_000_000, display_name="while.1", metadata_stats=loop)
        ops.event(
            "%fusion.2 = f32[8] fusion(f32[8] %p)",
            start + 1_000_000,
            4_000_000,
            display_name="fusion.2",
            metadata_stats=fusion,
            stats={"device_offset_ps": start + 1_000_000, "device_duration_ps": 4_000_000},
        )
    return space


def test_an_event_keeps_its_times_names_and_stats():
    space = SpaceBuilder(hostnames=("worker-0",))
    line = space.plane("/device:TPU:0", plane_id=7).line("XLA Ops", timestamp_ns=5)
    line.event("%add", 0, 20, display_name="add", stats={"run_id": 3}, metadata_stats={"flops": 8})

    read = parse(space.to_bytes())
    (plane,) = read.planes
    (event,) = plane.lines[0].events
    assert (plane.id, plane.name, plane.lines[0].timestamp_ns) == (7, b"/device:TPU:0", 5)
    assert (event.offset_ps, event.duration_ps) == (0, 20)
    assert event.WhichOneof("data") == "offset_ps", "an offset of zero is written, not left out"
    assert named(plane.event_metadata)[event.metadata_id] == b"%add"
    assert stats_of(plane, event.stats) == {b"run_id": ("int64_value", 3)}
    assert stats_of(plane, plane.event_metadata[0].value.stats) == {b"flops": ("int64_value", 8)}
    assert list(read.hostnames) == [b"worker-0"]


@pytest.mark.parametrize(
    ("value", "kind", "read"),
    [
        (1, "int64_value", 1),
        (-1, "int64_value", -1),
        (2**63 - 1, "int64_value", 2**63 - 1),
        (2**63, "uint64_value", 2**63),
        (True, "int64_value", 1),
        (np.int64(4), "int64_value", 4),
        (1.5, "double_value", 1.5),
        (np.float32(0.5), "double_value", 0.5),
        ("größe", "str_value", "größe".encode()),
        ("\udcff", "str_value", b"\xff"),
        (b"\x00\xff", "bytes_value", b"\x00\xff"),
    ],
)
def test_a_value_decides_its_wire_type(value, kind, read):
    space = SpaceBuilder()
    space.plane("p", stats={"s": value})
    (plane,) = parse(space.to_bytes()).planes
    assert stats_of(plane, plane.stats) == {b"s": (kind, read)}


def test_a_reference_points_to_a_text_stored_once():
    space = SpaceBuilder()
    space.plane("p", stats={"a": Ref("long text"), "b": Ref("long text")})
    (plane,) = parse(space.to_bytes()).planes
    texts = named(plane.stat_metadata)
    assert [texts[stat.ref_value] for stat in plane.stats] == [b"long text"] * 2
    assert list(texts.values()).count(b"long text") == 1


def test_a_value_without_a_wire_type_is_refused():
    with pytest.raises(TypeError, match="'s': list"):
        PlaneBuilder("p", stats={"s": [1]})  # type: ignore[dict-item]


def test_equal_metadata_is_written_once_and_unequal_apart():
    plane = PlaneBuilder("p")
    first = plane.metadata("%add", stats={"program_id": 1})
    assert plane.metadata("%add", stats={"program_id": 1}) == first
    assert plane.metadata("%add", stats={"program_id": 2}) != first, "the same op text in another program"
    assert plane.metadata("%add", stats={"program_id": 1.0}) != first, "another wire type"
    assert len(parse(plane.to_bytes()).planes[0].event_metadata) == 3


def test_an_aggregate_counts_and_has_no_offset():
    space = SpaceBuilder()
    space.plane("p").line("l").aggregate("op", 30, 3)
    (event,) = parse(space.to_bytes()).planes[0].lines[0].events
    assert (event.WhichOneof("data"), event.num_occurrences, event.duration_ps) == ("num_occurrences", 3, 30)


@pytest.mark.parametrize(("program_id", "key"), [(42, 42), (2**63 + 1, 1 - 2**63)])
def test_an_hlo_proto_lies_where_recordings_have_it(program_id, key):
    space = SpaceBuilder()
    space.hlo_proto("jit_step", program_id, b"\x0a\x00")
    space.hlo_proto("jit_eval", 7, b"")
    (plane,) = parse(space.to_bytes()).planes
    assert plane.name == b"/host:metadata"
    entry = plane.event_metadata[0]
    assert (entry.key, entry.value.id, entry.value.name) == (key, key, f"jit_step({program_id})".encode())
    assert stats_of(plane, entry.value.stats) == {b"Hlo Proto": ("bytes_value", b"\x0a\x00")}
    assert len(plane.event_metadata) == 2


def test_errors_and_warnings_are_kept():
    space = SpaceBuilder()
    space.error("dropped 3 traces")
    space.warning("buffer full")
    read = parse(space.to_bytes())
    assert (list(read.errors), list(read.warnings)) == ([b"dropped 3 traces"], [b"buffer full"])


def test_a_name_in_gz_is_gzipped_and_equal_content_gives_equal_bytes(tmp_path):
    plain = tpu_space().write(tmp_path / "run.xplane.pb").read_bytes()
    packed = tpu_space().write(tmp_path / "run.xplane.pb.gz").read_bytes()
    assert gzip.decompress(packed) == plain
    assert tpu_space().write(tmp_path / "again.xplane.pb.gz").read_bytes() == packed


def test_a_write_that_fails_leaves_the_old_file_and_nothing_else(tmp_path, monkeypatch):
    target = tmp_path / "run.xplane.pb"
    target.write_bytes(b"old")
    monkeypatch.setattr("pathlib.Path.replace", lambda *_: (_ for _ in ()).throw(OSError("disk full")))
    with pytest.raises(OSError, match="disk full"):
        tpu_space().write(target)
    assert target.read_bytes() == b"old"
    assert list(tmp_path.iterdir()) == [target]


@pytest.mark.parametrize("name", ["run.xplane.pb", "run.xplane.pb.gz"])
def test_a_plane_is_added_to_a_finished_file(tmp_path, name):
    path = tpu_space().write(tmp_path / name)
    append_plane(path, PlaneBuilder("/host:run_info", stats={"json": "{}"}))
    data = path.read_bytes()
    read = parse(gzip.decompress(data) if name.endswith(".gz") else data)
    assert [plane.name for plane in read.planes] == [b"/device:TPU:0", b"/host:run_info"]
    assert stats_of(read.planes[1], read.planes[1].stats) == {b"json": ("str_value", b"{}")}


@pytest.mark.skipif(not importlib.util.find_spec("xprof"), reason="xprof is not installed")
def test_xprof_reads_the_same_occurrences_and_self_times(tmp_path):
    from xprof.convert import raw_to_tool_data

    path = tpu_space().write(tmp_path / "host.xplane.pb")
    data, _ = raw_to_tool_data.xspace_to_tool_data([str(path)], "hlo_stats", {"use_saved_result": False})
    table = json.loads(data)
    columns = {column["id"]: index for index, column in enumerate(table["cols"])}
    cell = lambda row, name: row["c"][columns[name]]["v"]  # noqa: E731
    found = {
        cell(row, "category"): (cell(row, "occurrences"), cell(row, "total_time"), cell(row, "total_self_time"))
        for row in table["rows"]
    }
    assert found == {"while": (3, 27.0, pytest.approx(15.0)), "loop fusion": (3, 12.0, pytest.approx(12.0))}
