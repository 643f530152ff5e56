"""The scanner on well-formed input: hand-made lines and random ones, sizes, choices. Every test runs both twins."""

from __future__ import annotations

import dataclasses
import importlib
import mmap
import os
import random
import struct
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from profiler.xplane import pyscan, scan
from profiler.xplane.schema import xspace

DEVICE_OFFSET, DEVICE_DURATION, PROGRAM, SYMBOL = 11, 12, 13, 14
STATS = scan.SpanStats(DEVICE_OFFSET, DEVICE_DURATION, PROGRAM, SYMBOL)


def implementation(name: str) -> ModuleType:
    if name == "python":
        return pyscan
    try:
        return importlib.import_module("profiler.xplane._scan")
    except ImportError:
        if "CI" in os.environ:
            raise
        pytest.skip("the compiled scanner is not built")


@pytest.fixture(params=["compiled", "python"], autouse=True)
def scanner(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    """Both twins answer every test of this file."""
    monkeypatch.setattr(scan, "_scanner", implementation(request.param))
    return request.param


def plain(value: Any) -> Any:
    """Dataclasses and arrays as lists, so that == compares them."""
    if dataclasses.is_dataclass(value):
        return {field.name: plain(getattr(value, field.name)) for field in dataclasses.fields(value)}
    if isinstance(value, np.ndarray):
        return (str(value.dtype), value.tolist())
    return [plain(item) for item in value] if isinstance(value, tuple) else value


def event(metadata_id: int, offset_ps: int | None = None, duration_ps: int = 0, **more: Any) -> Any:
    """An XEvent. ``device``: (offset, duration) stats; ``program``, ``symbol``; ``count``: num_occurrences."""
    message = xspace().XEvent(metadata_id=metadata_id, duration_ps=duration_ps)
    if offset_ps is not None:
        message.offset_ps = offset_ps
    if "count" in more:
        message.num_occurrences = more["count"]
    if "device" in more:
        for stat, value in zip((DEVICE_OFFSET, DEVICE_DURATION), more["device"], strict=True):
            message.stats.add(metadata_id=stat, uint64_value=value)
    if "program" in more:
        message.stats.add(metadata_id=PROGRAM, uint64_value=more["program"])
    if "symbol" in more:
        message.stats.add(metadata_id=SYMBOL, int64_value=more["symbol"])
    return message


def recorded(*events: Any, timestamp_ns: int = 0) -> tuple[bytes, scan.Line]:
    """A file with one line of these events, and that line."""
    space = xspace().XSpace()
    line = space.planes.add(name=b"/device:TPU:0").lines.add(name=b"XLA Ops", timestamp_ns=timestamp_ns)
    line.events.extend(events)
    data = space.SerializeToString()
    return data, scan.index(data).planes[0].lines[0]


def self_times(*events: Any) -> list[tuple[int, int]]:
    """(metadata id, self time) per op."""
    sums = scan.op_sums(*recorded(*events), STATS)
    return list(zip(sums.metadata_id.tolist(), sums.self_ps.tolist(), strict=True))


# ---------------------------------------------------------------------------------------------------- self time


def test_a_child_takes_its_time_from_its_direct_parent_only():
    assert self_times(event(1, 0, 100), event(2, 10, 50), event(3, 20, 10)) == [(1, 50), (2, 40), (3, 10)]


def test_siblings_both_take_from_the_parent():
    assert self_times(event(1, 0, 100), event(2, 0, 30), event(3, 30, 70)) == [(1, 0), (2, 30), (3, 70)]


def test_a_child_may_end_with_its_parent():
    assert self_times(event(1, 0, 100), event(2, 50, 50)) == [(1, 50), (2, 50)]


def test_of_two_equal_spans_the_later_is_the_child():
    assert self_times(event(1, 0, 100), event(2, 0, 100), event(3, 40, 10)) == [(1, 0), (2, 90), (3, 10)]


def test_spans_that_overlap_partly_are_not_nested():
    assert self_times(event(1, 0, 100), event(2, 50, 100)) == [(1, 100), (2, 100)]


def test_an_event_that_sticks_out_of_its_parent_closes_it():
    assert self_times(event(1, 0, 100), event(2, 50, 100), event(3, 60, 10)) == [(1, 100), (2, 90), (3, 10)]


def test_an_event_of_no_length_costs_nothing_and_has_a_parent():
    assert self_times(event(1, 0, 100), event(2, 100, 0), event(3, 100, 0)) == [(1, 100), (2, 0), (3, 0)]


def test_neighbours_that_touch_are_not_nested():
    assert self_times(event(1, 0, 10), event(2, 10, 10)) == [(1, 10), (2, 10)]


def test_an_unsorted_line_is_sorted_by_offset_then_longest_first():
    data, line = recorded(event(3, 20, 10), event(2, 0, 50), event(1, 0, 100))
    sums = scan.op_sums(data, line, STATS)
    assert sums.resorted
    assert sums.self_ps.tolist() == [50, 40, 10]


def test_the_sort_keeps_the_file_order_of_equal_events():
    assert self_times(event(9, 5, 1), event(1, 0, 100), event(2, 0, 100)) == [(1, 0), (2, 99), (9, 1)]


def test_a_sorted_line_is_read_once():
    assert not scan.op_sums(*recorded(event(1, 0, 5), event(1, 0, 5), event(1, 0, 4), event(1, 1, 9)), STATS).resorted


def test_order_is_by_raw_offset_and_nesting_by_the_device_clock():
    outer = event(1, 10, 5, device=(1000, 100))
    inner = event(2, 20, 500, device=(1010, 10))
    assert self_times(outer, inner) == [(1, 90), (2, 10)]
    assert self_times(inner, outer) == [(1, 90), (2, 10)]


def test_self_time_may_be_negative_where_children_overlap():
    assert self_times(event(1, 0, 10), event(2, 0, 10, device=(0, 9)), event(3, 1, 8), event(4, 2, 9, device=(0, 10)))[
        0
    ] == (1, -9)


# ---------------------------------------------------------------------------------------------------- sums


def test_occurrences_count_and_zero_means_one():
    sums = scan.op_sums(*recorded(event(1, count=7), event(1, count=0), event(1, 0, 5), event(1, 5, 5)), STATS)
    assert (sums.occurrences.tolist(), sums.total_ps.tolist(), sums.events) == ([10], [10], 4)


def test_a_span_starts_at_the_line_less_the_origin():
    data, line = recorded(event(1, 5, 10), timestamp_ns=1_700_000_000_000_000_003)
    sums = scan.op_sums(data, line, STATS, origin_ns=1_700_000_000_000_000_000)
    assert (sums.first_start_ps.tolist(), sums.last_end_ps.tolist()) == ([3005], [3015])


def test_device_time_knows_neither_line_nor_origin():
    data, line = recorded(event(1, 5, 10, device=(70, 7)), timestamp_ns=99)
    sums = scan.op_sums(data, line, STATS, origin_ns=3)
    assert (sums.first_start_ps.tolist(), sums.total_ps.tolist()) == ([70], [7])


def test_one_device_stat_alone_is_not_used():
    half = event(1, 5, 10)
    half.stats.add(metadata_id=DEVICE_OFFSET, int64_value=70)
    assert scan.op_sums(*recorded(half), STATS).first_start_ps.tolist() == [5]


def test_program_and_symbol_on_the_event_make_rows_of_their_own():
    large = 12190760917235803885
    sums = scan.op_sums(
        *recorded(event(1, 0, 1, program=large), event(1, 1, 2), event(1, 3, 4, program=0), event(1, 7, 8, symbol=5)),
        STATS,
    )
    assert sums.program_id.tolist() == [large - 2**64, 0, 0, 0]
    assert sums.has_program.tolist() == [True, False, False, True]
    assert sums.symbol_id.tolist() == [0, 0, 5, 0]
    assert sums.has_symbol.tolist() == [False, False, True, False]
    assert sums.total_ps.tolist() == [1, 2, 8, 4]


def test_an_op_belongs_to_the_window_in_which_it_starts():
    data, line = recorded(*(event(1, start, 10) for start in (0, 9, 10, 15, 19, 20, 99)))
    sums = scan.op_sums(data, line, STATS, windows=[[9, 10], [10, 15], [15, 20]])
    assert sums.window.tolist() == [-1, 0, 1, 2]
    assert sums.occurrences.tolist() == [3, 1, 1, 2]


def test_without_windows_every_row_has_window_minus_one():
    assert scan.op_sums(*recorded(event(1, 0, 1)), STATS).window.tolist() == [-1]


@pytest.mark.parametrize("windows", [[[0, 5], [4, 9]], [[5, 4]], [1, 2], [[1, 2, 3]]])
def test_windows_that_overlap_or_have_another_shape_are_refused(windows: list[Any]):
    data, line = recorded(event(1, 0, 1))
    with pytest.raises(ValueError, match="windows"):
        scan.op_sums(data, line, STATS, windows=windows)


def test_ids_of_any_size_and_sign_are_told_apart():
    ids = [-(2**63), -1, 0, 1, 8192, 8193, 2**40, 2**63 - 1]
    sums = scan.op_sums(*recorded(*(event(id, 0, 0) for id in ids)), STATS)
    assert sums.metadata_id.tolist() == ids


def test_more_ops_than_any_table_starts_with():
    events = [event(id * 8192, 0, 0) for id in range(5000)] * 2
    sums = scan.op_sums(*recorded(*events), STATS)
    assert sums.metadata_id.tolist() == [id * 8192 for id in range(5000)]
    assert set(sums.occurrences.tolist()) == {2}


@pytest.mark.parametrize(
    "bad",
    [
        event(1, 0, -1),
        event(1, 2**62 + 1, 0),
        event(1, -(2**62) - 1, 0),
        event(1, 1, 2**62),
        event(1, 0, 5, device=(0, 2**63)),
    ],
)
def test_an_event_with_an_impossible_span_is_dropped_and_counted(bad: Any):
    data, line = recorded(bad, event(2, 0, 1))
    sums, columns = scan.op_sums(data, line, STATS), scan.events(data, line, STATS)
    assert (sums.metadata_id.tolist(), sums.damaged, sums.events) == ([2], 1, 1)
    assert (columns.metadata_id.tolist(), columns.damaged) == ([2], 1)


def test_the_largest_possible_span_is_kept():
    sums = scan.op_sums(*recorded(event(1, -(2**62), 2**63 - 1), event(2, 2**62, 0)), STATS)
    assert sums.total_ps.tolist() == [2**63 - 1, 0]


def test_an_empty_line_has_no_rows():
    data, line = recorded()
    assert scan.op_sums(data, line, STATS).metadata_id.size == 0
    assert scan.events(data, line, STATS, [1]).stats[0].kind.size == 0


def test_results_cannot_be_written_to():
    data, line = recorded(event(1, 0, 1))
    for array in (scan.op_sums(data, line, STATS).self_ps, scan.events(data, line, STATS).start_ps):
        with pytest.raises(ValueError, match="read-only"):
            array[0] = 1


def test_a_line_outside_of_the_buffer_is_refused():
    data, line = recorded(event(1, 0, 1))
    for start, end in ((-1, 5), (0, len(data) + 1), (9, 8)):
        moved = dataclasses.replace(line, start=start, end=end)
        for read in (scan.op_sums, scan.events):
            with pytest.raises(ValueError, match="buffer"):
                read(data, moved, STATS)


# ---------------------------------------------------------------------------------------------------- columns


def test_every_kind_of_stat_is_read():
    message = event(1, 0, 5)
    stats = (
        ("double_value", -0.5),
        ("uint64_value", 2**64 - 2),
        ("int64_value", -3),
        ("str_value", b"text"),
        ("bytes_value", b""),
        ("ref_value", 77),
        ("gzip_value", b"\x1f\x8b"),
    )
    for id, (kind, value) in enumerate(stats, 1):
        message.stats.add(metadata_id=id, **{kind: value})
    data, line = recorded(message)
    columns = scan.events(data, line, scan.SpanStats(), [7, 6, 5, 4, 3, 2, 1, 99, -1, 4]).stats
    assert [column.kind.item() for column in columns] == [7, 6, 5, 4, 3, 2, 1, 0, 0, 4]
    assert [column.length.item() for column in columns] == [2, 0, 0, 4, 0, 0, 0, 0, 0, 4]
    gzip, ref, empty, text, signed, unsigned, double, *missing, again = (column.value.item() for column in columns)
    assert (ref, signed, unsigned, missing) == (77, -3, -2, [0, 0])
    assert struct.unpack("<d", struct.pack("<q", double)) == (-0.5,)
    assert data[text : text + 4] == b"text"
    assert data[gzip : gzip + 2] == b"\x1f\x8b"
    assert again == text
    assert 0 < empty < len(data)


def test_the_first_stat_with_a_value_wins():
    message = event(1, 0, 5)
    message.stats.add(metadata_id=3)
    message.stats.add(metadata_id=3, int64_value=1)
    message.stats.add(metadata_id=3, int64_value=2)
    assert scan.events(*recorded(message), STATS, [3]).stats[0].value.tolist() == [1]


def test_of_a_oneof_the_last_field_wins():
    data = b"\x0a\x0c\x1a\x0a" + b"\x22\x08" + b"\x08\x01" + b"\x10\x07\x28\x03\x18\x09"
    line = scan.index(data).planes[0].lines[0]
    columns = scan.events(data, line, STATS)
    assert (columns.start_ps.tolist(), columns.occurrences.tolist()) == ([0], [3])


def test_only_keeps_some_ops():
    data, line = recorded(*(event(id, id, 1) for id in (5, 3, 4, 3, -2)))
    assert scan.events(data, line, STATS, only=[-2, 3]).start_ps.tolist() == [3, 3, -2]
    assert scan.events(data, line, STATS, only=[]).start_ps.tolist() == []
    assert scan.events(data, line, STATS, only=None).start_ps.tolist() == [5, 3, 4, 3, -2]


def test_require_keeps_the_events_with_a_stat():
    data, line = recorded(event(1, 0, 1), event(2, 1, 1, program=7), event(3, 2, 1, symbol=7))
    columns = scan.events(data, line, STATS, [SYMBOL, PROGRAM], require=1)
    assert columns.metadata_id.tolist() == [2]
    assert columns.stats[1].value.tolist() == [7]
    assert scan.events(data, line, STATS, [-1], require=0).metadata_id.tolist() == []
    with pytest.raises(ValueError, match="require"):
        scan.events(data, line, STATS, [1], require=1)


def test_stat_ids_beyond_the_table_are_found():
    message = event(1, 0, 1)
    for id in (1023, 1024, 2**40, -7):
        message.stats.add(metadata_id=id, int64_value=id)
    columns = scan.events(*recorded(message), STATS, [-7, 2**40, 1024, 1023]).stats
    assert [column.value.item() for column in columns] == [-7, 2**40, 1024, 1023]


def test_columns_longer_than_a_block_are_complete():
    events = [event(id % 7, id, 1, program=id) for id in range(40_000)]
    data, line = recorded(*events)
    columns = scan.events(data, line, STATS, [PROGRAM])
    assert np.array_equal(columns.start_ps, np.arange(40_000))
    assert np.array_equal(columns.stats[0].value, np.arange(40_000))


# ---------------------------------------------------------------------------------------------------- index


def test_the_index_has_what_the_messages_say():
    space = xspace().XSpace(errors=[b"lost"], warnings=[b"one", b"two"], hostnames=[b"h\xff"])
    plane = space.planes.add(id=-3, name=b"/host:CPU")
    plane.event_metadata.add(key=1).value.name = b"op"
    plane.stats.add(metadata_id=1, int64_value=2)
    line = plane.lines.add(id=-(2**63), name=b"a\xff", display_name=b"b", timestamp_ns=5, duration_ps=6, display_id=9)
    line.events.extend([event(1, 0, 1)] * 300)
    space.planes.add()
    data = space.SerializeToString()
    found = scan.index(data)
    assert (found.errors, found.warnings, found.hostnames) == (("lost",), ("one", "two"), ("h�",))
    assert (found.truncated, found.damaged, len(found.planes)) == (False, 0, 2)
    first = found.planes[0]
    assert (first.id, first.name, first.truncated) == (-3, "/host:CPU", False)
    assert data[first.start : first.end] == plane.SerializeToString()
    (indexed,) = first.lines
    assert data[indexed.start : indexed.end] == line.SerializeToString()
    assert plain(indexed) == {
        "start": indexed.start,
        "end": indexed.end,
        "id": -(2**63),
        "name": "a�",
        "display_name": "b",
        "timestamp_ns": 5,
        "duration_ps": 6,
        "events": 300,
        "truncated": False,
    }
    metadata = xspace().XPlane.FromString(b"".join(data[a:b] for a, b in first.metadata))
    assert metadata.event_metadata == plane.event_metadata
    assert metadata.stats == plane.stats
    assert not metadata.lines
    assert len(first.metadata) == 1  # adjacent entries are merged


def test_fields_may_come_in_any_order_and_the_last_scalar_wins():
    line = b"\x22\x00" + b"\x12\x01a" + b"\x18\x05" + b"\x12\x02bc" + b"\x22\x00" + b"\x18\x06"
    plane = b"\x2a\x00" + b"\x1a" + bytes([len(line)]) + line + b"\x22\x00\x32\x00" + b"\x08\x01\x08\x02" + b"\x12\x01p"
    found = scan.index(b"\x0a" + bytes([len(plane)]) + plane).planes[0]
    assert (found.id, found.name) == (2, "p")
    assert found.metadata == ((2, 4), (2 + 2 + 2 + len(line), 2 + 2 + 2 + len(line) + 4))
    assert (found.lines[0].name, found.lines[0].timestamp_ns, found.lines[0].events) == ("bc", 6, 2)


def test_unknown_fields_groups_and_other_wire_types_are_skipped():
    unknown = b"\xfa\xff\xff\xff\x0f\x02zz" + b"\x7b\x08\x01\x13\x14\x7c" + b"\x79" + bytes(8) + b"\x7d" + bytes(4)
    wrong = b"\x0a\x01i" + b"\x10\x05" + b"\x1d" + bytes(4) + b"\x20\x09"  # id as bytes, name and events as numbers
    line = wrong + unknown + b"\x12\x01n" + b"\x22\x02\x08\x01"
    plane = unknown + b"\x1a" + bytes([len(line)]) + line + unknown
    found = scan.index(unknown + b"\x0a" + bytes([len(plane)]) + plane + unknown)
    assert (found.truncated, found.damaged) == (False, 0)
    (indexed,) = found.planes[0].lines
    assert (indexed.id, indexed.name, indexed.events) == (0, "n", 1)


def test_a_second_space_behind_the_first_adds_its_planes():
    data, _ = recorded(event(1, 0, 1))
    assert len(scan.index(data + data).planes) == 2


@pytest.mark.parametrize("wrap", [bytes, bytearray, memoryview, lambda data: np.frombuffer(data, np.uint8)])
def test_any_buffer_will_do(wrap: Callable[[bytes], Any]):
    data, line = recorded(event(1, 0, 1, program=3))
    assert plain(scan.index(wrap(data))) == plain(scan.index(data))
    assert plain(scan.op_sums(wrap(data), line, STATS)) == plain(scan.op_sums(data, line, STATS))
    assert plain(scan.events(wrap(data), line, STATS, [PROGRAM])) == plain(scan.events(data, line, STATS, [PROGRAM]))


def test_nothing_is_an_empty_space():
    assert scan.index(b"") == scan.Space((), (), (), (), False, 0)


# ---------------------------------------------------------------------------------------------------- at random

small = st.integers(0, 12)
numbers = st.one_of(small, st.integers(-(2**63), 2**63 - 1))
stat_ids = st.one_of(st.integers(9, 16), st.sampled_from([-1, 2000, 2**50]))
values = st.one_of(
    st.tuples(st.just("int64_value"), numbers),
    st.tuples(st.just("uint64_value"), st.one_of(small, st.integers(0, 2**64 - 1))),
    st.tuples(st.just("double_value"), st.floats(width=64)),
    st.tuples(st.sampled_from(["str_value", "bytes_value", "gzip_value"]), st.binary(max_size=5)),
    st.tuples(st.just("ref_value"), small),
)


@st.composite
def random_events(draw: Any) -> Any:
    message = xspace().XEvent(metadata_id=draw(numbers), duration_ps=draw(numbers))
    if draw(st.booleans()):
        message.offset_ps = draw(numbers)
    elif draw(st.booleans()):
        message.num_occurrences = draw(numbers)
    for _ in range(draw(st.integers(0, 4))):
        stat = message.stats.add(metadata_id=draw(stat_ids))
        if draw(st.integers(0, 5)):
            kind, value = draw(values)
            setattr(stat, kind, value)
    return message


def wrapped(value: int) -> int:
    return (value + 2**63) % 2**64 - 2**63


def stat_of(message: Any, id: int, integer: bool) -> tuple[str, Any] | None:
    for stat in message.stats:
        kind = stat.WhichOneof("value")
        if stat.metadata_id == id != -1 and kind and (not integer or kind in ("int64_value", "uint64_value")):
            return kind, getattr(stat, kind)
    return None


def span_of(message: Any, base_ps: int) -> tuple[int, int] | None:
    device = [stat_of(message, id, integer=True) for id in (DEVICE_OFFSET, DEVICE_DURATION)]
    if None not in device:
        start, duration = (wrapped(stat[1]) for stat in device if stat)
    else:
        start, duration = wrapped(base_ps + message.offset_ps), message.duration_ps
    fits = duration >= 0 and start >= -(2**62) and start + duration <= 2**62
    return (start, start + duration) if fits else None


def naive_sums(line: Any, origin_ns: int, windows: list[list[int]]) -> list[tuple[int, ...]]:
    """What op_sums should give, the long way: one list of spans, each popped event struck out."""
    base = (line.timestamp_ns - origin_ns) * 1000
    valid = [message for message in line.events if span_of(message, base)]
    valid.sort(key=lambda message: (message.offset_ps, -message.duration_ps))
    rows: dict[tuple[int, ...], list[int]] = {}
    open_spans: list[tuple[int, int, list[int]]] = []
    for message in valid:
        start, end = span_of(message, base) or (0, 0)
        ids = [stat_of(message, id, integer=True) for id in (PROGRAM, SYMBOL)]
        program, symbol = (wrapped(id[1]) if id else 0 for id in ids)
        window = next((i for i, (low, high) in enumerate(windows) if low <= start < high), -1)
        key = (message.metadata_id, program, ids[0] is not None, symbol, ids[1] is not None, window)
        row = rows.setdefault(key, [0, 0, 0, start, end])
        while open_spans and (start < open_spans[-1][0] or end > open_spans[-1][1]):
            del open_spans[-1]
        if open_spans:
            open_spans[-1][2][2] -= end - start
        open_spans.append((start, end, row))
        row[0] += max(message.num_occurrences, 1)
        row[1] += end - start
        row[2] += end - start
        row[3:] = min(row[3], start), max(row[4], end)
    return sorted((*key, *map(wrapped, sums)) for key, sums in rows.items())


def key_columns(sums: scan.OpSums) -> list[tuple[int, ...]]:
    fields = "metadata_id program_id has_program symbol_id has_symbol window occurrences total_ps self_ps"
    columns = [getattr(sums, name).tolist() for name in (*fields.split(), "first_start_ps", "last_end_ps")]
    return list(zip(*columns, strict=True))


def compare_with_the_naive(line: Any, origin_ns: int, edges: list[int], wanted: list[int]) -> None:
    windows = [[low, high] for low, high in zip(edges[::2], edges[1::2], strict=False)]
    space = xspace().XSpace()
    space.planes.add().lines.append(line)
    data = space.SerializeToString()
    indexed = scan.index(data).planes[0].lines[0]
    sums = scan.op_sums(data, indexed, STATS, origin_ns, windows)
    base = (line.timestamp_ns - origin_ns) * 1000
    valid = [message for message in line.events if span_of(message, base)]
    assert key_columns(sums) == naive_sums(line, origin_ns, windows)
    assert (sums.events, sums.damaged) == (len(valid), len(line.events) - len(valid))

    columns = scan.events(data, indexed, STATS, wanted, origin_ns)
    assert columns.metadata_id.tolist() == [message.metadata_id for message in valid]
    spans = zip(columns.start_ps.tolist(), (columns.start_ps + columns.duration_ps).tolist(), strict=True)
    assert list(spans) == [span_of(message, base) for message in valid]
    assert columns.occurrences.tolist() == [max(message.num_occurrences, 1) for message in valid]
    for id, column in zip(wanted, columns.stats, strict=True):
        for message, kind, value, length in zip(
            valid, column.kind.tolist(), column.value.tolist(), column.length.tolist(), strict=True
        ):
            stat = stat_of(message, id, integer=False)
            if stat is None:
                assert (kind, value, length) == (0, 0, 0)
                continue
            assert kind == pyscan.KIND_OF[stat[0]]
            if kind in (4, 5, 7):
                assert data[value : value + length] == stat[1]
            elif kind == 1:
                assert struct.pack("<q", value) == struct.pack("<d", stat[1])
            else:
                assert value == wrapped(stat[1])


@settings(max_examples=300, deadline=None)
@given(
    st.lists(random_events(), max_size=12),
    numbers,
    numbers,
    st.lists(numbers, max_size=6).map(sorted),
    st.lists(stat_ids, max_size=4),
    st.booleans(),
)
def test_random_lines_give_what_the_naive_way_gives(
    messages: list[Any],
    timestamp_ns: int,
    origin_ns: int,
    edges: list[int],
    wanted: list[int],
    in_order: bool,
):
    if in_order:
        messages.sort(key=lambda message: (message.offset_ps, -message.duration_ps))
    line = xspace().XLine(timestamp_ns=timestamp_ns, events=messages)
    compare_with_the_naive(line, origin_ns, edges, wanted)


def test_a_long_line_of_nested_ops_gives_what_the_naive_way_gives():
    rng = random.Random(5)
    messages, clock = [], 0
    for _ in range(3000):
        messages.append(event(rng.randrange(40), clock, rng.choice([0, 3, 50, 400]), program=rng.randrange(3)))
        clock += rng.choice([0, 0, 1, 20])
    compare_with_the_naive(xspace().XLine(events=messages), 0, [100, 5000, 5000, 9000], [PROGRAM])
    rng.shuffle(messages)
    compare_with_the_naive(xspace().XLine(events=messages), 0, [100, 5000, 5000, 9000], [PROGRAM])


# ---------------------------------------------------------------------------------------------------- size


def run_python(code: str, *arguments: object) -> str:
    done = subprocess.run(
        [sys.executable, "-c", code, *map(str, arguments)], capture_output=True, text=True, timeout=300, check=False
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


PEAK = """
import mmap, os, pathlib, re, sys
from profiler.xplane import scan
with open(sys.argv[1], "rb") as file, mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as data:
    for plane in scan.index(data).planes:
        for line in plane.lines:
            scan.op_sums(data, line, scan.SpanStats(1, 2, 3, 4))
            scan.events(data, line, scan.SpanStats(1, 2, 3, 4), [1, 2, 3])
# Not ru_maxrss: that starts at what the test process had when it forked.
peak = 1024 * int(re.search(r"VmHWM:\\s*(\\d+)", pathlib.Path("/proc/self/status").read_text())[1])
limit = 4 * os.path.getsize(sys.argv[1]) + 100e6
assert peak < limit, f"{peak / 1e6:.0f} MB for at most {limit / 1e6:.0f}"
"""


@pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")
@pytest.mark.parametrize("order", ["sorted", "shuffled"])
def test_peak_memory_stays_within_four_times_the_file(tmp_path: Path, order: str, scanner: str):
    count = 300_000 if scanner == "compiled" else 60_000
    events = [event(i % 900, 1000 * i, 900, device=(1000 * i, 900)) for i in range(count)]
    if order == "shuffled":
        random.Random(1).shuffle(events)
    data, _ = recorded(*events)
    path = tmp_path / "large.xplane.pb"
    path.write_bytes(data)
    code = f"import os; os.environ['PROFILER_SCANNER'] = {scanner!r}" + PEAK
    run_python(code, path)


@pytest.mark.recordings
@pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")
def test_peak_memory_of_a_recording_stays_within_four_times_the_file(recordings: Path, scanner: str):
    code = f"import os; os.environ['PROFILER_SCANNER'] = {scanner!r}" + PEAK
    run_python(code, recordings / "tpu_qwen3_serving_fp4.xplane.pb")


def test_a_file_over_two_gib_is_read_through_a_map(tmp_path: Path):
    data, line = recorded(event(4, 7, 9, program=3))
    gap = 2_200_000_000
    path = tmp_path / "sparse.xplane.pb"
    with path.open("wb") as file:
        length = bytes((gap >> shift) & 0x7F | (0x80 if gap >> shift + 7 else 0) for shift in range(0, 35, 7))
        file.write(b"\x7a" + length)
        file.seek(gap, os.SEEK_CUR)
        file.write(data)
    with path.open("rb") as file, mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as mapped:
        space = scan.index(mapped)
        (found,) = space.planes[0].lines
        assert not space.truncated
        assert found.start == line.start + gap + 6
        assert scan.op_sums(mapped, found, STATS).total_ps.tolist() == [9]
        assert scan.events(mapped, found, STATS, [PROGRAM]).stats[0].value.tolist() == [3]


# ---------------------------------------------------------------------------------------------------- choice

CHOICE = "from profiler.xplane import scan; print(scan.COMPILED, scan.notice())"


def test_the_environment_forces_a_scanner(scanner: str, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("PROFILER_SCANNER", scanner)
    assert run_python(CHOICE).split() == [str(scanner == "compiled"), "None"]


def test_without_the_compiled_scanner_there_is_a_notice(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.delenv("PROFILER_SCANNER", raising=False)
    absent = "import sys; sys.modules['profiler.xplane._scan'] = None; "
    assert run_python(absent + CHOICE).startswith("False The compiled scanner is not installed")


@pytest.mark.parametrize(("value", "said"), [("fortran", "set it to compiled or python"), ("compiled", "reinstall")])
def test_a_scanner_that_cannot_be_had_is_a_usage_error(value: str, said: str, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("PROFILER_SCANNER", value)
    code = f"""
import sys; sys.modules['profiler.xplane._scan'] = None
from profiler.errors import UsageError
try:
    {CHOICE}
except UsageError as error:
    print(error)
"""
    assert said in run_python(
        code.replace("from profiler.xplane import scan; ", "from profiler.xplane import scan\n    ")
    )
