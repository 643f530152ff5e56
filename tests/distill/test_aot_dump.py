"""What the compiler leaves behind: memory by the buffer assignment, the schedule, kernel calls, its errors."""

from types import SimpleNamespace

import pytest

from distill.aot import dump
from distill.aot.counts import kernel_calls
from distill.aot.dump import Dump, read_schedule
from distill.aot.errors import OutOfMemory, OutOfVmem, explain
from profiler.analysis.memory import memory
from profiler.errors import UnreadableError
from profiler.hlo import buffers, parse
from profiler.hlo.schema import hlo

F32 = 11
LAYERS = "jit(train_step)/jvp(student)/layers/while/body/closed_call"
BACKWARD = "jit(train_step)/transpose(jvp(student))/layers/while/body/closed_call/checkpoint"
MIB = 1 << 20


def a_module(*instructions):
    """HloProto of one computation; an instruction is (id, name, opcode, op_name) and f32[256,1024], 1 MiB."""
    proto = hlo().HloProto()
    module = proto.hlo_module
    module.name, module.entry_computation_name = b"jit_train_step", b"main"
    computation = module.computations.add(name=b"main", id=1)
    for number, name, opcode, op_name in instructions:
        instruction = computation.instructions.add(id=number, name=name.encode(), opcode=opcode.encode())
        instruction.metadata.op_name = op_name.encode()
        instruction.shape.element_type = F32
        instruction.shape.dimensions.extend([256, 1024])
        if opcode == "custom-call":
            instruction.custom_call_target = b"tpu_custom_call"
    return proto


def an_assignment(*, argument=None, alive=(), host=0, packed=0):
    """A buffer assignment: one argument of 1 MiB, temporaries by (kind, buffer, shared with) of 1 MiB each."""
    assignment = buffers.messages().Assignment()
    ids = {argument, *(number for _, number, _ in alive)} - {None}
    for number in sorted(ids):
        assignment.buffers.add(id=number, size=MIB).defined_at.instruction_id = number
    if argument is not None:
        assignment.allocations.add(size=MIB, is_parameter=True).assigned.add(buffer=argument, size=MIB)
    assignment.allocations.add(size=packed)
    assignment.allocations.add(size=host, color=buffers.HOST)
    assignment.allocations.add(size=7 * MIB, color=1)  # VMEM is another memory
    assignment.allocations.add(size=9 * MIB, is_thread_local=True)  # a fusion's own value is in none
    trace = assignment.traces.add(whole_module=True)
    for kind, number, other in alive:
        trace.events.add(kind=("allocate", "free", "share").index(kind), buffer=number, shared_with=other)
    return assignment.SerializeToString()


def with_memory(proto, **assignment):
    proto.buffer_assignment = an_assignment(**assignment)
    return parse(proto.SerializeToString())


def test_the_peak_is_what_is_held_at_one_time_and_the_allocation_what_was_packed():
    module = a_module(
        (1, "param.1", "parameter", "state.params['layers'][0]['experts']['wi_0']"),
        (2, "gmm.2", "custom-call", f"{LAYERS}/moe_block/moe_wi_0/jit(gmm)/pallas_call"),
        (3, "fusion.3", "fusion", f"{BACKWARD}/self_attention/norm/mul"),
        (4, "fusion.4", "fusion", f"{BACKWARD}/rematted_computation/self_attention/query_proj/dot_general"),
    )
    events = [
        ("allocate", 2, 0),
        ("free", 2, 0),
        ("allocate", 3, 0),
        ("allocate", 4, 0),
        ("free", 3, 0),
        ("free", 4, 0),
    ]
    found = memory(with_memory(module, argument=1, alive=events, packed=3 * MIB, host=5 * MIB))
    assert found is not None
    assert (found.peak_bytes, found.allocated_bytes) == (3 * MIB, 4 * MIB)
    assert (found.argument_bytes, found.host_bytes) == (MIB, 5 * MIB)
    assert {(each.place.part, each.place.tensor) for each in found.live} == {
        ("student parameters", "layers/experts/wi_0"),
        ("student backward", "self_attention/norm"),
        ("re-run", "self_attention/query_proj"),
    }
    assert sum(each.bytes for each in found.live) == found.peak_bytes


def test_shared_memory_counts_once_until_its_last_user_is_gone():
    module = a_module(
        (2, "while.2", "while", ""),
        (3, "fusion.3", "fusion", f"{LAYERS}/moe_block/combine/mul"),
        (4, "fusion.4", "fusion", f"{LAYERS}/self_attention/out_proj/dot_general"),
    )
    events = [("allocate", 2, 0), ("share", 3, 2), ("free", 2, 0), ("allocate", 4, 0), ("free", 3, 0), ("free", 4, 0)]
    found = memory(with_memory(module, alive=events))
    assert found is not None
    assert found.peak_bytes == 2 * MIB
    assert {each.place.tensor for each in found.live} == {"moe_block/combine", "self_attention/out_proj"}


