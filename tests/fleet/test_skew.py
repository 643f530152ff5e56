"""Stragglers in made-up fleets: who is named, who is not, and what it is said to cost."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from profiler.analysis.skew import ALPHA, skew
from profiler.analysis.skewhosts import missing_names
from profiler.analysis.skewtest import effects, holm, lower_median
from profiler.errors import UsageError
from profiler.fleet import Fleet, Host
from profiler.results_skew import HostsReport
from profiler.trace import AllocatorPeaks, Device, Trace, Windows

MS = 1_000_000_000
GROUPS = (
    ("communication", "all-reduce", None),
    ("compute", "dense matmul", None),
    ("compute", "gmm forward", None),
    ("compute", "norm / elementwise", None),
    ("transfer", "host transfer", "input"),
    ("wait", "wait", None),
)
REDUCE, MATMUL, GMM, NORM, INPUT, WAIT, IDLE = range(7)
USUAL_MS = (10.0, 50.0, 25.0, 10.0, 1.0, 1.0, 3.0)

Change = Callable[[np.ndarray], None]  # of (hosts, devices of one, steps, groups and idle)


def made(
    hosts: int = 4,
    devices: int = 4,
    steps: int = 8,
    *,
    change: Change = lambda times: None,
    noise: float = 0.003,
    seed: int = 0,
    coupled: bool = True,
    named: bool = True,
    run_info: dict[str, Any] | None = None,
) -> Trace:
    """A run whose devices compute with some noise and then wait for the last one; ``change`` makes one of them slow."""
    random = np.random.default_rng(seed)
    times = np.array(USUAL_MS) * (1 + noise * random.standard_normal((hosts, devices, steps, 7)))
    times *= 1 + 0.05 * random.standard_normal((1, 1, steps, 1))  # steps differ, on all devices alike
    change(times)
    own = times.sum(axis=-1) - times[..., REDUCE]
    if coupled:
        times[..., REDUCE] += own.max(axis=(0, 1)) - own
    rows = np.rint(times.reshape(-1, 7) * MS).astype(np.int64)
    flat = rows.sum(axis=1).reshape(hosts, devices, steps)
    files = tuple(
        Host(f"host-{host}", f"host-{host}.xplane.pb", 0, "read", origin_ns=host * 7) for host in range(hosts)
    )
    every, windows = [], []
    for host in range(hosts):
        for device in range(devices):
            end = np.cumsum(flat[host, device])
            every.append(
                Device(
                    len(every), f"host-{host}/TPU:{device}", files[host].file, f"host-{host}", f"/device:TPU:{device}",
                    "tpu", "TPU v6e", host_index=host,
                )
            )  # fmt: skip
            spans = np.stack([end - flat[host, device], end], axis=1) + host * 11 * MS
            windows.append(Windows(spans, "Steps line", "step", tuple(map(str, range(steps))) if named else ()))
    fleet = Fleet(files, tuple(every), tuple(windows), GROUPS, rows.astype(np.float64), (0,))
    return of(fleet, run_info)


def of(fleet: Fleet, run_info: dict[str, Any] | None = None) -> Trace:
    """A trace of a fleet that has nothing else."""
    nothing: Any = None
    return Trace(
        "run", tuple(host.file for host in fleet.hosts), "recorded", fleet.devices[:1], (), nothing, nothing, (), (),
        AllocatorPeaks(), {}, run_info, {}, (), hosts=fleet.hosts, run_fleet=fleet,
    )  # fmt: skip


def slower(where: Any, by: float, *groups: int) -> Change:
    """Makes devices slower: ``where`` indexes (hosts, devices, steps)."""

    def change(times: np.ndarray) -> None:
        for group in groups or (MATMUL, GMM, NORM):
            times[(*where, group)] *= 1 + by

    return change


def names(report: HostsReport) -> list[tuple[str, str]]:
    return [(each.kind, each.name) for each in report.stragglers]


# --- who is named


def test_a_host_that_is_seven_per_cent_slower_is_named_with_its_cost() -> None:
    report = skew(made(change=slower((2, slice(None), slice(None)), 0.07)))
    (found,) = report.stragglers
    assert (found.kind, found.name, found.cause) == ("host", "host-2", "all compute")
    assert len(found.devices) == 4
    assert (found.slow_steps, found.steps) == (8, 8)
    assert found.ratio == pytest.approx(1.07, abs=0.005)
    assert found.p_value < ALPHA
    assert found.families[0].family == "dense matmul"
    # The others end about 0.07 × 85 ms earlier; what noise adds to the longest of 12 devices is theirs.
    assert found.gain_ps == pytest.approx(0.07 * 85 * MS, rel=0.15)
    assert report.gain_ps == found.gain_ps
    assert "Host host-2 is slow by 7." in report.verdict
    assert "(estimate)" in report.verdict
    assert {step.longest.partition("/")[0] for step in report.steps} == {"host-2"}
    assert report.hosts[2].longest_steps == 8


def test_two_slow_hosts_are_both_named_and_neither_alone_would_gain_all() -> None:
    report = skew(made(8, change=slower(([1, 5], slice(None), slice(None)), 0.07)))
    assert sorted(names(report)) == [("host", "host-1"), ("host", "host-5")]
    assert report.gain_ps is not None
    assert report.gain_ps == pytest.approx(0.07 * 85 * MS, rel=0.2)
    assert all(each.gain_ps < 0.2 * report.gain_ps for each in report.stragglers)


def test_half_of_all_hosts_may_be_slow() -> None:
    report = skew(made(4, change=slower(([0, 3], slice(None), slice(None)), 0.07)))
    assert sorted(names(report)) == [("host", "host-0"), ("host", "host-3")]


def test_a_slow_chip_is_not_its_host() -> None:
    report = skew(made(change=slower((1, 2, slice(None)), 0.07)))
    assert names(report) == [("chip", "host-1/TPU:2")]
    assert report.stragglers[0].host == "host-1"


def test_one_family_alone_is_other_work() -> None:
    report = skew(made(change=slower((1, 2, slice(None)), 0.3, GMM)))
    (found,) = report.stragglers
    assert (found.cause, found.families[0].family) == ("one family", "gmm forward")
    assert found.families[0].ratio == pytest.approx(0.3, abs=0.02)
    assert "in gmm forward: other work or other data" in report.verdict


@pytest.mark.parametrize("group", [IDLE, INPUT])
def test_a_host_that_gives_its_devices_work_late_is_named_for_it(group: int) -> None:
    def late(times: np.ndarray) -> None:
        times[3, :, :, group] += 8

    report = skew(made(change=late))
    (found,) = report.stragglers
    assert (found.kind, found.name, found.cause) == ("host", "host-3", "input")
    assert found.gain_ps == pytest.approx(8 * MS, rel=0.15)


def test_a_device_that_idles_since_it_has_less_to_do_is_no_straggler() -> None:
    def less(times: np.ndarray) -> None:
        times[0, 0, :, MATMUL] -= 20
        times[0, 0, :, IDLE] += 20

    assert names(skew(made(change=less))) == []


def test_a_straggler_that_moves_is_told_as_such() -> None:
    def moves(times: np.ndarray) -> None:
        for step in range(0, 8, 2):
            times[step // 2, :, step, MATMUL] *= 1.2

    report = skew(made(change=moves))
    assert names(report) == []
    assert report.spikes is not None
    assert (report.spikes.steps, report.spikes.of) == (4, 8)
    assert {each.device.partition("/")[0] for each in report.spikes.devices} == {f"host-{host}" for host in range(4)}
    assert report.spikes.gain_ps == pytest.approx(0.5 * 10 * MS, rel=0.15)
    assert "in 4 of 8 steps one is far slower" in report.verdict
    assert [step.clear for step in report.steps] == [True, False] * 4


def test_where_no_communication_is_seen_work_alone_counts() -> None:
    def barrier(times: np.ndarray) -> None:
        times[2, :, :, [MATMUL, GMM, NORM]] *= 1.07
        times[..., [REDUCE, WAIT]] = 0
        busy = times.sum(axis=-1)
        times[..., IDLE] += busy.max(axis=(0, 1)) - busy

    report = skew(made(change=barrier, coupled=False))
    assert names(report) == [("host", "host-2")]
    assert not report.waits_seen
    assert [note.code for note in report.warnings] == ["no_waits_seen"]


def test_replicas_that_do_not_wait_for_each_other_lose_nothing() -> None:
    report = skew(made(change=slower((2, slice(None), slice(None)), 0.07), coupled=False))
    assert names(report) == [("host", "host-2")]
    assert report.gain_ps == pytest.approx(0, abs=0.1 * MS)


# --- who is not


def test_of_equal_devices_none_is_named() -> None:
    """Over many runs, at most as often as promised; sampling error aside."""
    count = 300
    shapes = [(2, 1, 3), (2, 4, 5), (8, 4, 4), (3, 1, 10)]
    found = [skew(made(*shapes[seed % len(shapes)], seed=seed, noise=0.02)) for seed in range(count)]
    assert sum(bool(each.stragglers) for each in found) <= ALPHA * count + 3 * (ALPHA * count) ** 0.5
    assert sum(each.spikes is not None for each in found) <= ALPHA * count


@pytest.mark.parametrize("kind", ["normal", "heavy tails", "skewed", "some noisier", "chips differ"])
def test_noise_of_any_kind_names_nobody(kind: str) -> None:
    random = np.random.default_rng(5)

    def noise(devices: int, steps: int) -> np.ndarray:
        shape = devices, steps
        if kind == "heavy tails":
            return 0.01 * random.standard_t(3, shape)
        if kind == "skewed":
            return 0.01 * np.exp(random.standard_normal(shape))
        if kind == "some noisier":
            return 0.01 * random.standard_normal(shape) * np.where(np.arange(devices) % 4, 1, 5)[:, None]
        return 0.01 * random.standard_normal(shape) + (kind == "chips differ") * 0.004 * random.standard_normal(
            (devices, 1)
        )

    runs, wrong = 400, 0
    for run in range(runs):
        values = noise(*[(2, 8), (4, 5), (8, 10), (32, 5)][run % 4])
        found = effects(list(values - np.median(values, axis=0)))
        wrong += bool(((holm(found.p) < ALPHA) & (found.excess >= 0.01)).any())
    assert wrong <= ALPHA * runs + 3 * (ALPHA * runs) ** 0.5


def test_a_difference_below_one_per_cent_of_the_step_does_not_matter() -> None:
    assert names(skew(made(noise=0.0, change=slower((2, slice(None), slice(None)), 0.008)))) == []


def test_exactly_equal_devices_are_equal() -> None:
    report = skew(made(noise=0.0))
    assert (names(report), report.gain_ps, report.spikes) == ([], 0.0, None)
    assert report.verdict == "None of 16 devices is slow by more than noise."


def test_a_single_step_names_nobody_and_says_why() -> None:
    report = skew(made(steps=1, change=slower((2, slice(None), slice(None)), 0.5)))
    assert names(report) == []
    assert "skew_noise_unknown" in [note.code for note in report.warnings]


@pytest.mark.parametrize(("steps", "left"), [((2, 5), 3), ((6, None), 2)])
def test_only_the_steps_that_are_chosen_count(steps: tuple[int | None, int | None], left: int) -> None:
    trace = made(change=slower((2, slice(None), slice(0, 2)), 0.3))
    report = skew(trace, steps)
    assert names(report) == []
    assert [step.step for step in report.steps] == list("01234567"[slice(*steps)])
    assert {each.steps for each in report.devices} == {left}


def test_no_step_left_is_an_error() -> None:
    with pytest.raises(UsageError, match="no step is left"):
        skew(made(), (8, None))
    with pytest.raises(UsageError, match="no step is left"):
        skew(made(), skip_first=9)


# --- what is exact


@settings(max_examples=30, deadline=None)
@given(
    hosts=st.integers(1, 4), devices=st.integers(1, 3), steps=st.integers(1, 5), seed=st.integers(0, 99),
    named=st.booleans(), coupled=st.booleans(),
)  # fmt: skip
def test_parts_sum_to_the_step_and_places_to_all_steps(
    hosts: int, devices: int, steps: int, seed: int, named: bool, coupled: bool
) -> None:
    trace = made(hosts, devices, steps, seed=seed, named=named, coupled=coupled)
    report = skew(trace)
    for each, mean in zip(report.devices, trace.fleet.mean_ps, strict=True):
        assert each.work_ps + each.host_ps + each.wait_ps == pytest.approx(each.step_ps, rel=1e-12)
        assert each.step_ps == pytest.approx(mean, rel=1e-12)
    assert report.step_ps == pytest.approx(trace.fleet.mean_ps[trace.fleet.median()], rel=1e-12)
    if len(report.devices) > 1:
        assert sum(each.longest_steps or 0 for each in report.devices) == steps
        assert sum(each.mean_rank or 0 for each in report.devices) == pytest.approx(sum(range(hosts * devices + 1)))
    else:
        assert (report.verdict, report.gain_ps, report.steps) == ("n/a: one device", None, ())
    for straggler in report.stragglers:
        assert 0 <= straggler.gain_ps <= (report.step_ps or 0)


# --- steps, clocks, files


def test_steps_are_matched_by_name_where_a_host_began_later() -> None:
    trace = made(change=slower((2, slice(None), slice(None)), 0.07))
    fleet = trace.fleet
    first = np.cumsum([0] + [len(each.spans) for each in fleet.windows])
    rows, windows = [], []
    for index, each in enumerate(fleet.windows):
        late = index // 4 == 1  # host-1 did not record the first two steps
        windows.append(replace(each, spans=each.spans[2:], names=each.names[2:]) if late else each)
        rows.append(fleet.group_steps[first[index] + 2 * late : first[index + 1]])
    report = skew(of(replace(fleet, windows=tuple(windows), group_steps=np.concatenate(rows))))
    assert names(report) == [("host", "host-2")]
    assert [step.step for step in report.steps] == list("234567")
    (note,) = report.warnings
    assert (note.code, "host-0/TPU:0 (2)" in note.message) == ("steps_out_of_step", True)

    nameless = tuple(replace(each, names=()) for each in windows)
    report = skew(of(replace(fleet, windows=nameless, group_steps=np.concatenate(rows))))
    assert (report.matched, report.steps, report.experts) == (None, (), ())
    assert "host-1/TPU:0 (6)" in report.warnings[0].message
    assert all(each.longest_steps is None for each in report.devices)


def test_the_start_of_steps_is_told_by_names_only() -> None:
    report = skew(made())
    hosts = {each.host: each for each in report.hosts}
    base = next(host for host, each in hosts.items() if each.start_ps is None)
    number = int(base.partition("-")[2])
    for host in range(4):
        if host != number:
            # Origins lie 7 ns apart, and the first steps 11 ms.
            later = hosts[f"host-{host}"].start_ps
            assert later == pytest.approx((host - number) * (11 * MS + 7000), abs=MS)
    assert all(each.start_ps is None for each in skew(made(named=False)).hosts)


def test_experts_that_are_unequal_are_told_per_step() -> None:
    def unequal(times: np.ndarray) -> None:
        times[1, 3, :, GMM] *= 1.5

    (row,) = skew(made(noise=0.0, change=unequal)).experts
    mean = (15 + 1.5) / 16
    assert (row.family, row.worst, row.worst_steps) == ("gmm forward", "host-1/TPU:3", 8)
    assert row.imbalance == pytest.approx(1.5 / mean, rel=1e-6)


@pytest.mark.parametrize(
    ("here", "lacking"),
    [
        (["host-0", "host-1", "host-3"], ("host-2",)),
        (["t1v-n-a-w-08", "t1v-n-a-w-09", "t1v-n-a-w-11"], ("t1v-n-a-w-10",)),
        (["w1.local", "w2.local", "w5.local"], ("w3.local", "w4.local")),
        (["host-0", "host-3"], ()),
        (["vm-18234", "vm-77120", "vm-99"], ()),
        (["a", "b", ""], ()),
        ([], ()),
    ],
)
def test_names_that_a_numbering_lacks_are_named(here: list[str], lacking: tuple[str, ...]) -> None:
    assert missing_names(here) == lacking


def test_what_the_mesh_and_the_processes_say_beyond_the_files_is_told() -> None:
    report = skew(made(run_info={"mesh": {"data": 8, "fsdp": 4}, "process_count": 8}))
    assert (report.expected_devices, report.expected_hosts) == (32, 8)
    report = skew(made(run_info={"mesh": {"data": 4, "fsdp": 4}, "process_count": 4}))
    assert (report.expected_devices, report.expected_hosts) == (None, None)


def test_hosts_that_failed_keep_their_row() -> None:
    trace = made()
    fleet = replace(trace.fleet, hosts=(*trace.fleet.hosts, Host("host-9", "host-9.xplane.pb", 0, "failed", "is cut")))
    row = skew(of(fleet)).hosts[-1]
    assert (row.host, row.status, row.why, row.devices, row.step_ps) == ("host-9", "failed", "is cut", 0, None)


def test_the_lower_median_is_one_of_the_values() -> None:
    assert lower_median(np.array([4.0, 1.0, 3.0, 2.0])) == 2.0
