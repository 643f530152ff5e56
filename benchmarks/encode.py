"""XEvent records by the million: protobuf's wire format written with numpy, a column at a time."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

Ints = npt.NDArray[np.int64]
Block = tuple[npt.NDArray[np.uint8], npt.NDArray[np.bool_]]  # [N, width] bytes, and which of them are written


def varint(number: int) -> bytes:
    """One base-128 varint."""
    out = bytearray()
    while number > 0x7F:
        out.append(number & 0x7F | 0x80)
        number >>= 7
    out.append(number)
    return bytes(out)


def field(number: int, payload: bytes) -> bytes:
    """A length-delimited field."""
    return varint(number << 3 | 2) + varint(len(payload)) + payload


def line(name: str, line_id: int, timestamp_ns: int, events: list[bytes]) -> bytes:
    """A serialized ``XPlane.lines`` entry around events that are already serialized."""
    header = b"\x08" + varint(line_id) + field(2, name.encode()) + b"\x18" + varint(timestamp_ns)
    length = len(header) + sum(map(len, events))
    return b"".join([b"\x1a", varint(length), header, *events])


def events(
    metadata_ids: Ints, offsets_ps: Ints, durations_ps: Ints, stats: list[tuple[int, Ints]] | None = None
) -> bytes:
    """Serialized ``XLine.events`` entries.

    Args:
        metadata_ids, offsets_ps, durations_ps: one value per event, none negative.
        stats: (stat metadata id below 128, uint64 values) for each stat of every event.
    """
    body = [_tagged(b"\x08", metadata_ids), _tagged(b"\x10", offsets_ps), _tagged(b"\x18", durations_ps)]
    for stat_id, values in stats or []:
        stat = [_constant(bytes([0x08, stat_id]), len(values)), _tagged(b"\x18", values)]
        body += [_tagged(b"\x22", _width(stat)), *stat]
    record = [_tagged(b"\x22", _width(body)), *body]
    return np.hstack([part for part, _ in record])[np.hstack([mask for _, mask in record])].tobytes()


def _varints(values: Ints) -> Block:
    width = max(1, -(-int(values.max(initial=1)).bit_length() // 7))
    groups = values[:, None] >> (7 * np.arange(width))
    more = np.zeros(groups.shape, bool)
    more[:, :-1] = groups[:, 1:] > 0  # another byte follows while anything is left above this one
    written = np.ones(groups.shape, bool)
    written[:, 1:] = more[:, :-1]
    return ((groups & 0x7F) | (more << 7)).astype(np.uint8), written


def _constant(data: bytes, count: int) -> Block:
    return np.tile(np.frombuffer(data, np.uint8), (count, 1)), np.ones((count, len(data)), bool)


def _tagged(tag: bytes, values: Ints) -> Block:
    (tags, tags_written), (bytes_, written) = _constant(tag, len(values)), _varints(values)
    return np.hstack([tags, bytes_]), np.hstack([tags_written, written])


def _width(blocks: list[Block]) -> Ints:
    return sum((mask.sum(axis=1, dtype=np.int64) for _, mask in blocks), np.int64(0))  # type: ignore[return-value]