def test_what_a_loop_over_layers_keeps_is_named_by_what_is_written_into_it():
    module = a_module(
        (1, "stack", "get-tuple-element", ""),
        (2, "splash", "custom-call", f"{LAYERS}/self_attention/splash_mha_fwd/pallas_call"),
        (3, "fusion.3", "fusion", "jit(train_step)/jvp(student)/layers/while/body/dynamic_update_slice"),
    )
    stored = module.hlo_module.computations[0].instructions[2]
    stored.operand_ids.extend([1, 2])
    module.hlo_module.computations[0].instructions[1].shape.dimensions[:] = [1, 1024]
    found = memory(with_memory(module, alive=[("allocate", 3, 0), ("free", 3, 0)]))
    assert found is not None
    (buffer,) = found.live
    assert (buffer.place.part, buffer.place.tensor) == ("saved for backward", "self_attention/splash_mha_fwd")


def test_a_copy_is_named_by_what_it_copies():
    module = a_module(
        (1, "param.1", "parameter", "teacher['layers'][0]['experts']['wo']"),
        (2, "copy-start.2", "copy-start", ""),
        (3, "gmm.3", "custom-call", f"{LAYERS}/moe_block/moe_wi_0/jit(gmm)/pallas_call"),
        (4, "copy.4", "copy", ""),
    )
    instructions = module.hlo_module.computations[0].instructions
    instructions[1].operand_ids.append(1)
    instructions[3].operand_ids.append(3)
    found = memory(with_memory(module, alive=[("allocate", 2, 0), ("allocate", 4, 0), ("free", 4, 0), ("free", 2, 0)]))
    assert found is not None
    assert {(each.place.part, each.place.tensor) for each in found.live} == {
        ("copy of teacher parameters", "layers/experts/wo"),
        ("student forward", "moe_block/moe_wi_0/gmm"),
    }


def test_without_a_buffer_assignment_nothing_is_said():
    assert memory(parse(a_module((1, "p", "parameter", "batch['tokens']")).SerializeToString())) is None


def test_kernels_are_counted_by_phase():
    splash = "self_attention/shard_map/splash_mha_fwd_segmented_residuals/pallas_call"
    module = a_module(
        (1, "a.1", "custom-call", "jit(train_step)/teacher/layers/while/body/" + splash),
        (2, "a.2", "custom-call", f"{LAYERS}/{splash}"),
        (3, "a.3", "custom-call", f"{BACKWARD}/rematted_computation/{splash}"),
        (4, "a.4", "custom-call", f"{BACKWARD}/moe_block/moe_wo/jit(tgmm)/pallas_call"),
        (5, "a.5", "fusion", f"{BACKWARD}/moe_block/mul"),
    )
    calls = {(each.family, each.phase): each.calls for each in kernel_calls(parse(module.SerializeToString()))}
    assert calls == {
        ("splash forward", "teacher"): 1,
        ("splash forward", "student forward"): 1,
        ("splash forward", "re-run"): 1,
        ("tgmm", "student backward"): 1,
    }


# --- the folder -------------------------------------------------------------------------------------------------------


def test_a_schedule_gives_start_and_end_of_every_instruction(tmp_path):
    message = dump._messages().Schedules()
    computation = message.hlo_module.computations.add(name=b"main", id=7)
    computation.instructions.add(id=11, name=b"gmm.1", opcode=b"custom-call").metadata.op_name = b"jit(f)/gmm"
    scheduled = message.computations.add(computation_id=7, cycles_per_microsecond=1900)
    scheduled.instructions.add(id=11, start_cycles=5, end_cycles=105.5, memory_after=64)
    scheduled.instructions.add(id=12, end_cycles=1)  # of no instruction that the file has
    scheduled.statistics.total_cycles = 106
    file = tmp_path / "jit_train_step.schedule.pb"
    file.write_bytes(message.SerializeToString())
    schedule = read_schedule(file)
    (main,) = schedule.computations.values()
    assert (schedule.cycles_per_us, main.name, main.total_cycles) == (1900, "main", 106)
    (instruction,) = main.instructions
    assert (instruction.name, instruction.op_name) == ("gmm.1", "jit(f)/gmm")
    assert (instruction.start_cycles, instruction.end_cycles, instruction.memory_after_bytes) == (5, 105.5, 64)


