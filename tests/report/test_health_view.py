"""``profiler health`` as people and programs read it."""

from __future__ import annotations

import csv
import io
import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import jsonschema
import pytest

import sample_profiles
from profiler import api
from profiler.redact import redacted
from profiler.report import render_health
from profiler.report.health_view import percent, remedy_of, value_text
from profiler.report.output import Style
from profiler.results_health import Assumption, Health, Problem

SCHEMA = Path(__file__).resolve().parents[2] / "docs" / "schema" / "health.schema.json"
PAGE = Path(__file__).resolve().parents[2] / "docs" / "commands" / "health.md"


def closed(node: Any) -> Any:
    """The schema with no property allowed that it does not describe."""
    if isinstance(node, dict):
        node = {key: closed(value) for key, value in node.items()}
        return {**node, "additionalProperties": False} if node.get("properties") else node
    return [closed(item) for item in node] if isinstance(node, list) else node


@pytest.fixture(scope="module")
def found() -> Health:
    return api.health(str(sample_profiles.path("tiny-qwen3/baseline.xplane.pb.gz")))


@pytest.fixture(scope="module")
def compiled() -> Health:
    return api.health(str(sample_profiles.path("qwen3-30b/baseline.xplane.pb")))


def text(health: Health, **style: Any) -> str:
    return render_health(health, "text", Style(**{"width": 100, **style})).decode()


def test_the_json_follows_its_schema(found: Health, compiled: Health) -> None:
    schema = json.loads(SCHEMA.read_text("utf-8"))
    jsonschema.Draft202012Validator.check_schema(schema)
    for each in (found, compiled, redacted(found)):
        data = json.loads(render_health(each, "json", Style()))
        jsonschema.validate(data, closed(schema), cls=jsonschema.Draft202012Validator)
    assert set(schema["properties"]) == {"schema_version", *Health.__dataclass_fields__}


def test_the_answers_come_first_each_with_its_reason_and_what_helps(found: Health) -> None:
    lines = text(found).splitlines()
    at = lines.index("1. Can the times be trusted? yes")
    assert lines[at + 1].strip() == "5 steady steps, by step_num annotations; nothing of the file is lost"
    at = lines.index("3. Can MFU be told and split? no")
    assert lines[at + 2].strip() == "what helps: --peak-tflops"
    assert at < lines.index("How much is known")


def test_the_example_of_the_page_is_what_the_command_prints(found: Health, unprinted: Any) -> None:
    assert unprinted(PAGE, text(found)) == []


def test_the_page_has_every_question(found: Health) -> None:
    page = PAGE.read_text("utf-8")
    assert [each.question for each in found.grades if f"| {each.question} |" not in page] == []


def test_estimated_times_are_marked(compiled: Health) -> None:
    out = text(compiled)
    assert "every time is an estimate" in out
    assert "(est.)" in out
    assert "(est.)" not in text(replace(compiled, kind="recorded"))


@pytest.mark.parametrize("width", [60, 80, 100])
def test_nothing_is_wider_than_the_terminal(found: Health, width: int) -> None:
    assert max(map(len, text(found, width=width).splitlines())) <= width


def test_warnings_stand_under_their_group_and_none_is_said_to_be_none(found: Health) -> None:
    assert "No warnings" in text(found)
    lost = Problem("lost", "truncated", "the file ends inside a message", "copy it again")
    out = text(replace(found, problems=(lost, replace(lost, group="assumed", message="a peak"))))
    assert "No warnings" not in out
    assert out.index("Lost or lacking") < out.index("the file ends") < out.index("Assumed") < out.index("a peak")
    assert "what helps: copy it again" in out


def test_what_helps_is_not_said_twice() -> None:
    note = Problem("worth knowing", "uneven_steps", "some differ (--skip-first N leaves them out)", "--skip-first N")
    assert remedy_of(note) is None
    assert remedy_of(replace(note, message="some differ")) == "--skip-first N"


@pytest.mark.parametrize(
    ("fraction", "shown"),
    [(None, "–"), (0.0, "0 %"), (1.0, "100 %"), (0.99999, "99.9 %"), (1e-9, "0.1 %"), (0.5, "50.0 %")],
)
def test_all_and_nothing_are_not_rounded_to(fraction: float | None, shown: str) -> None:
    assert percent(fraction) == shown


@pytest.mark.parametrize(
    ("value", "unit", "shown"),
    [
        (1153.5, "TFLOP/s", "1153.5 TFLOP/s"), (96 << 30, "bytes", "96 GiB"), (3.69e12, "bytes/s", "3690 GB/s"),
        (32768.0, "tokens", "32,768"), (48.0, "layers", "48"), (None, "TFLOP", "n/a"),
    ],
)  # fmt: skip
def test_figures_have_their_unit(value: float | None, unit: str, shown: str) -> None:
    assert value_text(Assumption("x", value, unit, "trace")) == shown


def test_the_csv_holds_the_coverage(found: Health) -> None:
    rows = list(csv.DictReader(io.StringIO(render_health(found, "csv", Style()).decode())))
    assert [row["name"] for row in rows] == [each.name for each in found.coverage]
    busy = [float(row["covered_ps"]) + float(row["uncovered_ps"]) for row in rows if row["scope"] == "all ops"]
    assert busy == pytest.approx([found.busy_ps] * len(busy))


def test_names_of_a_trace_stay_text(found: Health) -> None:
    evil = "<script>|`x`\x1b[31m\n"
    hostile = replace(
        found,
        hosts=(evil,),
        versions={evil: evil},
        devices=(replace(found.devices[0], name=evil, host=evil, type=evil),) * 2,
        problems=(Problem("lost", "x", evil, None),),
    )
    page = render_health(hostile, "markdown", Style()).decode()
    assert "<script>" not in page.replace("`<script>", "")
    assert "\x1b" not in text(hostile)


def test_redacted_hides_hosts_and_folders(found: Health) -> None:
    hidden = redacted(replace(found, hosts=("node-7",), devices=(replace(found.devices[0], host="node-7"),)))
    assert hidden.hosts == ("host-1",)
    assert str(Path(found.file).parent) not in text(hidden)


def test_the_command_answers_in_every_format(run_cli: Callable[..., Any], tmp_path: Path) -> None:
    path = sample_profiles.path("cpu-remat/baseline.xplane.pb.gz")
    for how in ("text", "json", "markdown", "csv"):
        done = run_cli("health", path, "--format", how)
        assert (done.returncode, bool(done.stdout)) == (0, True), done.stderr
    assert "warning: the first step took" in done.stderr  # csv has no place for it
