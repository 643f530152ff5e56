"""The GitHub workflow of the documentation: safe as it says, and its commands run on sample profiles."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import yaml

import sample_profiles
from profiler.report.comment_view import MARKER
from profiler.report.markdown import GATE_LIMIT, LIMIT

ROOT = Path(__file__).resolve().parent.parent
FILE = ROOT / "docs" / "github" / "profiler-report.yml"
PAGE = ROOT / "docs" / "pull-requests.md"


def loaded() -> dict[Any, Any]:
    document = yaml.safe_load(FILE.read_text("utf-8"))
    document["on"] = document.pop(True)  # YAML 1.1 reads the key as a truth
    return document


def steps() -> list[dict[str, Any]]:
    return [step for job in loaded()["jobs"].values() for step in job["steps"]]


def step(name: str) -> dict[str, Any]:
    return next(each for each in steps() if each.get("name") == name)


def test_it_runs_only_when_called_and_never_with_the_rights_of_the_target() -> None:
    assert list(loaded()["on"]) == ["workflow_call"]
    assert "pull_request_target" not in FILE.read_text("utf-8")
    assert "secrets." not in FILE.read_text("utf-8")
    assert not any("checkout" in each.get("uses", "") for each in steps())


def test_no_job_may_more_than_it_needs() -> None:
    document = loaded()
    assert document["permissions"] == {}
    assert {name: job["permissions"] for name, job in document["jobs"].items()} == {
        "compare": {}, "comment": {"pull-requests": "write"},
    }  # fmt: skip
    assert "head.repo.full_name == github.repository" in document["jobs"]["comment"]["if"]


def test_actions_are_githubs_own_and_pinned() -> None:
    used = [each["uses"] for each in steps() if "uses" in each]
    assert used
    assert all(re.fullmatch(r"actions/[a-z-]+@v\d+", action) for action in used)


def test_no_input_is_text_of_a_script() -> None:
    scripts = [each["run"] for each in steps() if "run" in each]
    scripts += [each["with"]["script"] for each in steps() if "script" in each.get("with", {})]
    assert len(scripts) == 4
    assert not any("${{" in script for script in scripts)


def test_the_comment_is_found_by_the_marker_that_the_report_writes() -> None:
    (script,) = [each["with"]["script"] for each in steps() if "script" in each.get("with", {})]
    assert f"const marker = '{MARKER}';" in script
    assert LIMIT + GATE_LIMIT + 500 < 65_536


def test_every_input_is_used_and_documented() -> None:
    text, page = FILE.read_text("utf-8"), PAGE.read_text("utf-8")
    for name in loaded()["on"]["workflow_call"]["inputs"]:
        assert f"inputs.{name} }}}}" in text
        assert f"`{name}`" in page


def test_the_caller_of_the_page_gives_what_is_required() -> None:
    (block,) = re.findall(r"```yaml\n(.+?)```", PAGE.read_text("utf-8"), re.DOTALL)
    caller = yaml.safe_load(block)
    given = caller["jobs"]["report"]["with"]
    inputs = loaded()["on"]["workflow_call"]["inputs"]
    assert set(given) <= set(inputs)
    assert {name for name, about in inputs.items() if about.get("required")} <= set(given)
    assert caller["jobs"]["report"]["permissions"] == {"pull-requests": "write"}


def run_compare(folder: Path, **inputs: str) -> tuple[int, str, dict[str, str]]:
    """The step as GitHub runs it: (exit code, what it writes into the summary, its outputs)."""
    about = loaded()["on"]["workflow_call"]["inputs"]
    profiles = folder / "profiles"
    profiles.mkdir()
    for side in ("baseline", "optimized"):
        for suffix in (".xplane.pb.gz", ".yml"):
            shutil.copy(sample_profiles.path(f"cpu-remat/{side}{suffix}"), profiles)
    binaries = folder / "bin"
    binaries.mkdir()
    command = binaries / "profiler"
    command.write_text(f'#!/bin/sh\nexec "{sys.executable}" -m profiler "$@"\n')
    command.chmod(0o755)
    values = {name: str(each.get("default", "")) for name, each in about.items()} | inputs
    environment = {
        name: values[re.sub(r"\$\{\{ inputs\.([a-z-]+) \}\}", r"\1", text)]
        for name, text in step("Compare")["env"].items()
    }
    environment |= {
        "PATH": f"{binaries}{os.pathsep}{os.environ['PATH']}", "GITHUB_WORKSPACE": str(folder),
        "GITHUB_STEP_SUMMARY": str(folder / "summary.md"), "GITHUB_OUTPUT": str(folder / "output"),
        "HOME": str(folder), "PYTHONUTF8": "1",
    }  # fmt: skip
    done = subprocess.run(
        ["bash", "--noprofile", "--norc", "-eo", "pipefail", "-c", step("Compare")["run"]],
        cwd=profiles, env=environment, capture_output=True, text=True, check=False, timeout=120,
    )  # fmt: skip
    summary = folder / "summary.md"
    lines = (folder / "output").read_text().splitlines() if (folder / "output").exists() else []
    outputs = dict(line.split("=", 1) for line in lines)
    return done.returncode, summary.read_text("utf-8") if summary.exists() else done.stderr, outputs


@pytest.mark.skipif(shutil.which("bash") is None, reason="GitHub's shell")
@pytest.mark.parametrize(
    ("thresholds", "gate", "word"),
    [
        ({}, "1", "| FAIL | hbm"),
        ({"fail-on": "throughput<-2%\n\n", "warn-on": ""}, "0", "| ok | throughput"),
        ({"fail-on": "", "warn-on": "hbm_peak>+5%\nidle>+1ms"}, "0", "| **WARN** | hbm"),
    ],
)
def test_its_commands_run_on_sample_profiles(tmp_path: Path, thresholds: dict[str, str], gate: str, word: str) -> None:
    sides = {side: f"{side}.xplane.pb.gz" for side in ("baseline", "optimized")}
    code, summary, outputs = run_compare(
        tmp_path, **sides, options="--config baseline.yml optimized.yml --top 3", **thresholds
    )
    assert (code, outputs) == (0, {"gate": gate})
    assert summary.startswith(f"{MARKER}\n\n### profiler check\n")
    assert word in summary
    assert summary.index("### profiler check") < summary.index("### profiler diff")
    assert summary.count(MARKER) == 1
    written = {path.name for path in (tmp_path / "profiler-report").iterdir()}
    assert written == {"diff.md", "gate.md", "comment.md", "report.html"}


@pytest.mark.skipif(shutil.which("bash") is None, reason="GitHub's shell")
def test_what_cannot_be_compared_fails_the_step_with_its_own_code(tmp_path: Path) -> None:
    sides = {"baseline": "baseline.xplane.pb.gz", "optimized": "missing.xplane.pb"}
    code, message, outputs = run_compare(tmp_path, **sides)
    assert (code, outputs) == (3, {})
    assert "missing.xplane.pb" in message


MOCK = """
const calls = [];
const comments = JSON.parse(process.argv[2]);
const github = {
  paginate: async (what, where) => comments,
  rest: { issues: {
    listComments: 'list',
    createComment: async (call) => calls.push(['create', call]),
    updateComment: async (call) => calls.push(['update', call]),
  } },
};
const context = {
  serverUrl: 'https://github.invalid', runId: 5, repo: { owner: 'o', repo: 'r' }, issue: { number: 7 },
};
(async () => { SCRIPT })().then(() => console.log(JSON.stringify(calls)));
"""


@pytest.mark.skipif(shutil.which("node") is None, reason="the comment is posted by a script for Node")
@pytest.mark.parametrize(
    ("comments", "what"),
    [
        ([], "create"),
        ([{"id": 1, "user": {"type": "Bot"}, "body": "HEAD\n…"}], "update"),
        ([{"id": 1, "user": {"type": "User"}, "body": "HEAD\n…"}], "create"),
        (
            [{"id": 1, "user": {"type": "Bot"}, "body": f"{MARKER}\n<!-- another -->\n"}, {"id": 2, "user": None}],
            "create",
        ),
    ],
)
def test_its_comment_is_posted_once_and_then_updated(tmp_path: Path, comments: list[Any], what: str) -> None:
    head = f"{MARKER}\n<!-- my_pair__ -->"
    for each in comments:
        each["body"] = each.get("body", "").replace("HEAD", head)
    (tmp_path / "profiler-report").mkdir()
    (tmp_path / "profiler-report" / "comment.md").write_text(f"{MARKER}\n\n### profiler check\n", "utf-8")
    (script,) = [each["with"]["script"] for each in steps() if "script" in each.get("with", {})]
    (tmp_path / "post.js").write_text(MOCK.replace("SCRIPT", script), "utf-8")
    command = ["node", "post.js", json.dumps(comments)]
    environment = {**os.environ, "NAME": "my-pair->"}
    done = subprocess.run(command, cwd=tmp_path, env=environment, capture_output=True, text=True, check=True)
    ((call, given),) = json.loads(done.stdout)
    assert call == what
    assert given["body"].startswith(f"{head}\n\n\n### profiler check\n")
    assert "https://github.invalid/o/r/actions/runs/5#artifacts" in given["body"]
    assert given.get("comment_id") == (1 if what == "update" else None)
