"""The timeline as Chrome trace events: whole, nested as Perfetto asks for, safe, and the same bytes every time."""

from __future__ import annotations

import gzip
import json
from collections import Counter
from pathlib import Path
from typing import Any

import polars as pl
import pytest

import sample_profiles
from profiler import api, cli
from profiler.analysis import timeline
from profiler.errors import UsageError
from profiler.report import perfetto
from profiler.results_timeline import TimelineExport

MS = 10**9


def document(export: TimelineExport) -> dict[str, Any]:
    return dict(json.loads(b"".join(perfetto.trace_events(export))))


def complete(events: list[dict[str, Any]], process: int, *, steps: bool = False) -> list[dict[str, Any]]:
    """The spans of a process, or its steps."""
    found = [each for each in events if each["ph"] == "X" and each["pid"] == process]
    return [each for each in found if (each["tid"] == perfetto.STEPS_THREAD) == steps]


def names(events: list[dict[str, Any]], what: str) -> list[str]:
    return [each["args"]["name"] for each in events if each["name"] == what]


def nanoseconds(event: dict[str, Any]) -> tuple[int, int]:
    start = round(event["ts"] * 1000)
    return start, start + round(event["dur"] * 1000)


def assert_nested(events: list[dict[str, Any]]) -> None:
    """Perfetto drops a span that overlaps another of its thread in part."""
    threads: dict[tuple[int, int], list[tuple[int, int]]] = {}
    for each in events:
        if each["ph"] == "X":
            threads.setdefault((each["pid"], each["tid"]), []).append(nanoseconds(each))
    for spans in threads.values():
        open_ends: list[int] = []
        for start, end in sorted(spans, key=lambda span: (span[0], -span[1])):
            while open_ends and open_ends[-1] <= start:
                open_ends.pop()
            assert not open_ends or end <= open_ends[-1]
            open_ends.append(end)


def test_both_sides_of_a_pair_begin_at_zero_and_say_that_they_are_estimates() -> None:
    pair = [str(sample_profiles.path(f"qwen3-30b/{side}.xplane.pb")) for side in ("baseline", "optimized")]
    sides = [api.measured(path) for path in pair]
    events = document(api.timeline(sides))["traceEvents"]
    assert names(events, "process_name") == ["baseline TPU:0 (estimated)", "optimized TPU:0 (estimated)"]
    for process, side in enumerate(sides, 1):
        (step,) = complete(events, process, steps=True)
        assert (step["name"], step["ts"]) == ("step 0 (estimated)", 0)
        ((start, end),) = side.times.spans[0].tolist()
        assert step["dur"] == pytest.approx((end - start) / 1e6, abs=1e-3)
        begins = side.trace.timelines[0].start_ps
        spans = complete(events, process)
        assert len(spans) == ((begins >= start) & (begins < end)).sum()
        assert min(each["ts"] for each in spans) >= 0
        ops = side.trace.ops.row(by_predicate=pl.col("op") == spans[0]["name"], named=True)
        assert spans[0]["args"]["family"] == ops["family"]
    assert_nested(events)


@pytest.mark.parametrize("pair", ["cpu-remat", "tiny-gpt-oss"])
def test_all_steps_hold_what_each_of_them_holds(pair: str) -> None:
    side = api.measured(str(sample_profiles.path(f"{pair}/baseline.xplane.pb.gz")))
    events = document(api.timeline([side], step="all"))["traceEvents"]
    assert_nested(events)
    (device,) = timeline.devices(side)
    assert [each["name"] for each in complete(events, 1, steps=True)] == [f"step {n}" for n in range(len(device.steps))]
    count = Counter(each["name"] for each in complete(events, 1))
    one_by_one: Counter[str] = Counter()
    for step in range(len(device.steps)):
        one_by_one.update(
            each["name"] for each in complete(document(api.timeline([side], step=step))["traceEvents"], 1)
        )
    assert count == one_by_one
    assert set(names(events, "thread_name")) == {"steps", *(n for n in side.trace.timelines[0].lanes if "XLA" in n)}


@pytest.mark.recordings
@pytest.mark.parametrize(
    "file", ["tpu_v6e_inference", "nvidia_8gpu_tf2", "gfx950_fused_attention", "tpu_qwen3_serving_bf16"]
)
def test_a_recording_keeps_its_devices_on_one_clock(recordings: Path, file: str) -> None:
    side = api.measured(str(recordings / f"{file}.xplane.pb"))
    events = document(api.timeline([side], step="all"))["traceEvents"]
    assert_nested(events)
    found = timeline.devices(side)
    assert len(names(events, "process_name")) == len(found)
    origin = min(int(device.steps.min()) for device in found)
    for process, device in enumerate(found, 1):
        first = min(each["ts"] for each in complete(events, process, steps=True))
        assert first == pytest.approx((int(device.steps.min()) - origin) / 1e6, abs=1e-3)


def test_what_overlaps_in_flight_gets_threads_of_its_own(tpu_space, saved) -> None:
    space = tpu_space(
        {
            "TPU:0": {
                "XLA Ops": [("while.1", 0, 9 * MS), ("add.2", MS, MS)],
                "Async XLA Ops": [("copy-start.3", 0, 4 * MS), ("copy-start.4", MS, 4 * MS)],
            }
        }
    )
    events = document(api.timeline([saved(space)]))["traceEvents"]
    assert names(events, "thread_name") == ["recording", "XLA Ops", "in flight", "in flight (2)"]
    assert [each["name"] for each in complete(events, 1, steps=True)] == ["whole recording"]
    assert_nested(events)


