"""The summary shows phases, throughput and what the run says of itself; hostile run info stays text."""

from __future__ import annotations

from dataclasses import replace

import pytest

from profiler.report.model import Facts
from profiler.report.summary_view import phases_table, run_facts, summary_document
from profiler.results import PhaseRow


@pytest.fixture
def summary_of(make):
    """The baseline of a hand-built diff, with some fields changed."""
    return lambda **fields: replace(make.training().baseline, **fields)


def test_phases_and_idle_make_the_step(summary_of) -> None:
    summary = summary_of(phases=(PhaseRow("forward", 30.0, 0.3), PhaseRow(None, 10.0, 0.1)))
    names = [row[0].text for row in phases_table(summary).rows]
    assert names == ["forward", "not known", "idle"]


def test_without_any_phase_there_is_no_such_table(summary_of) -> None:
    assert phases_table(summary_of(phases=())).rows == ()


def test_run_info_is_a_few_lines_and_its_long_parts_are_counted(summary_of) -> None:
    info = {
        "config": {"model_name": "tiny", "a": 1},
        "mesh": {"data": 1, "fsdp": 4},
        "metrics": [{"step": 7, "loss": 2.5, "perplexity": 12.1825, "grad_norm": 1.0}] * 3,
        "xla_flags": [],
        "quick": False,
        "distillation": True,
        "hbm_capacity_bytes": 96 << 30,
        "host_bytes": 0,
        "estimates": {"step_s": 5.2441},
    }
    facts = {key: cell.text for key, cell in run_facts(info)}
    assert facts == {
        "model": "tiny",
        "config": "2 keys (--format json has them all)",
        "mesh": "data 1, fsdp 4",
        "quick": "no",
        "distillation": "yes",
        "hbm capacity": "96.00 GiB",
        "host memory": "0",
        "last of 3 steps": "step 7, loss 2.5, perplexity 12.182",
    }
    document = summary_document(summary_of(run_info=info))
    assert any(isinstance(block, Facts) and block.title for block in document.blocks)


def test_run_info_of_any_shape_is_shown_or_left_out_without_failing(summary_of) -> None:
    for info in (None, {}, {"metrics": "x", "config": 3}, {"metrics": [3]}, {"a": {"b": [1, {"c": None}]}}):
        summary_document(summary_of(run_info=info))
