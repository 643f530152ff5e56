"""``profiler hosts`` as people and programs read it."""

from __future__ import annotations

import csv
import importlib.util
import io
import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from types import ModuleType
from typing import Any

import jsonschema
import numpy as np
import pytest

import sample_profiles
from profiler import api
from profiler.analysis.skew import skew
from profiler.errors import UsageError
from profiler.redact import redacted
from profiler.report import render_hosts
from profiler.report.output import Style
from profiler.results_skew import HostsReport
from profiler.xplane.write import SpaceBuilder

ROOT = Path(__file__).resolve().parents[2]
SCHEMA = ROOT / "docs" / "schema" / "hosts.schema.json"
PAGE = ROOT / "docs" / "commands" / "hosts.md"


@pytest.fixture(scope="module")
def made() -> ModuleType:
    """The module with the made-up fleets."""
    spec = importlib.util.spec_from_file_location("made_up_fleets", Path(__file__).with_name("test_skew.py"))
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.fixture(scope="module")
def slow(made: ModuleType) -> HostsReport:
    return skew(made.made(change=made.slower((2, slice(None), slice(None)), 0.07)))


def text(report: HostsReport, how: str = "text") -> str:
    return render_hosts(report, how, Style()).decode()


def closed(node: Any) -> Any:
    """The schema with no property allowed that it does not describe."""
    if isinstance(node, dict):
        node = {key: closed(value) for key, value in node.items()}
        return {**node, "additionalProperties": False} if node.get("properties") else node
    return [closed(item) for item in node] if isinstance(node, list) else node


