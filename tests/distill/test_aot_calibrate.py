"""Calibration: the rates of a made-up recording come back, what it cannot tell stays, the rest is refused."""

from __future__ import annotations

import gzip
import json
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import sample_profiles
from distill.aot.calibrate import Calibration, calibrate, save
from distill.aot.calibrate_fit import calibrated
from distill.aot.calibrate_samples import Sample
from distill.aot.dump import Schedule
from distill.aot.model_constants import Constant, constants_of
from distill.aot.profile import write_profile
from distill.aot.timing import Estimate, Timer
from distill.cli import main
from profiler import hlo
from profiler.api import load
from profiler.errors import NotComparableError, UnreadableError
from profiler.hardware import CHIPS
from profiler.hlo.schema import hlo as messages
from profiler.xplane.write import SpaceBuilder

CHIP = next(chip for chip in CHIPS if chip.key == "tpu-v6e")
DEFAULTS = constants_of(CHIP)
KIND = "TPU v6 Lite"
F32, PROGRAM, VMEM, HOST, ITEM = 11, 42, 1, 5, 4
MIB = 1 << 20
US = 1_000_000  # ps

Call = tuple[str, float]  # instruction, seconds on the core


@dataclass
class Program:
    """One HLO module, instruction by instruction; arrays are f32, sizes in bytes."""

    module: Any = field(default_factory=lambda: messages().HloModuleProto(name=b"jit_step", id=1))
    ids: dict[str, int] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.main = self.module.computations.add(name=b"main", id=1)
        self.module.entry_computation_name = b"main"

    def add(
        self,
        name: str,
        opcode: str,
        size: int = 0,
        *operands: str,
        space: int = 0,
        inside: Sequence[str] = (),
        cycles: int = 0,
        dims: Sequence[int] = (),
        contract: int | None = None,
    ) -> None:
        """An instruction with an output of ``size`` bytes, or of ``dims``; ``inside`` are the opcodes of a fusion."""
        found = self._instruction(self.main, name, opcode, operands, dims or (size // ITEM,), space)
        if cycles:
            found.backend_config = json.dumps({"window_config": {"estimated_cycles": str(cycles)}}).encode()
        if contract is not None:
            found.dot_dimension_numbers.lhs_contracting_dimensions.append(contract)
        if inside:
            body = self.module.computations.add(name=f"{name}.body".encode(), id=1000 + self.ids[name])
            body.is_fusion_computation = True
            found.called_computation_ids.append(body.id)
            last = f"{name}.in"
            self._instruction(body, last, "parameter", (), (size // ITEM,), space)
            for number, each in enumerate(inside):
                self._instruction(body, f"{name}.{number}", each, (last,), (size // ITEM,), space)
                last = f"{name}.{number}"
            body.root_id = self.ids[last]

    def _instruction(
        self, computation: Any, name: str, opcode: str, operands: Iterable[str], dims: Sequence[int], space: int
    ) -> Any:
        found = computation.instructions.add(name=name.encode(), opcode=opcode.encode())
        found.id = self.ids[name] = len(self.ids) + 1
        found.operand_ids.extend(self.ids[each] for each in operands)
        found.shape.element_type = F32
        found.shape.dimensions.extend(dims)
        found.shape.layout.memory_space = space
        computation.root_id = found.id
        return found

    def transfer(self, name: str, opcode: str, size: int, *, to_host: bool = False, from_host: bool = False) -> None:
        """A start op and its done op."""
        self.add(f"{name}.p", "parameter", size, space=HOST if from_host else 0)
        self.add(f"{name}.s", f"{opcode}-start", size, f"{name}.p", space=HOST if to_host else 0)
        self.add(f"{name}.d", f"{opcode}-done", size, f"{name}.s", space=HOST if to_host else 0)

    def fusion(self, name: str, size: int, *inside: str, space: int = 0, cycles: int = 0) -> None:
        """Reads and writes ``size`` bytes."""
        self.add(f"{name}.p", "parameter", size, space=space)
        self.add(name, "fusion", size, f"{name}.p", space=space, inside=inside or ("negate",), cycles=cycles)


@dataclass
class Core:
    """What one device ran; ``now`` in seconds."""

    spans: list[tuple[str, float, float]] = field(default_factory=list)
    now: float = 0.0

    def run(self, name: str, seconds: float) -> None:
        """An op of the core."""
        self.spans.append((name, self.now, seconds))
        self.now += seconds

    def start(self, name: str) -> None:
        """A start op, which takes no time."""
        self.run(f"{name}.s", 0.0)

    def done(self, name: str, end: float) -> None:
        """A done op that waits until ``end``, if that is still to come."""
        self.run(f"{name}.d", max(0.0, end - self.now))


def space_of(
    program: Program | None, *cores: Core, kind: str | None = KIND, skew: Callable[[int], int] = lambda i: 0
) -> SpaceBuilder:
    """A recording. ``skew`` shifts the profiler's common clock, event by event, against the device's own."""
    space = SpaceBuilder(hostnames=("host",))
    for number, core in enumerate(cores):
        plane = space.plane(f"/device:TPU:{number}", stats={"device_type_string": kind} if kind else {})
        line = plane.line("XLA Ops")
        for place, (name, start, seconds) in enumerate(core.spans):
            begin, length = round(start * 1e12), round(seconds * 1e12)
            line.event(
                f"%{name} = f32[8] op(f32[8] %x)",
                max(0, begin + skew(place)),
                length,
                display_name=name,
                metadata_stats={"program_id": PROGRAM, "symbol_id": 1 + sum(map(ord, name)), "hlo_category": "op"},
                stats={"device_offset_ps": begin, "device_duration_ps": length},
            )
    if program:
        space.hlo_proto("jit_step", PROGRAM, program.module.SerializeToString())
    return space


@pytest.fixture
def calibrate_space(saved: Callable[..., str]) -> Callable[..., Calibration]:
    return lambda *args, **options: calibrate(saved(space_of(*args, **options)))


def fitted(program: Program, calls: Iterable[Call]) -> dict[str, Constant | None]:
    """Constants from blocking ops, without a file."""
    module = hlo.parse(program.module.SerializeToString())
    samples = [Sample(module.instructions[name], seconds, 10) for name, seconds in calls]
    return {name: each.measured for name, each in calibrated(samples, Timer(CHIP, DEFAULTS), "x").items()}


sizes_of = st.lists(st.integers(1, 30), min_size=6, max_size=12, unique=True)


@settings(max_examples=25, deadline=None)
@given(sizes=sizes_of, rate=st.floats(10e9, 900e9), latency=st.floats(1e-6, 20e-6))
def test_rate_and_latency_of_collectives_come_back(sizes: list[int], rate: float, latency: float) -> None:
    program, calls = Program(), []
    for number, size in enumerate([1, 2, 40, *sizes]):
        moved = size * size * 4096
        program.add(f"p.{number}", "parameter", moved // 4)
        program.add(f"all-gather.{number}", "all-gather", moved, f"p.{number}")
        calls.append((f"all-gather.{number}", moved / rate + latency))
    found = fitted(program, calls)
    assert found["all_gather"] is not None and found["all_gather"].value == pytest.approx(rate, rel=1e-3)
    told = found.get("collective_latency")
    if latency > 0.2 * 40 * 40 * 4096 / rate:  # else it is lost in the time of the bytes
        assert told is not None and told.value == pytest.approx(latency, rel=1e-2)


@settings(max_examples=15, deadline=None)
@given(share=st.floats(0.5, 1.0), peak_share=st.floats(0.2, 1.0))
def test_shares_of_bandwidth_and_peak_come_back(share: float, peak_share: float) -> None:
    program, calls = Program(), []
    for number in range(1, 6):
        program.fusion(f"add.{number}", number * MIB)
        calls.append((f"add.{number}", 2 * number * MIB / (share * CHIP.hbm_bytes_per_s)))
        n = 12288 + 1024 * number  # bound by FLOPs whatever the shares
        program.add(f"a.{number}", "parameter", dims=(n, n))
        program.add(f"dot.{number}", "dot", 0, f"a.{number}", f"a.{number}", dims=(n, n), contract=1)
        calls.append((f"dot.{number}", 2 * n**3 / (peak_share * CHIP.peak_tflops * 1e12)))
    found = fitted(program, calls)
    values = {name: each.value for name, each in found.items() if each}
    assert values == {
        "xla_hbm_share": pytest.approx(share, rel=1e-3),
        "xla_peak_share": pytest.approx(peak_share, rel=1e-3),
    }


def test_wild_values_and_short_ops_do_not_move_a_constant() -> None:
    program, calls = Program(), []
    for number in range(1, 41):
        program.fusion(f"add.{number}", number * MIB)
        factor = 20 if number in (5, 9) else 3 if number < 5 else 1
        calls.append((f"add.{number}", factor * 2 * number * MIB / (0.75 * CHIP.hbm_bytes_per_s)))
    found = fitted(program, calls)["xla_hbm_share"]
    assert found is not None and found.value == pytest.approx(0.75, rel=1e-3)


def test_a_range_spans_the_middle_of_the_time_of_ops_of_several_sizes() -> None:
    program, calls = Program(), []
    shares = [0.70 + 0.01 * number for number in range(20)]
    for number, share in enumerate(shares):
        program.fusion(f"add.{number}", (100 + number) * MIB)
        calls.append((f"add.{number}", 2 * (100 + number) * MIB / (share * CHIP.hbm_bytes_per_s)))
    found = fitted(program, calls)["xla_hbm_share"]
    assert found is not None
    assert found.value == pytest.approx(0.795, abs=0.011)
    assert (found.slow, found.fast) == pytest.approx((0.72, 0.87), abs=0.011)


def test_ops_of_one_size_keep_the_width_of_the_default_range() -> None:
    program = Program()
    program.fusion("add.1", 64 * MIB)
    found = fitted(program, [("add.1", 2 * 64 * MIB / (0.5 * CHIP.hbm_bytes_per_s))])["xla_hbm_share"]
    default = DEFAULTS.table["xla_hbm_share"]
    assert found is not None and found.value == pytest.approx(0.5, rel=1e-3)
    assert found.fast / found.value == pytest.approx(default.fast / default.value)


def test_ops_that_disagree_leave_the_default() -> None:
    program, calls = Program(), []
    for number in range(1, 13):
        program.fusion(f"add.{number}", (64 + number) * MIB)
        calls.append((f"add.{number}", 1e-4 * (1 if number % 2 else 9)))
    assert fitted(program, calls) == {"xla_hbm_share": None}


def test_gathers_and_arrays_in_vmem_say_nothing_of_hbm() -> None:
    program = Program()
    program.fusion("gather.1", 64 * MIB, "gather")
    program.fusion("add.1", 64 * MIB, space=VMEM)
    assert fitted(program, [("gather.1", 1.0), ("add.1", 1.0)]) == {}


def test_the_compilers_cycles_are_held_against_the_clock() -> None:
    program, calls = Program(), []
    for number in range(1, 9):
        program.fusion(f"add.{number}", 16 * number * MIB, cycles=50_000 * number)
        calls.append((f"add.{number}", 50_000 * number / 2000e6))
    found = fitted(program, calls)["compiler_cycles"]
    assert found is not None and found.value == pytest.approx(2000, rel=1e-3)
    assert found.source == "measured on x, 8 ops, 80 calls"


def test_sorts_tell_their_cycles() -> None:
    program, calls = Program(), []
    timer = Timer(CHIP, constants_of(CHIP, {"sort_cycles": replace(DEFAULTS.table["sort_cycles"], value=11.0)}))
    for number in range(1, 6):
        program.add(f"p.{number}", "parameter", number * MIB)
        program.add(f"sort.{number}", "sort", number * MIB, f"p.{number}")
    module = hlo.parse(program.module.SerializeToString())
    for number in range(1, 6):
        name = f"sort.{number}"
        calls.append((name, timer.estimate(module.instructions[name]).duration_ps / 1e12))
    found = fitted(program, calls)["sort_cycles"]
    assert found is not None and found.value == pytest.approx(11, rel=1e-3)


# --- kernels: the fit alone, with a model whose equations are known --------------------------------------------------


@dataclass(frozen=True)
class Kernels(Timer):
    """Estimates of ops named "work_steps": work ÷ share of the matrix unit + steps × overhead."""

    def estimate(self, instruction: hlo.Instruction) -> Estimate:
        work, steps = map(float, instruction.name.split("_"))
        seconds = work * 1e-6 / self.constants["gmm_mxu_share"] + steps * self.constants["step_overhead"]
        return Estimate(round(seconds * 1e12), "kernel model")


def kernel_samples(ops: Iterable[tuple[int, int]], share: float, overhead: float) -> list[Sample]:
    program = Program()
    for work, steps in ops:
        program.add(f"{work}_{steps}", "custom-call", 4)
    module = hlo.parse(program.module.SerializeToString())
    truth = {"gmm_mxu_share": share, "step_overhead": overhead}
    table = {name: replace(DEFAULTS.table[name], value=value) for name, value in truth.items()}
    timer = Kernels(CHIP, constants_of(CHIP, table))
    return [Sample(each, timer.estimate(each).duration_ps / 1e12, 5) for each in module.instructions.values()]


def test_tilings_of_several_kinds_tell_the_share_from_the_overhead() -> None:
    samples = kernel_samples([(100, 100), (100, 300), (200, 100), (300, 900), (50, 200)], 0.7, 0.5e-6)
    found = calibrated(samples, Kernels(CHIP, DEFAULTS), "x")
    values = {name: each.measured.value for name, each in found.items() if each.measured}
    assert values == {"gmm_mxu_share": pytest.approx(0.7, rel=1e-3), "step_overhead": pytest.approx(0.5e-6, rel=1e-3)}


def test_tiles_of_one_kind_cannot_tell_them_apart_and_say_so() -> None:
    samples = kernel_samples([(100, 100), (200, 200), (300, 300)], 0.7, 0.175e-6)
    found = calibrated(samples, Kernels(CHIP, DEFAULTS), "x")
    assert {name: (each.measured, each.reason) for name, each in found.items()} == {
        "gmm_mxu_share": (None, "its ops hang on other constants as much"),
        "step_overhead": (None, "its ops hang on other constants as much"),
    }


# --- recordings ------------------------------------------------------------------------------------------------------


def test_a_transfer_is_timed_from_its_start_to_its_done_op_once_those_before_it_have_ended(calibrate_space) -> None:
    program, core = Program(), Core()
    for name, size in (("a", 64), ("b", 128), ("c", 256)):
        program.transfer(name, "copy", size * MIB, from_host=True)
    for _ in range(4):  # all three at once, one after another over the link
        begin = core.now
        for name in "abc":
            core.start(name)
        for name, end in (("a", 64), ("b", 192), ("c", 448)):
            core.done(name, begin + end * MIB / 20e9)
    found = calibrate_space(program, core).constants["host_link"]
    assert found.value == pytest.approx(20e9, rel=1e-3)
    assert found.source == "measured on host-0.xplane.pb, 3 ops, 12 calls"


def test_a_transfer_that_nobody_waits_for_has_no_known_end(calibrate_space) -> None:
    program, core = Program(), Core()
    program.transfer("a", "copy", 64 * MIB, to_host=True)
    program.fusion("add.1", 64 * MIB)
    for _ in range(5):
        core.start("a")
        core.run("add.1", 0.1)
        core.done("a", core.now)
    assert calibrate_space(program, core).constants.keys() == {"xla_hbm_share"}


def test_both_ways_to_the_host_are_queues_of_their_own(calibrate_space) -> None:
    program, core = Program(), Core()
    program.transfer("in", "copy", 64 * MIB, from_host=True)
    program.transfer("out", "copy", 192 * MIB, to_host=True)
    for _ in range(5):
        begin = core.now
        core.start("in")
        core.start("out")
        core.done("in", begin + 64 * MIB / 20e9)
        core.done("out", begin + 192 * MIB / 20e9)
    found = calibrate_space(program, core).findings["host_link"]
    assert found.measured is not None and found.measured.value == pytest.approx(20e9, rel=1e-3)
    assert found.calls == 10


def test_a_collective_takes_as_long_as_on_the_device_that_came_last(calibrate_space) -> None:
    program = Program()
    program.add("p", "parameter", 64 * MIB)
    program.add("all-reduce.1", "all-reduce", 64 * MIB, "p")
    cores = [Core(), Core()]
    for number in range(6):
        for place, core in enumerate(cores):
            late = number % 2 == place
            core.run("all-reduce.1", 64 * MIB / 50e9 + (0 if late else 0.5))
    found = calibrate_space(program, *cores).constants["all_reduce"]
    assert found.value == pytest.approx(2 * 50e9, rel=0.01)  # each byte goes around twice


def test_times_are_in_the_devices_own_clock(calibrate_space) -> None:
    program, core = Program(), Core()
    program.transfer("a", "all-gather", 64 * MIB)
    for _ in range(20):
        core.start("a")
        core.done("a", core.now + 64 * MIB / 50e9)
    found = calibrate_space(program, core, skew=lambda place: place % 7 * 100_000 * US)
    assert found.constants["all_gather"].value == pytest.approx(50e9, rel=0.01)


def test_constants_that_are_measured_reach_the_profile_and_beat_the_plans_clock(tmp_path: Path) -> None:
    program = Program()
    program.fusion("add.1", 256 * MIB, cycles=1_000_000)
    found = Constant(1000.0, 1100.0, 900.0, "cycles/µs", "measured on x, 1 op, 3 calls")
    path = write_profile(
        program.module.SerializeToString(),
        Schedule(cycles_per_us=1900.0, computations={}),
        chip=KIND,
        topology="v6e:2x2x1",
        run_info={},
        static_peak_bytes=None,
        host_bytes=None,
        path=tmp_path / "x.xplane.pb",
        constants={"compiler_cycles": found},
    )
    run_info = load(str(path)).run_info
    assert run_info is not None
    estimates = run_info["estimates"]
    assert estimates["constants"]["compiler_cycles"]["source"] == found.source
    assert estimates["step_s"] == pytest.approx(1e-3)


# --- files and refusals ----------------------------------------------------------------------------------------------


@pytest.fixture
def small(saved: Callable[..., str]) -> str:
    program, core = Program(), Core()
    program.fusion("add.1", 64 * MIB)
    for _ in range(5):
        core.run("add.1", 1e-4)
    return saved(space_of(program, core))


def test_saved_constants_are_read_again(small: str, tmp_path: Path) -> None:
    found = calibrate(small)
    save(found, tmp_path / "constants.json")
    assert calibrate(tmp_path / "constants.json", CHIP) == found


@pytest.mark.parametrize(
    "text",
    [
        "",
        "[]",
        "{}",
        '{"chip": "tpu-v6e", "source": "x", "findings": {"pi": {}}}',
        '{"chip": "tpu-v0", "findings": {}}',
    ],
)
def test_other_json_is_refused(text: str, tmp_path: Path) -> None:
    path = tmp_path / "constants.json"
    path.write_text(text)
    with pytest.raises(UnreadableError, match="is not what"):
        calibrate(path)


def test_a_recording_of_another_chip_is_refused(small: str) -> None:
    other = next(chip for chip in CHIPS if chip.key == "tpu-v7x")
    with pytest.raises(NotComparableError, match="is of TPU v6e, and the estimates are for TPU v7x"):
        calibrate(small, other)


def test_a_compiled_profile_is_refused(saved: Callable[..., str]) -> None:
    space = space_of(None, Core([("add.1", 0.0, 1e-4)]))
    space.plane("/host:run_info", stats={"run_info": json.dumps({"kind": "compiled"})})
    with pytest.raises(NotComparableError, match="its times are estimates"):
        calibrate(saved(space))


def test_a_recording_without_hlo_is_refused(saved: Callable[..., str]) -> None:
    with pytest.raises(UnreadableError, match="holds no HLO"):
        calibrate(saved(space_of(None, Core([("add.1", 0.0, 1e-4)]))))


def test_a_recording_of_an_unknown_chip_is_refused(saved: Callable[..., str]) -> None:
    program = Program()
    program.fusion("add.1", MIB)
    with pytest.raises(UnreadableError, match="does not name its chip"):
        calibrate(saved(space_of(program, Core([("add.1", 0.0, 1e-4)]), kind=None)))


def test_a_recording_whose_hlo_is_of_other_programs_is_refused(saved: Callable[..., str]) -> None:
    program = Program()
    program.fusion("add.1", MIB)
    with pytest.raises(UnreadableError, match="no device op that its HLO describes"):
        calibrate(saved(space_of(program, Core([("add.2", 0.0, 1e-4)]))))


def test_a_cpu_recording_is_refused_with_one_line(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "cpu.xplane.pb"
    path.write_bytes(gzip.decompress(sample_profiles.path("cpu-remat/baseline.xplane.pb.gz").read_bytes()))
    assert main(["calibrate", str(path)]) == 4
    out, err = capsys.readouterr()
    assert out == "" and err == f"distill: error: {path}: was recorded on CPU, not on a TPU\n"


def test_the_command_prints_a_table_and_saves_it(
    small: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["calibrate", small, "-o", str(tmp_path / "constants.json")]) == 0
    out, err = capsys.readouterr()
    assert err == ""
    assert "xla_hbm_share  0.8 of HBM bandwidth" in out
    assert "no op in the recording tells: " in out
    assert calibrate(tmp_path / "constants.json").constants.keys() == {"xla_hbm_share"}


def test_compile_refuses_a_calibration_for_another_chip_before_it_compiles(
    small: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    compiling = ["compile", "qwen3-30b-opt", "--topology", "tpu7x-4x4x4", "--calibrate", small]
    assert main(compiling) == 2
    assert main([*compiling, "-o", str(tmp_path / "out")]) == 4
    assert not (tmp_path / "out").exists()
    assert "the estimates are for TPU v7x" in capsys.readouterr().err


def test_a_real_recording_of_tpu_v6e_tells_four_constants(recordings: Path) -> None:
    found = calibrate(recordings / "tpu_v6e_inference.xplane.pb", CHIP)
    values = {name: each.value for name, each in found.constants.items()}
    assert values == {
        "compiler_cycles": pytest.approx(1778, rel=0.01),
        "xla_hbm_share": pytest.approx(0.82, rel=0.01),
        "all_reduce": pytest.approx(44.1e9, rel=0.01),
        "host_link": pytest.approx(27.7e9, rel=0.01),
    }
    assert {name: each.calls for name, each in found.findings.items()} == {
        "compiler_cycles": 1201,
        "xla_hbm_share": 1201,
        "all_reduce": 3,
        "host_link": 1600,
    }


@pytest.mark.parametrize(
    ("file", "error", "words"),
    [
        ("mi300x_conv_new", NotComparableError, "MI300X, not on a TPU"),
        ("tpu_qwen3_serving_bf16", UnreadableError, "holds no HLO"),
        ("corrupt_utf8", UnreadableError, "rewritten as UTF-8"),
    ],
)
def test_other_real_recordings_are_refused(recordings: Path, file: str, error: type[Exception], words: str) -> None:
    with pytest.raises(error, match=words):
        calibrate(recordings / f"{file}.xplane.pb")
