"""The benchmark of many hosts: what it generates is a run, and its own checks pass."""

from __future__ import annotations

import sys

import numpy as np
import pytest
from _pytest.monkeypatch import MonkeyPatch

from profiler import api


@pytest.fixture
def benchmarks(monkeypatch: MonkeyPatch, request):
    monkeypatch.syspath_prepend(str(request.config.rootpath / "benchmarks"))
    yield lambda name: __import__(name)
    for name in ("encode", "fleet", "generate", "moe_program"):
        sys.modules.pop(name, None)


def test_generated_hosts_share_their_program_and_planes_and_nothing_else(benchmarks, tmp_path) -> None:
    for host in ("a", "b"):
        (tmp_path / "run").mkdir(exist_ok=True)
        benchmarks("generate").generate(tmp_path / f"run/{host}.xplane.pb", 2_000_000, devices=1, host=host)
    trace = api.load(str(tmp_path / "run"))
    assert trace.warnings == ()
    one, other = trace.fleet.windows
    assert [each.name for each in trace.fleet.devices] == ["a/TPU:0", "b/TPU:0"]
    assert [each.plane for each in trace.fleet.devices] == ["/device:TPU:0"] * 2
    assert one.names[:2] == other.names[:2] == ("0", "1")
    assert not np.isin(one.spans, other.spans).any()


@pytest.mark.slow
@pytest.mark.skipif(sys.platform != "linux", reason="looks at memory in /proc")
def test_the_benchmark_runs_and_its_checks_pass(benchmarks, tmp_path, capsys) -> None:
    benchmarks("fleet").run(tmp_path, [2, 3], 1_000_000, [1, 2])
    out, err = capsys.readouterr()
    rows = [line.split("|")[1:-1] for line in out.splitlines()[2:]]
    assert [(int(row[0]), int(row[2])) for row in rows] == [(2, 1), (2, 2), (3, 1), (3, 2)]
    assert err.count("equal bytes, and the figures of all devices") == 2
