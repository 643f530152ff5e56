"""Compiled profiles of programs built by hand: what is drawn, how long, and that everything opens them."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

import profiler
from distill.aot.dump import ComputationSchedule, Schedule, Scheduled
from distill.aot.model_constants import constants_of
from distill.aot.profile import write_profile
from distill.aot.profile_layout import Step, lay_out, step_ps
from distill.aot.profile_program import portable, stripped
from distill.aot.timing import Estimate, Timer
from distill.aot.timing_schedule import cycles_of
from profiler import hardware, hlo
from profiler.errors import UsageError
from profiler.hardware import CHIPS
from profiler.hlo.schema import hlo as messages
from profiler.xplane.schema import INT64, build_messages, xspace

CHIP = next(chip for chip in CHIPS if chip.key == "tpu-v7x")
BF16, F32, S32, PRED, TUPLE = 16, 11, 4, 1, 13
US = 1_000_000  # ps
MIB = 1 << 20

Row = tuple[str, str, tuple[str, ...], Mapping[str, Any]]


class Program:
    """Builds one HloModuleProto; instructions are named, operands and callees given by name."""

    def __init__(self) -> None:
        self.module = messages().HloModuleProto(name=b"jit_step", id=1)
        self.ids: dict[str, int] = {}
        self.orders: dict[int, list[int]] = {}

    def computation(self, name: str, *rows: Row, thread: str = "", fusion: bool = False) -> None:
        """Rows are (name, opcode, operands, fields); the last is the root, the last computation the entry."""
        computation = self.module.computations.add(name=name.encode(), id=self.id(name))
        computation.execution_thread, computation.is_fusion_computation = thread.encode(), fusion
        for row, opcode, operands, fields in rows:
            found = computation.instructions.add(name=row.encode(), opcode=opcode.encode(), id=self.id(row))
            found.operand_ids.extend(self.id(operand) for operand in operands)
            found.shape.element_type = F32
            for key, value in fields.items():
                if key == "calls":
                    found.called_computation_ids.extend(self.id(each) for each in value)
                elif key == "op_name":
                    found.metadata.op_name = value.encode()
                elif key == "dims":
                    found.shape.dimensions.extend(value)
                elif key == "space":
                    found.shape.layout.memory_space = value
                elif key == "type":
                    found.shape.element_type = value
                elif key == "cycles":
                    config = {"window_config": {"estimated_cycles": str(value)}}
                    found.backend_config = json.dumps(config).encode()
                elif key == "constant":
                    found.shape.element_type = S32
                    found.literal = messages().LiteralProto(s32s=[value]).SerializeToString()
                else:
                    setattr(found, key, value)
            computation.root_id = found.id
        self.module.entry_computation_name, self.module.entry_computation_id = name.encode(), computation.id

    def order(self, computation: str, *names: str) -> None:
        """The compiler's order of a computation, beside the one in which its instructions are listed."""
        self.orders[self.id(computation)] = [self.id(name) for name in names]

    def id(self, name: str) -> int:
        return self.ids.setdefault(name, len(self.ids) + 1)

    def bytes(self) -> bytes:
        types = build_messages(
            "test.schedule",
            {
                "Module": {"schedule": (7, "Schedule")},
                "Schedule": {"sequences": (1, ["Entry"])},
                "Entry": {"key": (1, INT64), "value": (2, "Sequence")},
                "Sequence": {"instruction_ids": (1, [INT64])},
            },
        )
        extra = types.Module()
        for key, ids in self.orders.items():
            extra.schedule.sequences.add(key=key).value.instruction_ids.extend(ids)
        data: bytes = self.module.SerializeToString() + extra.SerializeToString()
        return data


def fusion(name: str, microseconds: float, *operands: str, **fields: Any) -> Row:
    """An op of known length: the compiler counts 1900 cycles a microsecond."""
    return name, "fusion", operands, {"dims": [8, 128], "cycles": round(1900 * microseconds), **fields}


