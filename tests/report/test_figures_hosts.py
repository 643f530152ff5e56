"""Devices by host and the steps of the slowest hosts, as they are drawn."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from profiler.analysis.skew import skew
from profiler.fleet import Host
from profiler.report.figures_hosts import OWN, STEP, device_strip, host_bars
from profiler.report.hosts_pair import facts, odd_hosts
from profiler.results_skew import HostsReport

ALL = slice(None)


@pytest.fixture(scope="module")
def made(load_helper: Callable[[Path], ModuleType]) -> ModuleType:
    """The module with the made-up fleets."""
    return load_helper(Path(__file__).resolve().parents[1] / "fleet" / "test_skew.py")


@pytest.fixture(scope="module")
def slow(made: ModuleType) -> HostsReport:
    return skew(made.made(change=made.slower((2, ALL, ALL), 0.07)))


@pytest.mark.parametrize("what", [OWN, STEP])
def test_every_device_stands_at_its_host_with_its_own_mean(slow: HostsReport, what: str) -> None:
    strip = device_strip("baseline", slow, what)
    assert strip is not None
    assert strip.hosts == ("host-0", "host-1", "host-2", "host-3")
    assert [strip.hosts[round(dot.place)] for dot in strip.dots] == [device.host for device in slow.devices]
    assert len({dot.place for dot in strip.dots}) == len(slow.devices)
    wanted = [each.step_ps if what == STEP else each.work_ps + each.host_ps for each in slow.devices]
    assert [dot.value * strip.scale.divisor for dot in strip.dots] == pytest.approx(wanted)
    below = sum(dot.value < strip.median for dot in strip.dots)
    assert below <= len(strip.dots) / 2
    assert strip.median in [dot.value for dot in strip.dots]


def test_slow_devices_are_marked_and_their_host_named_once(slow: HostsReport) -> None:
    strip = device_strip("baseline", slow)
    assert strip is not None
    assert {dot.name for dot in strip.dots if dot.slow} == {f"host-2/TPU:{number}" for number in range(4)}
    ((name, dot),) = strip.named
    assert (name, dot.host) == ("host-2", "host-2")
    assert dot.value == strip.ranges[2][1]


def test_own_time_is_work_alone_where_no_waiting_is_seen(slow: HostsReport) -> None:
    strip = device_strip("baseline", replace(slow, waits_seen=False))
    assert strip is not None
    assert [dot.value * strip.scale.divisor for dot in strip.dots] == pytest.approx(
        [each.work_ps for each in slow.devices]
    )


def test_parts_sum_to_the_step_and_what_is_left_out_is_counted(slow: HostsReport) -> None:
    figure = host_bars("optimized", slow, 3)
    assert figure is not None
    assert figure.hidden == 1
    assert figure.bars[0].name == "host-2"
    assert [bar.slow for bar in figure.bars] == [True, False, False]
    steps = {host.host: host.step_ps for host in slow.hosts}
    for bar in figure.bars:
        assert sum(bar.parts) * figure.scale.divisor == pytest.approx(steps[bar.name])


def test_of_one_host_the_bars_are_its_chips(made: ModuleType) -> None:
    figure = host_bars("optimized", skew(made.made(hosts=1)))
    assert figure is not None
    assert {bar.name for bar in figure.bars} == {f"host-0/TPU:{number}" for number in range(4)}


def test_one_device_is_not_drawn(made: ModuleType) -> None:
    report = skew(made.made(hosts=1, devices=1))
    assert device_strip("baseline", report) is None
    assert host_bars("baseline", report) is None


def test_hosts_that_are_not_as_the_others_say_how(made: ModuleType) -> None:
    trace = made.made(run_info={"mesh": {"data": 64}})
    fleet = trace.run_fleet
    broken = (*fleet.hosts, Host("host-9", "host-9.xplane.pb", 0, "failed", "is empty"))
    names = (replace(broken[0], status="damaged", why="is cut"), *broken[1:])
    table = odd_hosts(skew(made.of(replace(fleet, hosts=names), trace.run_info)))
    assert table is not None
    rows: list[Any] = [tuple(cell.text for cell in row) for row in table.rows]
    assert ("host-0", "cut or damaged", "is cut") in rows
    assert ("host-9", "cannot be read", "is empty") in rows
    assert ("host-5", "missing", "the numbering of the others lacks it") in rows
    assert ("–", "missing", "the mesh has 64 devices") in rows
    assert odd_hosts(skew(made.made())) is None


def test_hosts_out_of_step_are_listed(made: ModuleType) -> None:
    trace = made.made(named=False)
    fleet = trace.run_fleet
    short = replace(fleet.windows[5], spans=fleet.windows[5].spans[:-1])
    lengths = [len(each.spans) for each in fleet.windows]
    row = sum(lengths[:6]) - 1
    rows = [index for index in range(sum(lengths)) if index != row]
    odd = replace(fleet, windows=(*fleet.windows[:5], short, *fleet.windows[6:]), group_steps=fleet.group_steps[rows])
    table = odd_hosts(skew(made.of(odd)))
    assert table is not None
    assert [(row[1].text, "host-1/TPU:1 (7)" in row[2].text) for row in table.rows] == [("out of step", True)]


def test_facts_of_both_sides_keep_what_only_one_has(slow: HostsReport, made: ModuleType) -> None:
    found = {title: cells for title, *cells in facts(slow, skew(made.made(run_info={"mesh": {"data": 64}})))}
    assert found["hosts"] == ["4", "4"]
    assert found["not here"] == ["–", "the mesh has 64 devices"]
    assert found["gain without stragglers"][0].endswith("(estimate)")
    assert all(cells[1] == "–" for _, *cells in facts(slow, None))
