"""The generated recordings are valid XSpace files of the size that was asked for."""

from __future__ import annotations

import sys
from pathlib import Path

import numpy as np
import pytest

from profiler.xplane.schema import xspace

FOLDER = str(Path(__file__).resolve().parent.parent / "benchmarks")


@pytest.fixture
def benchmark_module(monkeypatch):
    monkeypatch.syspath_prepend(FOLDER)

    def load(name: str):
        return __import__(name)

    yield load
    for name in ("encode", "generate", "moe_program"):
        sys.modules.pop(name, None)


def test_encoded_events_are_what_protobuf_writes(benchmark_module):
    encode = benchmark_module("encode")
    values = np.array([0, 1, 127, 128, 2**21 - 1, 2**21, 2**49 - 1, 2**62])
    line = encode.line("XLA Ops", 3, 5, [encode.events(values[::-1], values, values, [(9, values)])])

    plane = xspace().XPlane.FromString(line)
    expected = xspace().XPlane()
    message = expected.lines.add(id=3, name=b"XLA Ops", timestamp_ns=5)
    for key, value in zip(values[::-1].tolist(), values.tolist(), strict=True):
        event = message.events.add(metadata_id=key, offset_ps=value, duration_ps=value)
        event.stats.add(metadata_id=9, uint64_value=value)
    assert plane == expected


def test_a_recording_has_the_size_asked_for_and_nests_properly(benchmark_module, tmp_path):
    path = tmp_path / "run.xplane.pb"
    facts = benchmark_module("generate").generate(path, 6_000_000, devices=2)

    assert path.stat().st_size == facts["bytes"] == pytest.approx(6_000_000, rel=0.1)
    space = xspace().XSpace.FromString(path.read_bytes())
    names = [plane.name for plane in space.planes]
    assert names == [b"/device:TPU:0", b"/device:TPU:1", b"/host:metadata", b"Task Environment"]
    lines = {line.name: line.events for line in space.planes[0].lines}
    assert list(lines) == [b"Steps", b"XLA Modules", b"XLA Ops", b"Async XLA Ops"]
    assert len(lines[b"Steps"]) == len(lines[b"XLA Modules"]) > 2
    open_ends: list[int] = []
    for event in lines[b"XLA Ops"]:
        start, end = event.offset_ps, event.offset_ps + event.duration_ps
        while open_ends and open_ends[-1] <= start:
            open_ends.pop()
        assert not open_ends or end <= open_ends[-1]
        open_ends.append(end)
    assert sum(len(events) for events in lines.values()) * 2 == pytest.approx(facts["events"], rel=0.1)


def test_the_same_seed_writes_the_same_file_and_the_variant_another(benchmark_module, tmp_path):
    generate = benchmark_module("generate").generate
    files = []
    for index, variant in enumerate(["baseline", "baseline", "optimized"]):
        path = tmp_path / f"{index}.xplane.pb"
        generate(path, 2_000_000, variant, devices=1)
        files.append(path.read_bytes())
    assert files[0] == files[1] != files[2]