def loop(program: Program, body: tuple[Row, ...], *, start: int, limit: int) -> Row:
    """A counted while loop over ``body``; its condition is the only place that says how often."""
    add: list[Row] = [
        ("body.p", "parameter", (), {"type": TUPLE}),
        ("body.i", "get-tuple-element", ("body.p",), {"tuple_index": 0, "type": S32}),
        ("body.one", "constant", (), {"constant": 1}),
        ("body.next", "add", ("body.i", "body.one"), {"type": S32}),
        *body,
        ("body.out", "tuple", ("body.next",), {"type": TUPLE}),
    ]
    program.computation("body", *add)
    program.computation(
        "condition",
        ("cond.p", "parameter", (), {"type": TUPLE}),
        ("cond.i", "get-tuple-element", ("cond.p",), {"tuple_index": 0, "type": S32}),
        ("cond.limit", "constant", (), {"constant": limit}),
        ("cond.less", "compare", ("cond.i", "cond.limit"), {"type": PRED, "comparison_direction": b"LT"}),
    )
    program.ids.setdefault("start", len(program.ids) + 1)
    return ("while.1", "while", ("init",), {"calls": ["body", "condition"], "type": TUPLE, "start": start})


def looped(
    *body: Row, start: int = 0, limit: int = 3, before: tuple[Row, ...] = (), after: tuple[Row, ...] = ()
) -> bytes:
    """A program whose entry runs ``before``, the loop and ``after``."""
    program = Program()
    name, opcode, operands, fields = loop(program, body, start=start, limit=limit)
    fields = {key: value for key, value in fields.items() if key != "start"}
    program.computation(
        "main",
        *before,
        ("start", "constant", (), {"constant": start}),
        ("init", "tuple", ("start",), {"type": TUPLE}),
        (name, opcode, operands, fields),
        *after,
    )
    return program.bytes()