@pytest.mark.parametrize("content", [None, b"\xff\xff\xff"])
def test_a_schedule_that_is_missing_or_damaged_is_unreadable(tmp_path, content):
    file = tmp_path / "jit_train_step.schedule.pb"
    if content is not None:
        file.write_bytes(content)
    with pytest.raises(UnreadableError):
        read_schedule(file)


def test_a_dump_folder_that_has_nothing_yet_says_so(tmp_path):
    folder = Dump(tmp_path / "missing")
    assert (folder.optimized, folder.schedule, folder.program(), folder.has_memory) == (None, None, None, False)


def test_the_program_is_the_finished_one_with_the_buffer_assignment_of_the_earlier_one(tmp_path):
    early, late = a_module((1, "early", "add", "")), a_module((1, "late", "add", ""))
    early.buffer_assignment = an_assignment(packed=2 * MIB)
    (tmp_path / "module_0000.jit_train_step.after_optimizations.hlo.pb").write_bytes(early.SerializeToString())
    folder = Dump(tmp_path)
    assert set(parse(folder.program()).instructions) == {"early"}
    (tmp_path / "module_0000.jit_train_step.after_codegen.hlo.pb").write_bytes(late.SerializeToString())
    program = parse(folder.program())
    assert set(program.instructions) == {"late"}
    assert memory(program).allocated_bytes == 2 * MIB


# --- errors of the compiler -------------------------------------------------------------------------------------------

HBM_MESSAGE = (
    "RESOURCE_EXHAUSTED: Ran out of memory on HBM, the total memory required for HLO temporaries (111.39G) exceeds "
    "available HBM (94.75G)."
)
VMEM_MESSAGE = (
    "RESOURCE_EXHAUSTED: E1001: CompileTimeScopedVmemOom:\nRan out of memory in memory space vmem while allocating on "
    'stack for %{name} = {shape} custom-call(%x), custom_call_target="tpu_custom_call", metadata={{op_name="{stack}" '
    "stack_frame_id=581}}. Scoped allocation with size 81.33M and limit 16.00M exceeded scoped vmem limit by 65.33M."
)


def test_too_much_hbm_is_told_with_what_is_live():
    live = (SimpleNamespace(bytes=5),)
    held = SimpleNamespace(allocated_bytes=119_605_228_736, live=live)
    found = explain(HBM_MESSAGE, held)
    assert found == OutOfMemory(119_605_228_736, round(94.75 * 2**30), live)
    assert explain(HBM_MESSAGE, None) == OutOfMemory(round(111.39 * 2**30), round(94.75 * 2**30), ())


@pytest.mark.parametrize(
    ("name", "shape", "stack", "knobs"),
    [
        ("splash_mha_fwd_segmented_residuals.3", "(bf16[2,4096,128])",
         f"{LAYERS}/self_attention/splash_mha_fwd_segmented_residuals/pallas_call",
         ("sa_block_q", "sa_block_kv", "sa_block_kv_compute")),
        ("splash_mha_dkv_segmented.1", "(bf16[2,8,4,64], bf16[1,4,64], bf16[1,4,64])",
         f"{BACKWARD}/self_attention/splash_mha_dkv_segmented/pallas_call",
         ("sa_block_q_dkv", "sa_block_kv_dkv", "sa_block_kv_dkv_compute")),
        ("gmm.4", "bf16[512,64]", f"{LAYERS}/moe_block/moe_wi_0/jit(gmm)/pallas_call",
         ("wi_tile_fwd_batch_seq", "wi_tile_fwd_embed_dim", "wi_tile_fwd_mlp_dim")),
        ("gmm.5", "bf16[512,64]", f"{BACKWARD}/moe_block/moe_wo/jit(gmm)/pallas_call",
         ("wo_tile_dlhs_batch_seq", "wo_tile_dlhs_embed_dim", "wo_tile_dlhs_mlp_dim")),
        ("tgmm.6", "bf16[8,64,64]", f"{BACKWARD}/moe_block/moe_wi_1/jit(tgmm)/pallas_call",
         ("wi_tile_drhs_batch_seq", "wi_tile_drhs_embed_dim", "wi_tile_drhs_mlp_dim")),
    ],
)  # fmt: skip
def test_too_much_vmem_names_the_kernel_and_its_knobs(name, shape, stack, knobs):
    found = explain(VMEM_MESSAGE.format(name=name, shape=shape, stack=stack), None)
    assert isinstance(found, OutOfVmem)
    assert (found.kernel, found.knobs) == (name.partition(".")[0], knobs)
    assert (found.needed_bytes, found.available_bytes) == (round(81.33 * MIB), 16 * MIB)


def test_an_error_about_something_else_is_not_one_of_memory():
    assert explain("INVALID_ARGUMENT: Mosaic failed to compile TPU kernel", None) is None
