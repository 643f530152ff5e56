"""A straggler on one side of a diff is named, and not taken for an effect of a knob."""

from __future__ import annotations

import importlib.util
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from types import ModuleType

import pytest

from profiler import api
from profiler.analysis.summary import Measured


@pytest.fixture
def made() -> ModuleType:
    """The module with the made-up fleets."""
    spec = importlib.util.spec_from_file_location("made_up_fleets", Path(__file__).with_name("test_skew.py"))
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def with_fleet(side: Measured, made: ModuleType, slow: bool) -> Measured:
    """The side with a made-up fleet beside its own device."""
    change = made.slower((2, slice(None), slice(None)), 0.07) if slow else lambda times: None
    return replace(side, trace=replace(side.trace, run_fleet=made.made(change=change).fleet))


@pytest.mark.parametrize(("base", "opt", "named"), [(0, 1, "optimized"), (1, 0, "baseline"), (0, 0, ""), (1, 1, "")])
def test_it_is_named_where_the_sides_differ_in_it(
    make_run: Callable[..., Path], made: ModuleType, base: int, opt: int, named: str
) -> None:
    side = api.measured(str(make_run(2)))
    diff = api.diff(with_fleet(side, made, bool(base)), with_fleet(side, made, bool(opt)))
    found = [note.message for note in diff.warnings if note.code == "straggler"]
    assert len(found) == bool(named)
    for message in found:
        assert message.startswith(f"in the {named} run the others wait for host host-2 (all compute alike")
        assert "about 5.6 % shorter, the other side's 0.0 % (estimates)" in message


def test_the_reduced_form_says_of_the_hosts_what_the_recordings_say(
    make_run: Callable[..., Path], tmp_path: Path
) -> None:
    folder, reduced = make_run(3), tmp_path / "run.parquet"
    api.reduce(str(folder), reduced)
    one, two = (replace(api.hosts(str(path)), file="", label="") for path in (folder, reduced))
    assert one == two