def test_rounding_to_nanoseconds_keeps_what_nests_nested(tpu_space, saved) -> None:
    space = tpu_space({"TPU:0": {"XLA Ops": [("while.1", 400, 10_000), ("add.2", 5_600, 4_800), ("add.3", 10_400, 1)]}})
    events = document(api.timeline([saved(space)]))["traceEvents"]
    assert [nanoseconds(each) for each in complete(events, 1)] == [(0, 10), (5, 10), (10, 10)]
    assert_nested(events)


@pytest.mark.parametrize("name", ['"}],"x":[{"', "</script><script>", "a\u202eb", "\udcff", "new\nline", "n" * 100_000])
def test_a_hostile_name_is_a_name(name: str, tpu_space, saved) -> None:
    space = tpu_space({"TPU:0": {"Steps": [(name, 0, MS)], "XLA Ops": [("add.1", 0, MS)]}})
    line = space.plane("/device:TPU:1").line("XLA Ops")
    line.event(name, 0, MS, display_name=name, metadata_stats={"program_id": 7, "symbol_id": 2, "tf_op": name})
    plane = space.plane("/device:GPU:0", stats={"device_vendor": "Nvidia"})
    plane.line(f"Stream #1 {name}").event(name, 0, MS)
    path = saved(space)
    for device in ("TPU:1", "GPU:0"):
        pieces = list(perfetto.trace_events(api.timeline([path], api.Options(device=device))))
        assert b"".join(pieces).isascii()
        events = json.loads(b"".join(pieces))["traceEvents"]
        texts = [text for each in events for text in (each["name"], *map(str, each.get("args", {}).values()))]
        assert max(map(len, texts)) <= perfetto.MOST_LETTERS
        assert all(text.isprintable() for text in texts)


def test_no_piece_grows_with_the_recording(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(perfetto, "SPANS_PER_PIECE", 100)
    export = api.timeline([str(sample_profiles.path("cpu-remat/baseline.xplane.pb.gz"))], step="all")
    pieces = list(perfetto.trace_events(export))
    assert len(pieces) > 10
    assert max(piece.count(b'"ph":"X"') for piece in pieces) <= 100


def test_a_step_that_is_not_there_is_refused() -> None:
    with pytest.raises(UsageError, match=r"no step 7 \(there are 7 steady steps, from 0\)"):
        api.timeline([str(sample_profiles.path("cpu-remat/baseline.xplane.pb.gz"))], step=7)


# --- the command


def test_the_command_writes_the_same_file_twice_packed_where_its_name_says_so(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    pair = [str(sample_profiles.path(f"cpu-remat/{side}.xplane.pb.gz")) for side in ("baseline", "optimized")]
    for name in ("a.json.gz", "b.json.gz", "c.json"):
        assert cli.main(["timeline", *pair, "-o", str(tmp_path / name)]) == 0
        assert f"wrote {tmp_path / name}" in capsys.readouterr().err
    packed, again, plain = (tmp_path.joinpath(name).read_bytes() for name in ("a.json.gz", "b.json.gz", "c.json"))
    assert packed == again
    assert gzip.decompress(packed) == plain
    assert names(json.loads(plain)["traceEvents"], "process_name") == ["baseline CPU:0", "optimized CPU:0"]


@pytest.mark.parametrize(
    ("more", "code", "message"),
    [
        (["--step", "99"], 2, "no step 99 (there are 7 steady steps, from 0)"),
        (["--step", "first"], 2, "'first' is not a whole number"),
        (["--step", "-1"], 2, "-1 is negative"),
        (["--device", "TPU:9"], 2, "no device 'TPU:9'"),
    ],
)
def test_what_is_not_there_leaves_no_file(
    more: list[str], code: int, message: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = str(sample_profiles.path("cpu-remat/baseline.xplane.pb.gz"))
    assert cli.main(["timeline", path, *more, "-o", str(tmp_path / "t.json")]) == code
    assert message in capsys.readouterr().err
    assert list(tmp_path.iterdir()) == []


def test_the_output_is_never_an_input(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "run.xplane.pb.gz"
    path.write_bytes(sample_profiles.path("cpu-remat/baseline.xplane.pb.gz").read_bytes())
    assert cli.main(["timeline", str(path), "-o", str(path)]) == 2
    assert "is an input" in capsys.readouterr().err


def test_redacted_names_neither_folders_nor_hosts(tpu_space, saved, tmp_path: Path) -> None:
    spaces = []
    for host in ("t1v-n-0042", "t1v-n-0043"):
        space = tpu_space({"TPU:0": {"XLA Ops": [("add.1", 0, MS)]}})
        space._header.hostnames[:] = [host.encode()]
        line = space.plane("/device:TPU:1").line("XLA Ops")
        stats = {"program_id": 7, "symbol_id": 2, "source": "/home/ada/model/step.py:7"}
        line.event("%dot.1 = f32[8] dot()", 0, MS, display_name="dot.1", metadata_stats=stats)
        spaces.append(saved(space, f"run/{host}.xplane.pb"))
    folder = str(Path(spaces[0]).parent)
    target = tmp_path / "t.json"
    assert cli.main(["timeline", folder, "--all-devices", "-o", str(target)]) == 0
    assert "/home/ada/model/step.py:7" in target.read_text()
    assert "t1v-n-0042" in target.read_text()
    assert cli.main(["timeline", folder, "--all-devices", "--redact", "-o", str(target)]) == 0
    assert "step.py:7" in target.read_text()
    assert "ada" not in target.read_text()
    assert "t1v" not in target.read_text()
    assert names(json.loads(target.read_text())["traceEvents"], "process_name")[0].endswith("host-1/TPU:0")
