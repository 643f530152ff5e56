"""Both scanners on real recordings, whole and damaged: no crash, and the same answer from both."""

from __future__ import annotations

import dataclasses
import importlib
import os
import random
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import pytest

from profiler.xplane import pyscan, scan
from profiler.xplane.schema import xspace

SMALLEST = "gfx950_fused_attention"
READABLE = (
    SMALLEST,
    "mi300x_conv_new",
    "mi300x_conv_old",
    "nvidia_8gpu_tf2",
    "tpu_qwen3_serving_bf16",
    "tpu_qwen3_serving_fp4",
    "tpu_v6e_inference",
)
STATS = scan.SpanStats(3, 4, 5, 6)  # ids that occur on events of the recordings, whatever they mean
WANTED = [1, 2, 3, 5, 8, 13, 21, 34]


@pytest.fixture(scope="module")
def compiled() -> ModuleType:
    try:
        return importlib.import_module("profiler.xplane._scan")
    except ImportError:
        if "CI" in os.environ:
            raise
        pytest.skip("the compiled scanner is not built")


def plain(value: Any) -> Any:
    """Dataclasses and arrays as lists, so that == compares them."""
    if dataclasses.is_dataclass(value):
        return {field.name: plain(getattr(value, field.name)) for field in dataclasses.fields(value)}
    if isinstance(value, np.ndarray):
        return (str(value.dtype), value.tolist())
    return [plain(item) for item in value] if isinstance(value, tuple) else value


