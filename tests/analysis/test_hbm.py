"""HBM: what is held at the static peak, by group, stack of layers and tensor, and how the peak comes about."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from profiler import api
from profiler.analysis import hbm
from profiler.analysis.memory import memory
from profiler.hlo import HloModule, buffers
from profiler.hlo.module import parse
from profiler.reduce.files import reduce_file
from profiler.trace import AllocatorPeaks, Device, Trace
from profiler.xplane.write import SpaceBuilder

MIB = 1 << 20
GIB = 1 << 30
FORWARD = "jit(step)/jvp(layers)/while/body/mlp"
BACKWARD = "jit(step)/transpose(jvp(layers))/while/body/mlp"
Make = Callable[..., HloModule]
Plan = Callable[..., bytes]


def trace_of(*modules: HloModule, run_info: dict[str, Any] | None = None, **device: Any) -> Trace:
    device = {"type": "TPU v6 Lite", "hbm_bytes": 32 * GIB, **device}
    return Trace(
        label="x",
        files=("x",),
        kind="recorded",
        devices=(Device(0, "TPU:0", "x", "h", "/device:TPU:0", "tpu", **device),),
        idle_devices=(),
        ops=None,  # type: ignore[arg-type]
        op_sums=None,  # type: ignore[arg-type]
        timelines=(),
        windows=(),
        allocator=AllocatorPeaks(),
        programs={("x", str(number)): module for number, module in enumerate(modules)},
        run_info=run_info,
        versions={},
        warnings=(),
    )


def places(module: HloModule) -> dict[str, tuple[str, str, str, str]]:
    """Instruction → (group, part, stack, tensor) of what is held at the peak."""
    found = memory(module)
    assert found is not None
    return {each.instruction: (each.group, each.place.part, each.place.stack, each.place.tensor) for each in found.live}


@pytest.mark.parametrize(
    ("path", "expected"),
    [
        ("args[0]['params']['layers']['mlp']['wi']", ("parameters", "parameters", "layers", "layers/mlp/wi")),
        ("state.params['params']['dec']['layers']['w']", ("parameters", "parameters", "layers", "dec/layers/w")),
        ("opt_state[1][0].mu['blocks_3']['w']", ("optimizer state", "optimizer state", "blocks", "mu/blocks_3/w")),
        ("args[1][0].nu['head']", ("optimizer state", "optimizer state", "", "nu/head")),
        ("weights_o[0]", ("parameters", "parameters", "", "weights_o")),
        ("batch['targets']", ("inputs", "inputs", "", "targets")),
        ("args[2]['tokens']", ("inputs", "inputs", "", "tokens")),
        ("ws[3]", ("arguments", "arguments", "", "ws")),
        ("x", ("arguments", "arguments", "", "x")),
        ("", ("arguments", "arguments", "", "parameter.1")),
    ],
)  # fmt: skip
def test_an_argument_is_what_its_path_says_and_an_argument_otherwise(
    make_module: Make, path: str, expected: Any
) -> None:
    module = make_module([(1, "parameter", path)], resident={1: "argument"})
    assert places(module) == {"parameter.1": expected}


def test_two_models_are_told_apart_where_an_argument_names_the_teacher(make_module: Make) -> None:
    arguments = [
        (1, "parameter", "state['params']['layers']['wi']"),
        (2, "parameter", "teacher_params['layers']['wi']"),
    ]
    module = make_module(arguments, resident={1: "argument", 2: "argument"})
    assert places(module) == {
        "parameter.1": ("parameters", "student parameters", "student layers", "layers/wi"),
        "parameter.2": ("parameters", "teacher parameters", "teacher layers", "layers/wi"),
    }


def test_a_program_without_a_teacher_has_no_student(make_module: Make) -> None:
    module = make_module([(1, "fusion", f"{FORWARD}/mul")], [("allocate", 1)])
    assert places(module) == {"fusion.1": ("temporaries", "forward", "layers", "mlp")}


def test_a_forward_value_that_a_backward_op_reads_is_saved_for_it(make_module: Make) -> None:
    module = make_module(
        [
            (1, "fusion", f"{FORWARD}/dot_general"),
            (2, "fusion", f"{FORWARD}/mul"),
            (3, "bitcast", "", 1),
            (4, "fusion", f"{BACKWARD}/dot_general", 3),
        ],
        [("allocate", 1), ("allocate", 2)],
    )
    assert {name: group for name, (group, *_) in places(module).items()} == {
        "fusion.1": "saved for backward",
        "fusion.2": "temporaries",
    }


def test_a_backward_value_that_the_optimizer_reads_is_a_gradient(make_module: Make) -> None:
    module = make_module(
        [(1, "fusion", f"{BACKWARD}/dot_general"), (2, "fusion", "jit(step)/optimizer/sub", 1)], [("allocate", 1)]
    )
    assert places(module)["fusion.1"][0] == "gradients"


def test_collectives_outputs_and_constants_are_groups_of_their_own(make_module: Make) -> None:
    module = make_module(
        [
            (1, "all-gather", f"{FORWARD}/all_gather"),
            (2, "fusion", f"{FORWARD}/mul"),
            (3, "constant", ""),
        ],
        [("allocate", 1)],
        resident={2: "output", 3: "constant"},
    )
    found = {name: group for name, (group, *_) in places(module).items()}
    assert found == {"all-gather.1": "collectives", "fusion.2": "outputs", "constant.3": "constants"}


def test_an_updated_parameter_is_a_parameter_still(make_module: Make) -> None:
    """A donated argument and the output that takes its memory are one."""
    assignment = buffers.messages().Assignment()
    module = make_module([(1, "parameter", "params['w']"), (2, "fusion", "jit(step)/optimizer/sub")])
    for number in (1, 2):
        assignment.buffers.add(id=number, size=MIB).defined_at.instruction_id = number
    allocation = assignment.allocations.add(size=MIB, is_parameter=True, maybe_live_out=True)
    for number in (1, 2):
        allocation.assigned.add(buffer=number, size=MIB)
    donated = HloModule(module.name, module.id, module.entry, module.proto, assignment.SerializeToString())
    assert places(donated) == {"parameter.1": ("parameters", "parameters", "", "w")}


def test_the_figures_of_a_plan_stand_side_by_side(make_module: Make) -> None:
    small = make_module([(1, "parameter", "x")], resident={1: "argument"})
    large = make_module(
        [(1, "parameter", "params['w']"), (2, "fusion", f"{FORWARD}/mul")],
        [("allocate", 2), ("free", 2)],
        resident={1: "argument"},
        packed=3 * MIB,
        host=5 * MIB,
    )
    found = hbm.report(trace_of(small, large))
    assert (found.memory.static_peak_bytes, found.memory.static_allocated_bytes) == (2 * MIB, 4 * MIB)
    assert (found.fragmentation_bytes, found.memory.static_host_bytes) == (2 * MIB, 5 * MIB)
    assert (found.memory.window_peak_bytes, found.memory.lifetime_peak_bytes) == (None, None)
    assert found.static_headroom_bytes == 32 * GIB - 4 * MIB
    assert [row.static_peak_bytes for row in found.programs] == [2 * MIB, MIB]
    assert {row.group: row.bytes for row in found.groups} == {"parameters": MIB, "temporaries": MIB}
    assert [(row.stack, row.bytes) for row in found.stacks] == [("layers", MIB), (None, MIB)]


def test_the_limit_is_the_compilers_where_it_is_known(make_module: Make) -> None:
    module = make_module([(1, "parameter", "x")], resident={1: "argument"})
    v7x = trace_of(module, type="TPU7x", hbm_bytes=96 * GIB)
    assert hbm.capacity(v7x) == (int(94.74 * GIB), "what the compiler can use of a TPU v7x device")
    assert hbm.capacity(trace_of(module)) == (32 * GIB, "the chip's nominal size")
    assert hbm.capacity(trace_of(module, run_info={"hbm_capacity_bytes": 7}))[0] == 7
    assert hbm.capacity(trace_of(module, type=None, hbm_bytes=None)) == (None, None)


def test_the_curve_keeps_the_peak_and_says_where_it_is(make_module: Make) -> None:
    ops = [(number, "fusion", f"{FORWARD if number < 300 else BACKWARD}/mul") for number in range(1, 600)]
    events = [(kind, number) for number in range(1, 600) for kind in ("allocate", "free")]
    found = hbm.report(trace_of(make_module(ops, events, sizes={450: 9 * MIB})))
    assert found.curve is not None
    assert found.curve.events == 2 * 599
    assert len(found.curve.points) == hbm.MOST_POINTS
    assert max(point.bytes for point in found.curve.points) == found.memory.static_peak_bytes == 9 * MIB
    peak, forward = found.curve.highest
    assert (peak.op, peak.phase, peak.tensor, peak.bytes) == ("fusion.450", "backward", "mlp", 9 * MIB)
    assert (forward.phase, forward.bytes) == ("forward", MIB)


heap = st.lists(
    st.tuples(st.sampled_from(["allocate", "share"]), st.integers(1, 9), st.integers(1, 9), st.integers(0, 4 * MIB)),
    max_size=40,
)


@settings(max_examples=200, deadline=None)
@given(heap, st.dictionaries(st.integers(10, 14), st.sampled_from(["argument", "output", "constant"])), st.data())
def test_groups_stacks_and_tensors_each_sum_to_the_peak(
    make_module: Make, steps: Any, resident: dict[int, str], data: st.DataObject
) -> None:
    """Buffers come and go in any order, some in the memory of another that is held."""
    events: list[Any] = []
    sizes: dict[int, int] = {}
    held: list[int] = []
    owners: dict[int, int] = {}
    for number, (kind, pick, drop, size) in enumerate(steps, 20):
        sizes[number] = size
        if kind == "share" and held:
            owner = held[pick % len(held)]
            owners[number] = owners.get(owner, owner)
            sizes[number] = sizes[owner]
            events.append(("share", number, owner))
        else:
            events.append(("allocate", number))
        held.append(number)
        if drop % 2:
            events.append(("free", held.pop(drop % len(held))))
    paths = ["params['w']", "x", f"{FORWARD}/mul", f"{BACKWARD}/all_gather", ""]
    ops = [(each, "fusion", data.draw(st.sampled_from(paths))) for each in (*sizes, *resident)]
    module = make_module(ops, events, resident=resident, sizes=sizes)
    if not (events or resident):
        return
    found = hbm.report(trace_of(module))
    if found.memory.static_peak_bytes is None:
        return
    for rows in (found.groups, found.stacks, found.tensors):
        assert sum(row.bytes for row in rows) == found.memory.static_peak_bytes
    if found.curve is not None:
        assert max(point.bytes for point in found.curve.points) == found.memory.static_peak_bytes
        assert len(found.curve.points) <= hbm.MOST_POINTS


def test_a_damaged_plan_is_read_as_far_as_it_goes(make_plan: Plan) -> None:
    ops = [(1, "parameter", "params['w']"), (2, "fusion", f"{FORWARD}/mul"), (3, "fusion", f"{BACKWARD}/mul")]
    module = parse(make_plan(ops, [("allocate", 2), ("share", 3, 2), ("free", 2)], resident={1: "argument"}))
    plan = module.buffer_assignment
    for position in range(len(plan)):
        for value in (0, 0x7F, 0xFF):
            damaged = plan[:position] + bytes([value]) + plan[position + 1 :]
            broken = HloModule(module.name, module.id, module.entry, module.proto, damaged)
            hbm.report(trace_of(broken))


def delta_of(base, opt):
    return hbm.delta(hbm.held(base), hbm.held(opt), (hbm.capacity(base)[0], hbm.capacity(opt)[0]))


def test_a_diff_of_plans_sums_to_the_change_of_the_peak(make_module: Make) -> None:
    ops = [(1, "parameter", "params['w']"), (2, "fusion", f"{FORWARD}/a/mul"), (3, "fusion", f"{BACKWARD}/b/mul")]
    base = make_module(ops, [("allocate", 2)], resident={1: "argument"})
    opt = make_module(ops, [("allocate", 2), ("allocate", 3)], resident={1: "argument"}, sizes={2: 3 * MIB})
    found = delta_of(trace_of(base), trace_of(opt))
    assert found is not None
    assert {row.group: row.optimized_bytes - row.baseline_bytes for row in found.groups} == {
        "parameters": 0,
        "temporaries": 3 * MIB,
    }
    assert [(row.change, row.tensor, row.optimized_bytes - row.baseline_bytes) for row in found.tensors] == [
        ("grew", "mlp/a", 2 * MIB),
        ("came", "mlp/b", MIB),
    ]
    assert found.baseline_curve is not None
    assert found.optimized_curve is not None
    assert (found.baseline_curve.events, found.optimized_curve.events) == (1, 2)
    assert found.optimized_curve.at == (0, 1)
    assert max(found.optimized_curve.bytes) == found.optimized_curve.bytes[1]
    assert found.optimized_curve.phases == ("forward", "backward")
    assert delta_of(trace_of(base), trace_of()) is None


def test_without_a_plan_or_events_everything_is_unknown_and_said(make_module: Make) -> None:
    found = hbm.report(trace_of())
    assert found.memory.static_peak_bytes is None
    assert found.static_headroom_bytes is None
    assert found.curve is None
    assert {note.code for note in found.warnings} == {"no_buffer_assignment", "no_allocator_events"}


# --- from a file ------------------------------------------------------------------------------------------------------


def a_step(make_plan: Plan, tpu_space: Callable[..., SpaceBuilder]) -> SpaceBuilder:
    space = tpu_space({"TPU:0": {"XLA Ops": [("fusion.2", 0, 1_000_000)]}})
    instructions = [(1, "parameter", "params['layers']['w']"), (2, "fusion", f"{FORWARD}/mul")]
    plan = make_plan(instructions, [("allocate", 2), ("free", 2)], resident={1: "argument"}, packed=MIB)
    space.hlo_proto("jit_train_step", program_id=7, data=plan)
    return space


def test_allocators_are_listed_each_by_itself_and_host_memory_apart(
    make_plan: Plan, tpu_space: Callable[..., SpaceBuilder], saved: Callable[..., str]
) -> None:
    space = a_step(make_plan, tpu_space)
    line = space.plane("/host:CPU").line("python")
    for start, name, reserved, allocated, fragmentation in (
        (0, "GPU_0_bfc", 10, 5, 0.1),
        (1, "GPU_0_bfc", 10, 30, 0.25),
        (2, "GPU_1_bfc", 0, 7, 0.0),
        (3, "gpu_host_bfc", 0, 99, 0.0),
    ):
        stats = {
            "allocator_name": name,
            "bytes_reserved": reserved,
            "bytes_allocated": allocated,
            "bytes_available": 100 - reserved - allocated,
            "peak_bytes_in_use": 60,
            "fragmentation": fragmentation,
        }
        line.event("MemoryAllocation", start, 0, stats=stats)
    found = api.memory(saved(space))
    assert (found.memory.window_peak_bytes, found.memory.lifetime_peak_bytes) == (40, 60)
    assert found.memory.static_peak_bytes == 2 * MIB
    assert [(row.name, row.window_peak_bytes, row.on_host, row.fragmentation) for row in found.allocators] == [
        ("GPU_0_bfc", 40, False, 0.25),
        ("GPU_1_bfc", 7, False, 0.0),
        ("gpu_host_bfc", 99, True, 0.0),
    ]
    assert found.window_headroom_bytes == 60


# --- XProf ------------------------------------------------------------------------------------------------------------

PEAKS = {  # recording → window, lifetime and capacity of XProf's memory profile, the largest over its devices
    "tpu_v6e_inference": (21492671104, 16106341504, 33550237696),
    "mi300x_conv_old": (1732169984, 1739215104, 153800933376),
    "mi300x_conv_new": (1732169984, 1732169984, 154606239744),
    "gfx950_fused_attention": (663228416, 663228416, 299944250900),
}


@pytest.mark.recordings
@pytest.mark.parametrize("recording", PEAKS)
def test_the_peaks_of_the_window_are_those_of_xprofs_memory_profile(
    recordings: Path, tmp_path: Path, recording: str
) -> None:
    found = api.memory(str(recordings / f"{recording}.xplane.pb"))
    memory = found.memory
    assert (memory.window_peak_bytes, memory.lifetime_peak_bytes, memory.capacity_bytes) == PEAKS[recording]
    profile = xprof(recordings / f"{recording}.xplane.pb", tmp_path, "memory_profile", {})
    theirs = [each["profileSummary"] for each in profile["memoryProfilePerAllocator"].values()]
    assert max(int(each["peakStats"]["peakBytesInUse"]) for each in theirs) == memory.window_peak_bytes
    assert max(int(each["peakBytesUsageLifetime"]) for each in theirs) == memory.lifetime_peak_bytes
    ours = sorted(row.window_peak_bytes for row in found.allocators if not row.on_host)
    assert sorted(int(each["peakStats"]["peakBytesInUse"]) for each in theirs) == ours


@pytest.mark.recordings
@pytest.mark.parametrize("recording", ["tpu_v6e_inference", "mi300x_conv_new", "gfx950_fused_attention"])
def test_the_static_peaks_are_those_of_xprofs_memory_viewer(recordings: Path, tmp_path: Path, recording: str) -> None:
    file = recordings / f"{recording}.xplane.pb"
    compared = 0
    for name, proto in reduce_file(file, timelines=False).programs.protos.items():
        plan = parse(proto).buffers
        if plan is None:
            continue
        folder = tmp_path / name
        folder.mkdir()
        (folder / "program.hlo_proto.pb").write_bytes(proto)  # what XProf reads, by the name of the module
        theirs = xprof(file, folder, "memory_viewer", {"module_name": "program", "memory_space": "0"})
        assert theirs["peakHeapMib"] * MIB == plan.peak_bytes
        assert theirs["totalBufferAllocationMib"] * MIB == plan.allocated_bytes
        if theirs.get("peakHeapSizePosition"):
            assert [round(each * MIB) for each in theirs["heapSizes"][1:]] == [size for size, _ in plan.history]
        there = xprof(file, folder, "memory_viewer", {"module_name": "program", "memory_space": "5"})
        assert there.get("totalBufferAllocationMib", 0) * MIB == plan.host_bytes
        compared += 1
    assert compared >= 4


def xprof(file: Path, folder: Path, tool: str, options: dict[str, Any]) -> Any:
    """What an XProf tool says of a recording, which it gets in a folder of its own."""
    convert = pytest.importorskip("xprof.convert.raw_to_tool_data")
    copy = folder / "host-0.xplane.pb"
    shutil.copy(file, copy)
    data, _ = convert.xspace_to_tool_data([str(copy)], tool, options)
    return json.loads(data)


@pytest.mark.recordings
def test_the_inference_recording_copies_its_arguments_from_the_host(recordings: Path) -> None:
    found = api.memory(str(recordings / "tpu_v6e_inference.xplane.pb"))
    assert found.program == "jit_f"
    assert found.memory.static_peak_bytes == 21474836512
    assert found.memory.static_host_bytes == 15 * GIB
    assert (found.tensors[0].part, found.tensors[0].tensor, found.tensors[0].count) == ("copy of arguments", "ws", 3)
    assert found.window_headroom_bytes == 33550237696 - 21492671104