def moving(made: ModuleType) -> HostsReport:
    def moves(times: Any) -> None:
        for step in (1, 4, 6):
            times[step // 2, :, step] *= 1.2

    return skew(made.made(change=moves))


def test_the_json_follows_its_schema(slow: HostsReport, made: ModuleType) -> None:
    schema = json.loads(SCHEMA.read_text("utf-8"))
    jsonschema.Draft202012Validator.check_schema(schema)
    one = api.hosts(str(sample_profiles.path("tiny-qwen3/baseline.xplane.pb.gz")))
    assert one.verdict == "n/a: one device"
    for each in (slow, moving(made), one, redacted(slow)):
        jsonschema.validate(json.loads(text(each, "json")), closed(schema), cls=jsonschema.Draft202012Validator)
    assert set(schema["properties"]) == {"schema_version", *HostsReport.__dataclass_fields__}


def test_the_example_of_the_page_is_what_the_command_prints(slow: HostsReport, unprinted: Any) -> None:
    assert unprinted(PAGE, text(slow)) == []


def test_steps_that_one_device_spoils_are_told(made: ModuleType) -> None:
    printed = text(moving(made))
    assert "1. single steps: in 3 of 8 one device takes far longer than it mostly does" in printed
    assert "gain without such steps: " in printed


def test_the_csv_holds_the_devices(slow: HostsReport) -> None:
    rows = list(csv.DictReader(io.StringIO(text(slow, "csv"))))
    assert [row["name"] for row in rows] == [each.name for each in slow.devices]
    for row in rows:
        parts = sum(float(row[field]) for field in ("work_ps", "host_ps", "wait_ps"))
        assert parts == pytest.approx(float(row["step_ps"]))


def test_names_of_a_trace_stay_text(slow: HostsReport) -> None:
    evil = "<script>|`x`\x1b[31m\n"
    hostile = replace(
        slow,
        stragglers=tuple(replace(each, name=evil, host=evil, devices=(evil,)) for each in slow.stragglers),
        hosts=tuple(replace(each, host=evil, why=evil) for each in slow.hosts),
        devices=tuple(replace(each, name=evil) for each in slow.devices),
        steps=tuple(replace(each, step=evil, longest=evil) for each in slow.steps),
        missing_hosts=(evil,),
    )
    assert "<script>" not in text(hostile, "markdown").replace("`<script>", "")
    assert "\x1b" not in text(hostile)


def test_redacted_hides_hosts_wherever_they_stand(slow: HostsReport) -> None:
    (straggler,) = slow.stragglers
    chips = tuple(f"node-77/TPU:{chip}" for chip in range(4))
    named = replace(
        slow,
        verdict="Host node-77 is slow.",
        hosts=tuple(replace(each, host="node-77" if each.host == "host-2" else each.host) for each in slow.hosts),
        stragglers=(replace(straggler, name="node-77", host="node-77", devices=chips),),
    )
    for how in ("text", "json", "markdown"):
        assert "node-77" in text(named, how)
        assert "node-77" not in text(redacted(named), how)


def test_a_run_of_several_files_is_read_and_compared(
    make_run: Callable[..., Path], run_cli: Callable[..., Any]
) -> None:
    folder = make_run(4)
    (folder / "host-2.xplane.pb").unlink()
    for how in ("text", "json", "markdown", "csv"):
        done = run_cli("hosts", folder, "--format", how)
        assert (done.returncode, bool(done.stdout)) == (0, True), done.stderr
    report = api.hosts(str(folder))
    assert report.missing_hosts == ("host-2",)
    assert (report.matched, len(report.devices), len(report.steps)) == ("names", 6, report.devices[0].steps)
    # host-3 takes 1.3 times as long as host-0 in every step, and nobody waits in these files.
    assert report.devices[-1].work_ps > 1.2 * report.devices[0].work_ps


def test_two_recordings_are_two_runs(make_run: Callable[..., Path]) -> None:
    folder = make_run(2)
    with pytest.raises(UsageError, match="several recordings"):
        api.hosts(",".join(map(str, sorted(folder.iterdir()))))


def coupled_host(path: Path, host: str, *, slower: float, longest: float, devices: int = 2, steps: int = 6) -> None:
    """Writes a host whose devices compute, all at their own pace, and then wait in an all-reduce for the slowest."""
    ms = 10**9
    space = SpaceBuilder(hostnames=(host,))
    random = np.random.default_rng(list(host.encode()))
    for number in range(devices):
        plane = space.plane(f"/device:TPU:{number}", stats={"device_type_string": "TPU v6 Lite"})
        marks, ops = plane.line("Steps"), plane.line("XLA Ops")
        now = int(random.integers(1, 10**6)) * ms
        for step in range(steps):
            begin, pace = now, slower * random.uniform(0.998, 1.002)
            for symbol, (op, category, length) in enumerate(
                (
                    ("dot.1", "convolution", 60 * ms * pace),
                    ("fusion.2", "loop fusion", 30 * ms * pace),
                    ("all-reduce.3", "all-reduce", 5 * ms + 90 * ms * (longest * 1.003 - pace)),
                ),
                1,
            ):
                ops.event(
                    f"%{op} = f32[8]{{0}} {op.split('.')[0]}(f32[8]{{0}} %x)",
                    begin,
                    int(length),
                    display_name=op,
                    metadata_stats={
                        "program_id": 7,
                        "symbol_id": symbol,
                        "hlo_category": category,
                        "tf_op": "jit(f)/x:",
                    },
                )
                begin += int(length)
            marks.event(str(40 + step), now, begin - now)
            now = begin
    space.write(path)


def test_a_slow_host_is_found_in_the_files_of_a_run(tmp_path: Path) -> None:
    paces = {"host-0": 1.0, "host-1": 1.0, "host-2": 1.07, "host-3": 1.0}
    for host, pace in paces.items():
        coupled_host(tmp_path / f"{host}.xplane.pb", host, slower=pace, longest=1.07)
    report = api.hosts(str(tmp_path))
    (found,) = report.stragglers
    assert (found.kind, found.name, found.cause) == ("host", "host-2", "all compute")
    assert found.ratio == pytest.approx(1.07, abs=0.003)
    assert report.gain_ps == pytest.approx(0.07 * 90e9, rel=0.1)
    assert (report.file, report.step_ps) == (str(tmp_path), pytest.approx((90 * 1.07 + 5) * 1e9, rel=0.01))
