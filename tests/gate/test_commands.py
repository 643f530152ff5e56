"""``profiler check`` and ``profiler report`` as a workflow calls them: exit codes, formats, files."""

from __future__ import annotations

import json
import re
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import sample_profiles

Run = Callable[..., "subprocess.CompletedProcess[str]"]
BASE, OPT = (str(sample_profiles.path(f"cpu-remat/{side}.xplane.pb.gz")) for side in ("baseline", "optimized"))
CONFIGS = [str(sample_profiles.path(f"cpu-remat/{side}.yml")) for side in ("baseline", "optimized")]


@pytest.mark.parametrize(
    ("thresholds", "code", "verdict"),
    [
        (["--fail-on", "step_time>+2%", "remat>0"], 0, "Passed: of 2 thresholds none hit."),
        (["--fail-on", "hbm_peak>+5%"], 1, "Failed: of 1 threshold 1 hit."),
        (["--warn-on", "hbm_peak>+5%"], 0, "Passed: of 1 threshold 1 to be warned of."),
        (["--fail-on", "mfu<-1%"], 1, "Failed: of 1 threshold 1 that cannot be checked."),
        (["--fail-on", "mfu<-1%", "--allow-unknown"], 0, "Passed: of 1 threshold 1 that cannot be checked."),
        (["--fail-on", "idle>+0.1ms"], 0, "Passed: of 1 threshold none hit."),
    ],
)
def test_thresholds_set_the_exit_code(run_cli: Run, thresholds: list[str], code: int, verdict: str) -> None:
    done = run_cli("check", BASE, OPT, "--config", *CONFIGS, *thresholds)
    assert done.returncode == code
    assert done.stdout.splitlines()[0] == verdict
    assert len(done.stderr.splitlines()) == code


def test_a_file_of_thresholds_and_all_formats(run_cli: Run, tmp_path: Path) -> None:
    file = tmp_path / "gate.yml"
    file.write_text("fail-on: ['hbm_peak>+5%']\nwarn-on: ['idle>+1ms']\n")
    for name in ("c.json", "c.md", "c.txt"):
        done = run_cli("check", BASE, OPT, "--thresholds", file, "-o", tmp_path / name)
        assert (done.returncode, done.stdout) == (1, "")
        assert re.fullmatch(r"profiler: error: .+ hit: hbm_peak>\+5%\n", done.stderr)
    document = json.loads((tmp_path / "c.json").read_text())
    assert [row["verdict"] for row in document["rows"]] == ["hit", "within noise"]
    assert "**FAIL**" in (tmp_path / "c.md").read_text() or "| FAIL |" in (tmp_path / "c.md").read_text()
    done = run_cli("check", BASE, OPT, "--thresholds", file, "-o", file, "--format", "json")
    assert done.returncode == 2
    assert "is an input and would be overwritten" in done.stderr


@pytest.mark.parametrize(
    ("args", "code"),
    [
        ([BASE, OPT], 2),
        ([BASE, OPT, "--fail-on", "mfx<-1%"], 2),
        ([BASE, OPT, "--fail-on", "mfu<-1%", "--format", "csv"], 2),
        ([BASE, "missing.xplane.pb", "--fail-on", "mfu<-1%"], 3),
        ([BASE, OPT, "--thresholds", "missing.yml"], 3),
    ],
)
def test_what_cannot_be_done_is_one_line_and_no_output(run_cli: Run, args: list[str], code: int) -> None:
    done = run_cli("check", *args)
    assert (done.returncode, done.stdout) == (code, "")
    assert re.fullmatch(r"profiler: error: .+\n", done.stderr)


def test_what_is_not_comparable_is_neither_passed_nor_failed(run_cli: Run, tpu_space: Any, saved: Any) -> None:
    spans = {"XLA Ops": [("fusion.1", i * 1000, 900) for i in range(4)]}
    spans["XLA Modules"] = [("jit_step(7)", i * 1000, 1000) for i in range(4)]
    tpu = saved(tpu_space({"TPU:0": spans}))
    done = run_cli("check", BASE, tpu, "--fail-on", "step_time>+2%")
    assert (done.returncode, done.stdout) == (4, "")
    forced = run_cli("check", BASE, tpu, "--fail-on", "step_time>+2%", "--force")
    assert forced.returncode in (0, 1)
    assert "Not comparable" in forced.stdout


def test_a_report_is_the_page_of_diff(run_cli: Run, tmp_path: Path) -> None:
    assert run_cli("report", BASE, OPT, "-o", tmp_path / "a.html").returncode == 0
    run_cli("diff", BASE, OPT, "--html", tmp_path / "b.html")
    assert (tmp_path / "a.html").read_bytes() == (tmp_path / "b.html").read_bytes()
    assert run_cli("report", BASE, OPT).returncode == 2