GATHER = (
    ("shard", "parameter", (), {"dims": [MIB // 8], "type": BF16}),
    ("all-gather.1.call-start", "async-start", ("shard",), {"calls": ["wrapped"], "type": TUPLE}),
)


def gathering(*between: Row, twice: bool = False) -> bytes:
    """A program that gathers 1 MiB on a SparseCore while the core runs ``between``; ``twice``: as libtpu 0.0.52."""
    program = Program()
    taken, made = {"dims": [MIB // 8], "type": BF16}, {"dims": [MIB // 2], "type": BF16}
    inner = ("w.p", "parameter", (), taken), ("w.gather", "all-gather", ("w.p",), made)
    if twice:
        program.computation("inner", *inner, thread="sparsecore")
        inner = ("c.p", "parameter", (), taken), ("c.call", "custom-call", ("c.p",), {**made, "calls": ["inner"]})
    program.computation("wrapped", *inner, thread="sparsecore")
    done = (
        "all-gather.1.call-done",
        "async-done",
        ("all-gather.1.call-start",),
        {"dims": [MIB // 2], "type": BF16},
    )
    program.computation("main", *GATHER, *between, done)
    return program.bytes()


def timer(schedule: Schedule | None = None) -> Timer:
    return Timer(CHIP, constants_of(CHIP), cycles_of(schedule))


def laid_out(data: bytes) -> Step:
    return lay_out(hlo.parse(data), timer())


def spans(step: Step) -> list[tuple[str, int, int]]:
    """(name, start, end) of the core's events."""
    return [
        (step.instructions[op].name, start, start + duration)
        for op, start, duration in zip(step.core.op, step.core.start_ps, step.core.duration_ps, strict=True)
    ]


def write(data: bytes, path: Path, **changes: Any) -> Path:
    settings: dict[str, Any] = {
        "chip": "TPU7x", "topology": "tpu7x:2x2x1", "run_info": {"layers": 3}, "static_peak_bytes": 5 * MIB,
        "host_bytes": MIB, "path": path,
    }  # fmt: skip
    return write_profile(data, None, **(settings | changes))


# --- layout -----------------------------------------------------------------------------------------------------------


def test_ops_follow_each_other_in_the_compiler_s_order_not_in_that_of_the_proto() -> None:
    program = Program()
    program.computation("main", fusion("a", 1), fusion("b", 2), fusion("c", 3))
    program.order("main", "b", "a", "c")
    assert spans(laid_out(program.bytes())) == [("b", 0, 2 * US), ("a", 2 * US, 3 * US), ("c", 3 * US, 6 * US)]


@pytest.mark.parametrize(("start", "limit", "trips"), [(0, 3, 3), (1, 49, 48), (5, 5, 0)])
def test_a_loop_contains_its_body_as_often_as_its_condition_says(start: int, limit: int, trips: int) -> None:
    step = laid_out(looped(fusion("work", 2), start=start, limit=limit))
    assert Counter(name for name, *_ in spans(step)) == Counter({"while.1": 1, "work": trips})
    assert spans(step)[0] == ("while.1", 0, trips * 2 * US)
    assert all(0 <= begin <= end <= trips * 2 * US for _, begin, end in spans(step))


def test_the_sum_of_all_ops_is_the_step() -> None:
    step = laid_out(looped(fusion("work", 2), before=(fusion("first", 1),), after=(fusion("last", 4),)))
    assert step.duration_ps == sum(e - b for name, b, e in spans(step) if name != "while.1") == 11 * US


def test_a_loop_that_depends_on_data_is_drawn_once_and_said_so() -> None:
    program = Program()
    program.computation("body", ("p", "parameter", (), {}), fusion("work", 1))
    program.computation("condition", ("q", "parameter", (), {}), ("flag", "custom-call", ("q",), {"type": PRED}))
    program.computation(
        "main", ("x", "parameter", (), {}), ("while.1", "while", ("x",), {"calls": ["body", "condition"]})
    )
    step = laid_out(program.bytes())
    assert [name for name, *_ in spans(step)] == ["while.1", "work"]
    assert "while.1" in step.notes[0]


def test_names_for_values_and_arithmetic_on_single_numbers_are_no_events() -> None:
    rows = [("x", "parameter", (), {"dims": [8]}), ("n", "constant", (), {"constant": 1})]
    rows += [("y", "bitcast", ("x",), {"dims": [8]}), ("m", "add", ("n", "n"), {"type": S32})]
    program = Program()
    program.computation(
        "main", *rows, ("z", "custom-call", ("x",), {"custom_call_target": b"AllocateBuffer"}), fusion("f", 1)
    )
    assert [name for name, *_ in spans(laid_out(program.bytes()))] == ["f"]


def test_a_done_op_waits_for_what_is_left_of_its_transfer() -> None:
    constants = constants_of(CHIP)
    flight = round(1e12 * (MIB / constants["all_gather"] + constants["collective_latency"]))
    step = laid_out(gathering(fusion("work", 4)))
    assert (step.in_flight.start_ps[0], step.in_flight.duration_ps[0]) == (0, flight)
    assert spans(step) == [
        ("all-gather.1.call-start", 0, 0),
        ("work", 0, 4 * US),
        ("all-gather.1.call-done", 4 * US, flight),
    ]


def test_a_transfer_behind_enough_work_costs_nothing() -> None:
    step = laid_out(gathering(fusion("work", 19)))
    assert spans(step)[-1] == ("all-gather.1.call-done", 19 * US, 19 * US)
    assert step.duration_ps == 19 * US


def test_transfers_of_one_queue_follow_each_other() -> None:
    program = Program()
    rows = [("x", "parameter", (), {"dims": [MIB]})]
    rows += [(f"copy-start.{n}", "copy-start", ("x",), {"type": TUPLE}) for n in (1, 2)]
    rows += [(f"copy-done.{n}", "copy-done", (f"copy-start.{n}",), {"dims": [MIB], "space": 1}) for n in (1, 2)]
    program.computation("main", *rows)
    step = laid_out(program.bytes())
    first, second = step.in_flight.duration_ps
    assert first == second > 0
    assert list(step.in_flight.start_ps) == [0, first]
    assert step.duration_ps == 2 * first


# --- durations --------------------------------------------------------------------------------------------------------


def estimate(*rows: Row, name: str, schedule: Schedule | None = None) -> Estimate:
    program = Program()
    program.computation("main", *rows)
    return timer(schedule).estimate(hlo.parse(program.bytes()).instructions[name])


def test_cycles_of_the_final_program_come_first() -> None:
    found = estimate(fusion("f", 3), name="f", schedule=scheduled("f", "fusion", 19000))
    assert found == Estimate(3 * US, "compiler cycles")


@pytest.mark.parametrize("sentinel", [0, 2**63 - 1])
def test_sentinels_are_no_cycles(sentinel: int) -> None:
    row = ("f", "fusion", (), {"dims": [8, 128], "cycles": sentinel})
    assert estimate(row, name="f", schedule=scheduled("f", "fusion", 19000)) == Estimate(10 * US, "schedule")
    assert estimate(row, name="f").source == "roofline"


def test_an_op_that_a_later_pass_renamed_is_found_in_the_schedule_by_its_name_stack() -> None:
    row = ("renamed.7", "fusion", (), {"dims": [8, 128], "op_name": "jit(step)/mul"})
    schedule = scheduled("fusion.1", "fusion", 1900, op_name="jit(step)/mul")
    assert estimate(row, name="renamed.7", schedule=schedule) == Estimate(US, "schedule")


def test_a_dot_of_a_quarter_second_in_the_schedule_is_an_outlier() -> None:
    rows = [("x", "parameter", (), {"dims": [1024, 1024]}), ("d", "dot", ("x", "x"), {"dims": [1024, 1024]})]
    found = estimate(*rows, name="d", schedule=scheduled("d", "dot", 0.25e6 * 1900))
    assert found.source == "roofline"
    assert found.duration_ps < 10 * US


def test_cycles_far_above_the_roofline_of_a_plain_reduce_are_not_taken() -> None:
    rows = [("x", "parameter", (), {"dims": [MIB]}), ("r", "reduce", ("x",), {"dims": [8], "cycles": 1900 * 5000})]
    assert estimate(*rows, name="r").source == "roofline, cycles implausible"


def test_a_gather_may_take_far_longer_than_its_bytes() -> None:
    rows = [("x", "parameter", (), {"dims": [MIB]}), ("g", "gather", ("x",), {"dims": [8], "cycles": 1900 * 5000})]
    assert estimate(*rows, name="g") == Estimate(5000 * US, "compiler cycles")


def test_a_kernel_that_the_model_does_not_know_takes_its_cost_estimate() -> None:
    config = (
        b'{"custom_call_config":{"cost_estimate":{"flops":"0","transcendentals":"0","bytes_accessed":"2952000000"}}}'
    )
    row = (
        "my_kernel.1",
        "custom-call",
        (),
        {"custom_call_target": b"tpu_custom_call", "backend_config": config, "dims": [8]},
    )
    assert estimate(row, name="my_kernel.1") == Estimate(1000 * US, "cost estimate")  # at 0.8 × 3690 GB/s


def test_a_slice_of_all_layers_weights_counts_as_a_slice() -> None:
    program = Program()
    program.computation(
        "fused",
        ("p", "parameter", (), {"dims": [48, 1024, 1024]}),
        ("i", "parameter", (), {"type": S32, "parameter_number": 1}),
        ("s", "dynamic-slice", ("p", "i"), {"dims": [1, 1024, 1024]}),
        fusion=True,
    )
    rows = [("w", "parameter", (), {"dims": [48, 1024, 1024]}), ("n", "constant", (), {"constant": 1})]
    program.computation("main", *rows, ("f", "fusion", ("w", "n"), {"calls": ["fused"], "dims": [1, 1024, 1024]}))
    found = timer().estimate(hlo.parse(program.bytes()).instructions["f"])
    moved = 2 * 4 * MIB + 4  # a slice read and written, and the index
    assert found.duration_ps == pytest.approx(moved / (0.8 * 3690e9) * 1e12, rel=1e-3)


def test_a_copy_to_the_host_goes_over_its_link() -> None:
    rows = [("x", "parameter", (), {"dims": [8 * MIB]}), ("out", "copy", ("x",), {"dims": [8 * MIB], "space": 5})]
    assert estimate(*rows, name="out") == Estimate(round(32 * MIB / 32e9 * 1e12), "host link bytes")


def scheduled(name: str, opcode: str, cycles: float, op_name: str = "") -> Schedule:
    """A schedule of one instruction."""
    instruction = Scheduled(name, opcode, op_name, 100.0, 100.0 + cycles, 0)
    return Schedule({"main": ComputationSchedule("main", (instruction,), cycles, 0.0, 0)}, 1900.0)


@pytest.mark.parametrize(("partner", "source"), [("slice", "link bytes"), ("dot", "compiler cycles")])
def test_a_fusion_for_a_collective_is_one_and_a_matmul_beside_one_is_a_matmul(partner: str, source: str) -> None:
    program = Program()
    inside = [("f.p", "parameter", (), {"dims": [MIB]}), ("f.sum", "all-reduce", ("f.p",), {"dims": [MIB]})]
    program.computation("fused", *inside, ("f.out", partner, ("f.sum",), {"dims": [MIB // 8]}), fusion=True)
    program.computation("main", ("x", "parameter", (), {"dims": [MIB]}), fusion("f", 5, "x", calls=["fused"]))
    assert timer().estimate(hlo.parse(program.bytes()).instructions["f"]).source == source


def test_of_a_stack_of_layers_on_the_host_one_layer_is_carried() -> None:
    program = Program()
    program.computation(
        "stored",
        ("s.all", "parameter", (), {"dims": [48, MIB], "space": 5}),
        ("s.one", "parameter", (), {"dims": [1, MIB], "parameter_number": 1}),
        ("s.out", "dynamic-update-slice", ("s.all", "s.one"), {"dims": [48, MIB], "space": 5}),
    )
    rows = [("all", "parameter", (), {"dims": [48, MIB], "space": 5}), ("one", "parameter", (), {"dims": [1, MIB]})]
    start = ("store-start", "async-start", ("all", "one"), {"calls": ["stored"], "type": TUPLE})
    program.computation("main", *rows, start)
    found = timer().estimate(hlo.parse(program.bytes()).instructions["store-start"])
    assert found == Estimate(round(4 * MIB / 32e9 * 1e12), "host link bytes")


# --- the file ---------------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def example(tmp_path_factory: pytest.TempPathFactory) -> Path:
    op_name = "jit(step)/jvp(student)/layers/while/body/mul"
    data = looped(fusion("work", 2, op_name=op_name), before=(fusion("first", 1),), after=(fusion("last", 4),))
    return write(data, tmp_path_factory.mktemp("profile") / "run.xplane.pb")


def space(path: Path) -> Any:
    return xspace().XSpace.FromString(path.read_bytes())


def test_a_profile_has_the_planes_and_lines_of_a_tpu_recording(example: Path) -> None:
    planes = {plane.name.decode(): plane for plane in space(example).planes}
    assert list(planes) == ["/device:TPU:0", "/host:metadata", "/host:run_info"]
    lines = {line.name.decode(): len(line.events) for line in planes["/device:TPU:0"].lines}
    assert lines == {"Steps": 1, "XLA Modules": 1, "XLA Ops": 6, "Async XLA Ops": 0}


def test_every_op_says_where_its_time_is_from(example: Path) -> None:
    plane = space(example).planes[0]
    names = {entry.key: entry.value.name.decode() for entry in plane.stat_metadata}
    found = {}
    for entry in plane.event_metadata:
        for stat in entry.value.stats:
            if names[stat.metadata_id] == "estimate_source":
                found[entry.value.display_name.decode()] = names[stat.ref_value]
    assert found == {"while.1": "contents", **dict.fromkeys(("first", "work", "last"), "compiler cycles")}


def test_profiler_reads_it_and_says_compiled(example: Path) -> None:
    trace = profiler.load(str(example))
    assert trace.kind == "compiled"
    assert trace.devices[0].type == "TPU7x"
    assert trace.devices[0].peak_tflops == 1153.5
    table = {row["op"]: row for row in trace.op_table.iter_rows(named=True)}
    assert {name: row["occurrences"] for name, row in table.items()} == {"first": 1, "while.1": 1, "work": 3, "last": 1}
    assert table["work"]["self_time_ps"] == 6 * US
    assert table["while.1"]["self_time_ps"] == 0
    assert table["work"]["phase"] == "student forward"
    assert (trace.windows[0].spans[:, 1] - trace.windows[0].spans[:, 0]).tolist() == [11 * US]


def test_the_run_info_gives_band_sources_and_constants(example: Path) -> None:
    info = profiler.load(str(example)).run_info
    assert info is not None
    assert (info["kind"], info["topology"], info["layers"]) == ("compiled", "tpu7x:2x2x1", 3)
    estimates = info["estimates"]
    fast, slow = estimates["step_s_band"]
    assert fast <= estimates["step_s"] <= slow
    assert estimates["step_s"] == pytest.approx(11e-6)
    assert estimates["sources"]["compiler cycles"]["core_s"] == pytest.approx(11e-6)
    assert estimates["sources"]["compiler cycles"]["events"] == 5
    assert all(constant["source"] for constant in estimates["constants"].values())


def test_the_static_peak_is_in_the_program(example: Path) -> None:
    (module,) = profiler.load(str(example)).programs.values()
    assert module.static_peak_bytes == 5 * MIB


def test_equal_programs_give_equal_bytes(tmp_path: Path) -> None:
    first = write(gathering(fusion("work", 1)), tmp_path / "a.xplane.pb").read_bytes()
    assert first == write(gathering(fusion("work", 1)), tmp_path / "b.xplane.pb").read_bytes()


@pytest.mark.parametrize(
    ("config", "count"),
    [
        (b"", 1),
        (b'{"color_strategies":[{"phase_rings":[{},{}]},{"phase_rings":[{},{}]}]}', 2),
        (b'{"debug":"StrategyND{colors:3 phases:3}"}', 3),
        (b'{"debug":"StrategyND{colors:12 phases:3}"}', 6),  # a chip of a 3D torus has six links
    ],
)
def test_the_rings_of_the_compilers_strategy_share_the_bytes(config: bytes, count: int) -> None:
    constants, size = constants_of(CHIP), {"dims": [MIB], "type": BF16}
    for opcode, moved in (("all-gather", 2 * MIB), ("all-reduce", 2 * 2 * MIB)):
        rows = [("x", "parameter", (), size), ("c", opcode, ("x",), {**size, "backend_config": config})]
        seconds = moved / (count * constants[opcode.replace("-", "_")]) + constants["collective_latency"]
        assert estimate(*rows, name="c").duration_ps == pytest.approx(seconds * 1e12, rel=1e-6)


def test_the_link_to_the_host_works_both_ways_at_once() -> None:
    program = Program()
    here, there = {"dims": [8 * MIB]}, {"dims": [8 * MIB], "space": 5}
    program.computation("store", ("s.p", "parameter", (), here), ("s.out", "copy", ("s.p",), there), thread="")
    program.computation("load", ("l.p", "parameter", (), there), ("l.out", "copy", ("l.p",), here), thread="")
    program.computation(
        "main",
        ("x", "parameter", (), here),
        ("y", "parameter", (), {**there, "parameter_number": 1}),
        ("store-start", "async-start", ("x",), {"calls": ["store"], "type": TUPLE}),
        ("load-start", "async-start", ("y",), {"calls": ["load"], "type": TUPLE}),
        ("store-done", "async-done", ("store-start",), there),
        ("load-done", "async-done", ("load-start",), here),
    )
    step = laid_out(program.bytes())
    assert step.in_flight.start_ps.tolist() == [0, 0]
    assert step.duration_ps == round(32 * MIB / 32e9 * 1e12)


def test_a_collective_that_is_wrapped_twice_is_the_same_collective() -> None:
    once, twice = (laid_out(gathering(fusion("work", 4), twice=twice)) for twice in (False, True))
    assert once.duration_ps == twice.duration_ps
    assert twice.sources["all-gather.1.call-start"] == "link bytes"


def test_a_step_takes_as_long_as_what_is_drawn_of_it_and_more_with_slower_links(example: Path) -> None:
    module = hlo.parse(gathering(fusion("work", 1)))
    chip = hardware.identify_tpu("TPU7x")
    timer = Timer(chip, constants_of(chip))
    for end in ("value", "fast", "slow"):
        assert step_ps(module, timer.at(end)) == lay_out(module, timer.at(end)).duration_ps
    estimates = profiler.load(str(example)).run_info["estimates"]
    assert set(estimates["sensitivity"]) == {
        name for name, each in estimates["constants"].items() if each["fast"] != each["slow"]
    }
    assert all(fast <= estimates["step_s"] <= slow for fast, slow in estimates["sensitivity"].values())


def test_what_a_kernel_s_code_said_of_its_tiles_is_noted_beside_the_call() -> None:
    program = Program()
    program.computation("main", ("kernel", "custom-call", (), {"custom_call_target": b"tpu_custom_call"}))
    number = hlo.parse(program.bytes()).instructions["kernel"].proto.id
    module = hlo.parse(stripped(program.bytes(), None, None, {number: {"tm": 512}}))
    assert module.instructions["kernel"].frontend_attributes == {"kernel_tiles": '{"tm": 512}'}


def test_kernel_code_and_arrays_are_left_out_and_trip_counts_stay() -> None:
    program = Program()
    body = b'{"custom_call_config":{"body":"' + b"A" * 4000 + b'","cost_estimate":{"flops":"5"}}}'
    array = messages().LiteralProto(s32s=list(range(4000))).SerializeToString()
    program.computation(
        "main",
        ("n", "constant", (), {"constant": 48}),
        ("table", "constant", (), {"literal": array, "dims": [4000]}),
        ("kernel", "custom-call", ("table",), {"custom_call_target": b"tpu_custom_call", "backend_config": body}),
    )
    data = stripped(program.bytes(), None, None, {})
    module = hlo.parse(data)
    assert len(data) < 1000
    assert module.instructions["kernel"].flops == 5
    assert b"AAAA" not in data
    assert messages().LiteralProto.FromString(module.instructions["n"].proto.literal).s32s == [48]


def test_the_compiler_s_order_survives_in_the_program() -> None:
    program = Program()
    program.computation("main", fusion("a", 1), fusion("b", 2))
    program.order("main", "b", "a")
    assert [name for name, *_ in spans(laid_out(stripped(program.bytes(), None, None, {})))] == ["b", "a"]


@pytest.mark.parametrize(
    ("source", "expected"),
    [
        ("/home/me/venv/lib/python3.12/site-packages/jax/_src/core.py:7", "jax/_src/core.py:7"),
        (str(Path(__file__).parents[2] / "distill" / "step.py"), "distill/step.py"),
        ("/elsewhere/checkout/distill/model/moe.py:3", "distill/model/moe.py:3"),
        ("/opt/python/lib/contextlib.py:81", "contextlib.py:81"),
        ("train.py:3", "train.py:3"),
    ],
)
def test_sources_do_not_name_the_machine_that_compiled(source: str, expected: str) -> None:
    assert portable(source) == expected


def test_a_chip_without_peaks_is_refused(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="TPU v99"):
        write(looped(fusion("work", 2)), tmp_path / "run.xplane.pb", chip="TPU v99")


def test_xprof_counts_the_same(example: Path, tmp_path: Path) -> None:
    convert = pytest.importorskip("xprof.convert.raw_to_tool_data")
    copy = tmp_path / "run.xplane.pb"  # xprof writes beside the file that it reads
    copy.write_bytes(example.read_bytes())
    table = json.loads(convert.xspace_to_tool_data([str(copy)], "hlo_stats", {})[0])
    columns = [column["id"] for column in table["cols"]]
    rows = [dict(zip(columns, [cell.get("v") for cell in row["c"]], strict=True)) for row in table["rows"]]
    found = {row["hlo_op_name"]: (row["occurrences"], row["total_self_time"]) for row in rows}
    assert found == {"first": (1, 1.0), "while.1": (1, 0.0), "work": (3, 6.0), "last": (1, 4.0)}


def test_jax_opens_it(example: Path) -> None:
    jax = pytest.importorskip("jax")
    planes = {plane.name: plane for plane in jax.profiler.ProfileData.from_file(str(example)).planes}
    lines = {line.name: len(list(line.events)) for line in planes["/device:TPU:0"].lines}
    assert lines["XLA Ops"] == 6