def readings(scanner: ModuleType, data: bytes, stats: scan.SpanStats = STATS) -> Iterator[Any]:
    """What every function says about every line."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(scan, "_scanner", scanner)
        space = scan.index(data)
        yield plain(space)
        for plane in space.planes:
            for line in plane.lines:
                yield plain(scan.op_sums(data, line, stats, windows=[[0, 10**12], [10**12, 10**13]]))
                yield plain(scan.op_sums(data, line, scan.SpanStats(), line.timestamp_ns))
                yield plain(scan.events(data, line, stats, WANTED))
                yield plain(scan.events(data, line, stats, WANTED, require=3, only=range(0, 999, 3)))


def assert_equal_readings(compiled: ModuleType, data: bytes) -> None:
    for ours, theirs in zip(readings(pyscan, data), readings(compiled, data), strict=True):
        assert ours == theirs


def read_all(compiled: ModuleType, data: bytes) -> tuple[bool, int, int]:
    """Index, sums and columns without the wrapping, for speed: (truncated, damaged, events)."""
    _, lines, *_, truncated, damaged = compiled.index(data)
    total = 0
    for start, end, *_ in np.frombuffer(lines, np.int64).reshape(-1, 11).tolist():
        _, events, dropped, _ = compiled.op_sums(data, start, end, 0, (3, 4, 5, 6), b"")
        columns, _, dropped_again = compiled.events(data, start, end, 0, (3, 4, 5, 6), np.array(WANTED[:3]), None, -1)
        assert len(columns[0]) == 8 * events
        assert dropped == dropped_again
        total += events
    return bool(truncated), damaged, total


def mutated(data: bytes, seed: int) -> bytes:
    """One to four defects: flipped bits, written bytes, insertions, deletions, ranges that occur twice.

    Every other seed spares the first two thirds, so that the damage is among the events and not around them.
    """
    rng = random.Random(seed)
    out = bytearray(data)
    for _ in range(rng.randint(1, 4)):
        at, size = rng.randrange(seed % 2 * 2 * len(out) // 3, len(out)), rng.choice([1, 2, 7, 100])
        match rng.randrange(5):
            case 0:
                out[at] ^= 1 << rng.randrange(8)
            case 1:
                out[at] = rng.choice([0x00, 0x7F, 0x80, 0xFF, 0x0B, 0x0C, rng.randrange(256)])
            case 2:
                out[at:at] = rng.randbytes(size)
            case 3:
                del out[at : at + size]
            case 4:
                out[at:at] = out[at : at + 10 * size]
    return bytes(out)


def recording(folder: Path, name: str) -> bytes:
    return (folder / f"{name}.xplane.pb").read_bytes()


# ---------------------------------------------------------------------------------------------------- recordings


@pytest.mark.recordings
@pytest.mark.parametrize("name", READABLE)
def test_a_recording_reads_the_same_with_both_scanners(recordings: Path, compiled: ModuleType, name: str):
    data = recording(recordings, name)
    assert_equal_readings(compiled, data)
    space = scan.index(data)
    assert (space.truncated, space.damaged) == (False, 0)
    for plane in space.planes:
        ids = {
            entry.value.name: entry.key
            for entry in xspace().XPlane.FromString(b"".join(data[a:b] for a, b in plane.metadata)).stat_metadata
        }
        stats = scan.SpanStats(*(ids.get(field.name.encode(), -1) for field in dataclasses.fields(scan.SpanStats)))
        for line in plane.lines:
            sums = scan.op_sums(data, line, stats)
            assert (sums.events, sums.damaged) == (line.events, 0)


@pytest.mark.recordings
def test_what_is_no_recording_reads_the_same_with_both_scanners(recordings: Path, compiled: ModuleType):
    data = recording(recordings, "corrupt_utf8")
    assert_equal_readings(compiled, data)
    assert scan.index(data).damaged


@pytest.mark.recordings
def test_every_cut_of_a_recording_is_read_and_named_a_cut(recordings: Path, compiled: ModuleType):
    data = recording(recordings, SMALLEST)
    whole = {0, len(data)} | {plane.end for plane in scan.index(data).planes}
    last_events = 0
    for length in range(len(data)):
        truncated, damaged, events = read_all(compiled, data[:length])
        assert damaged == 0
        if not truncated:
            assert length in whole or data[length:].startswith(b"\x22")  # hostnames lie at the end
        assert events >= last_events
        last_events = events


@pytest.mark.recordings
def test_ten_thousand_damaged_recordings_are_read(recordings: Path, compiled: ModuleType):
    data = recording(recordings, SMALLEST)
    damage = sum(read_all(compiled, mutated(data, seed))[1] > 0 for seed in range(10_000))
    assert damage > 100  # else the mutations were not worth the name


@pytest.mark.recordings
def test_cuts_and_damage_read_the_same_with_both_scanners(recordings: Path, compiled: ModuleType):
    data = recording(recordings, SMALLEST)
    rng = random.Random(7)
    for seed in range(500):
        assert_equal_readings(compiled, data[: rng.randrange(len(data))])
        assert_equal_readings(compiled, mutated(data, seed))


@pytest.mark.recordings
@pytest.mark.parametrize("name", READABLE[1:])
def test_damage_in_a_larger_recording(recordings: Path, compiled: ModuleType, name: str):
    data = recording(recordings, name)
    rng = random.Random(name)
    for seed in range(300):
        _, damaged, _ = read_all(compiled, data[: rng.randrange(len(data))])
        assert damaged == 0
        read_all(compiled, mutated(data, seed))
    for seed in range(5):
        assert_equal_readings(compiled, data[: rng.randrange(len(data))])
        assert_equal_readings(compiled, mutated(data, seed))


# ---------------------------------------------------------------------------------------------------- wire format


def varint(value: int, padding: int = 0) -> bytes:
    """A varint, longer than it needs to be by ``padding`` bytes."""
    out = bytearray()
    while value > 0x7F:
        out.append(value & 0x7F | 0x80)
        value >>= 7
    out.append(value)
    if padding:
        out[-1] |= 0x80
        out += b"\x80" * (padding - 1) + b"\x00"
    return bytes(out)


def wire_message(rng: random.Random, depth: int, defects: bool) -> bytes:
    """Fields of all wire types, nested; with ``defects`` now and then bytes that do not belong."""
    out = bytearray()
    for _ in range(rng.randrange(5)):
        number, wire = rng.choice([1, 2, 3, 4, 4, 5, 6, 7, 8, 9, 11, 15, 2**29 - 1]), rng.choice([0, 0, 1, 2, 2, 3, 5])
        padding = rng.choice([0, 0, 0, 0, 1, 2])
        out += varint(number << 3 | wire, padding if number < 1000 else 0)
        if wire == 0:
            value = rng.choice([rng.randrange(20), rng.randrange(2**64), rng.randrange(2**35)])
            out += varint(value, min(padding, 10 - len(varint(value))))
        elif wire == 3:
            out += (wire_message(rng, depth - 1, defects) if depth else b"") + varint(number << 3 | 4)
        elif wire == 2:
            inner = wire_message(rng, depth - 1, defects) if depth else rng.randbytes(rng.randrange(3))
            length = len(inner) + (rng.choice([-1, 1, 5, 2**31, 2**63]) if defects and not rng.randrange(12) else 0)
            out += varint(max(length, 0), padding) + inner
        else:
            out += rng.randbytes(8 if wire == 1 else 4)
        if defects and not rng.randrange(12):
            out += rng.choice([b"\x00", b"\x0c", b"\x0e", b"\x0b", b"\xff" * 11, b"\x80" * 6, rng.randbytes(2)])
    return bytes(out)


@pytest.mark.parametrize("defects", [False, True])
def test_random_wire_messages_read_the_same_with_both_scanners(compiled: ModuleType, defects: bool):
    rng = random.Random(11)
    for _ in range(3000):
        line = b"\x22" + varint(len(inner := wire_message(rng, 2, defects))) + inner + wire_message(rng, 2, defects)
        plane = wire_message(rng, 3, defects) + b"\x1a" + varint(len(line)) + line
        assert_equal_readings(compiled, wire_message(rng, 4, defects) + b"\x0a" + varint(len(plane)) + plane)


def test_what_protobuf_accepts_is_walked_to_the_same_values():
    from google.protobuf.message import DecodeError

    rng = random.Random(13)
    opened = frozenset(range(20))
    accepted = 0
    for turn in range(20_000):
        data = wire_message(rng, 2, defects=turn % 2 == 0)
        try:
            message = xspace().XEvent.FromString(data)
        except DecodeError:
            continue
        accepted += 1
        walked = pyscan._walk_event(data, 0, len(data), opened)
        assert (walked.metadata_id, walked.offset_ps) == (message.metadata_id, message.offset_ps)
        assert (walked.duration_ps, walked.occurrences) == (message.duration_ps, max(message.num_occurrences, 1))
        stats = [stat for stat in message.stats if stat.metadata_id in opened and stat.WhichOneof("value")]
        for (id, kind, value, length), stat in zip(walked.stats, stats, strict=True):
            which = stat.WhichOneof("value")
            assert (id, kind) == (stat.metadata_id, pyscan.KIND_OF[which])
            if kind in (4, 5, 7):
                assert data[value : value + length] == getattr(stat, which)
            elif kind != 1:
                assert value == pyscan.signed(getattr(stat, which))
    assert accepted > 10_000


HEAD = b"\x08\x01"


@pytest.mark.parametrize(
    ("event", "whole"),
    [
        (b"\x88\x80\x80\x80\x00\x05", True),  # a tag of five bytes
        (b"\x88\x80\x80\x80\x80\x00\x05", False),  # of six
        (b"\xf8\xff\xff\xff\x0f\x05", True),  # the largest field number
        (b"\xf8\xff\xff\xff\x1f\x05", False),  # one that needs 33 bits
        (b"\x08" + b"\xff" * 9 + b"\x7f", True),  # a varint of ten bytes, some bits too many
        (b"\x08" + b"\xff" * 10 + b"\x01", False),  # of eleven
        (b"\x00\x05", False),  # field 0
        (b"\x0b\x00\x05\x0c", True),  # field 0 in a group, where protobuf does not look
        (b"\x0e\x05", False),  # wire type 6
        (b"\x0f\x05", False),  # wire type 7
        (b"\x0c", False),  # the end of no group
        (b"\x0b\x14", False),  # the end of another group
        (b"\x0b\x08\x01", False),  # a group without an end
        (b"\x0b" * 100 + b"\x0c" * 100, True),  # groups as deep as protobuf goes
        (b"\x0b" * 101 + b"\x0c" * 101, False),
        (b"\x0b" * 60_000, False),
        (b"\x12\x05abcd", False),  # a payload that ends behind the event
        (b"\x12\xff\xff\xff\xff\xff\xff\xff\xff\xff\x01", False),  # a length of 2^64 - 1
        (b"\x12\x82\x80\x80\x80\x80\x00ab", True),  # a length of six bytes
        (b"\x09abc", False),  # a fixed number cut short
        (b"\x0dabc", False),
        (b"\x08", False),  # a tag without a value
        (b"\x80", False),  # half a tag
    ],
)
def test_the_rules_for_odd_bytes(compiled: ModuleType, event: bytes, whole: bool):
    inner = b"\x22" + varint(len(event)) + event
    line = inner + b"\x22\x02\x08\x63"
    plane = b"\x1a" + varint(len(line)) + line
    data = b"\x0a" + varint(len(plane)) + plane
    assert_equal_readings(compiled, data)
    sums = scan.op_sums(data, scan.index(data).planes[0].lines[0], STATS)
    assert (sums.events, sums.damaged) == ((2, 0) if whole else (1, 1))


def test_a_stat_that_nobody_asked_for_does_no_harm(compiled: ModuleType):
    line = b"\x22\x06" + b"\x08\x01" + b"\x22\x02\x0e\x05"  # wire type 6 inside of the stat
    data = b"\x0a\x0a\x1a\x08" + line
    assert_equal_readings(compiled, data)
    (found,) = scan.index(data).planes[0].lines
    assert scan.op_sums(data, found, scan.SpanStats()).damaged == 0
    assert scan.op_sums(data, found, STATS).damaged == 1
    assert scan.events(data, found, STATS, only=[2]).damaged == 0


@pytest.mark.parametrize(
    ("cut", "truncated", "damaged"),
    [
        (b"\x0a\x0b\x1a\x09\x12\x01a", (True, True, True), 0),  # the file ends: nothing is wrong but the end
        (b"\x0a\x07\x1a\x09\x12\x01a\x22\x00", (False, True, True), 1),  # the line says more than its plane
        (b"\x0a\x07\x1a\x05\x12\x09a\x22\x00", (False, False, True), 1),  # the name says more than its line
    ],
)
def test_a_cut_file_is_told_from_a_damaged_one(
    compiled: ModuleType, cut: bytes, truncated: tuple[bool, ...], damaged: int
):
    assert_equal_readings(compiled, cut)
    space = scan.index(cut)
    plane = space.planes[0]
    assert (space.truncated, plane.truncated, plane.lines[0].truncated) == truncated
    assert space.damaged == damaged


def test_what_lies_before_the_damage_is_kept(compiled: ModuleType):
    line = b"\x12\x01a" + b"\x22\x04\x08\x01\x10\x05" + b"\x0e" + b"\x22\x02\x08\x02"
    data = b"\x0a" + varint(len(line) + 2) + b"\x1a" + varint(len(line)) + line + b"\x22\x01h"
    assert_equal_readings(compiled, data)
    space = scan.index(data)
    assert (space.damaged, space.truncated, space.hostnames) == (1, False, ("h",))
    (found,) = space.planes[0].lines
    assert (found.name, found.events) == ("a", 1)
    sums = scan.op_sums(data, found, STATS)
    assert (sums.metadata_id.tolist(), sums.damaged) == ([1], 1)


@pytest.mark.parametrize("what", ["planes", "lines"])
def test_a_file_of_nothing_but_empty_messages_ends_somewhere(compiled: ModuleType, what: str):
    data = b"\x0a\x00" * (pyscan.MAX_ROWS + 9)
    if what == "lines":
        data = b"\x0a" + varint(len(data)) + data.replace(b"\x0a", b"\x1a")
    with pytest.MonkeyPatch.context() as patch:
        for scanner in (pyscan, compiled):
            patch.setattr(scan, "_scanner", scanner)
            space = scan.index(data)
            assert len(space.planes if what == "planes" else space.planes[0].lines) == pyscan.MAX_ROWS
            assert space.damaged == 1
