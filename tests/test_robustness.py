"""Damaged recordings end in a result or in one clear error: never a traceback, whatever part of the way they reach."""

from __future__ import annotations

import random
from pathlib import Path

import pytest

import profiler
from profiler.errors import ProfilerError

pytestmark = pytest.mark.recordings


def mutated(data: bytes, rng: random.Random) -> bytes:
    """Bits flipped, bytes written, inserted or removed, or the file cut."""
    changed = bytearray(data)
    kind = rng.choice(["flip", "write", "insert", "delete", "cut"])
    for _ in range(rng.choice([1, 1, 3, 20])):
        place = rng.randrange(len(changed))
        if kind == "flip":
            changed[place] ^= 1 << rng.randrange(8)
        elif kind == "write":
            changed[place] = rng.randrange(256)
        elif kind == "insert":
            changed[place:place] = rng.randbytes(rng.randrange(1, 6))
        elif kind == "delete":
            del changed[place : place + rng.randrange(1, 6)]
        else:
            changed = changed[: max(place, 1)]
    return bytes(changed)


def outcome(run, *arguments) -> str:
    try:
        run(*arguments)
    except ProfilerError as error:
        assert "\n" not in str(error)
        return type(error).__name__
    return "result"


@pytest.mark.parametrize(
    ("name", "count"), [("gfx950_fused_attention", 250), ("mi300x_conv_new", 250), ("tpu_v6e_inference", 60)]
)
def test_a_damaged_recording_is_a_result_or_one_clear_error(recordings: Path, tmp_path: Path, name, count) -> None:
    whole = recordings / f"{name}.xplane.pb"
    data, rng, path = whole.read_bytes(), random.Random(name), tmp_path / "damaged.xplane.pb"
    seen = []
    for number in range(count):
        path.write_bytes(mutated(data, rng))
        seen.append(outcome(profiler.summary, str(path)))
        outcome(profiler.ops, str(path))
        if number % 10 == 0:
            outcome(profiler.diff, str(whole), str(path))
    assert set(seen) <= {"result", "UnreadableError"}
    assert seen.count("result") > count / 4  # most damage is local, and the rest is still read
