"""Writes TPU-like recordings of any size: same planes, lines, stats and bytes per event as a real one.

    python benchmarks/generate.py --size 200MB -o big.xplane.pb
    python benchmarks/generate.py --size 20MB --variant optimized -o optimized.xplane.pb

The content is made up (``moe_program.py``) and depends on nothing but size, variant, devices and seed. One plane is
built in memory at a time and written before the next, so that 1 GB takes well under a minute and a fraction of it in
memory.
"""

from __future__ import annotations

import argparse
import re
from pathlib import Path

import encode
import numpy as np
from moe_program import Node, Program

from profiler.hlo.schema import hlo
from profiler.xplane.write import PlaneBuilder, SpaceBuilder, Stat

TICK_PS = 1250  # device times are whole cycles of an 800 MHz counter
SKEW_PS = 43_000  # the device's clock against the host's
STEP_GAP_PS = 180_000_000
START_PS = 5_353_251_593_250
HOST_CLOCK_PS = 7_301_000_000  # one host's clock against another's
CHUNK_STEPS = 8


class Timing:
    """One step as columns, one row per event in order of start.

    Attributes:
        op: index into ``Program.ops``.
        own_ps: time that the event takes besides the events inside it.
        last: row of the last event inside it, or the row itself.
        starts: for an async ``-done`` the row of its start, else −1.
    """

    def __init__(self, program: Program):
        op: list[int] = []
        last: list[int] = []
        starts: list[int] = []
        open_at: dict[int, int] = {}

        def run(nodes: list[Node]) -> None:
            for node in nodes:
                row = len(op)
                op.append(node.op)
                last.append(row)
                starts.append(-1 if node.starts is None else open_at[node.starts])
                open_at[node.op] = row
                if node.body:
                    for _ in range(node.trips):
                        run(node.body)
                last[row] = len(op) - 1

        run(program.root)
        self.op, self.last, self.starts = (np.array(column, np.int64) for column in (op, last, starts))
        self.own_ps = np.array([program.ops[i].picoseconds for i in op], np.int64)

    def steps(self, count: int, begin_ps: int, random: np.random.Generator) -> tuple[np.ndarray, np.ndarray]:
        """Start and end of every event of ``count`` steps, [count, rows] each, from ``begin_ps`` on."""
        jitter = 1 + 0.02 * random.standard_normal((count, len(self.op))).clip(-4, 4)
        # Kernels of one step share its luck: a step is a little fast or slow as a whole.
        own = (self.own_ps * jitter * (1 + 0.004 * random.standard_normal((count, 1)))).astype(np.int64)
        own[:, 0] += STEP_GAP_PS
        end = begin_ps + own.cumsum().reshape(own.shape)
        start = end - own
        start[:, 0] += STEP_GAP_PS
        return start, end[:, self.last]


def device_plane(
    program: Program, timing: Timing, device: int, seeds: list[int], event_bytes: int
) -> tuple[list[bytes], int]:
    """The serialized pieces of one device's XPlane, and its number of events."""
    random = np.random.default_rng([*seeds, device])
    begin_ps = START_PS + sum(seeds[1:]) * HOST_CLOCK_PS
    stats: dict[str, Stat] = {
        "device_type_string": "TPU v6 Lite",
        "peak_teraflops_per_second": 918.0,
        "peak_hbm_bw_gigabytes_per_second": 1637.99,
        "has_megacore": 0,
    }
    plane = PlaneBuilder(f"/device:TPU:{device}", stats=stats, plane_id=2 + 8 * device)
    offset_id, duration_id, run_id = (plane.stat_id(n) for n in ("device_offset_ps", "device_duration_ps", "run_id"))
    op_ids = np.array([op_metadata(plane, program, index) for index in range(len(program.ops))])
    module = plane.metadata(f"jit_train_step({program.program_id})")
    dones = np.flatnonzero(timing.starts >= 0)

    lines: dict[str, list[bytes]] = {"Steps": [], "XLA Modules": [], "XLA Ops": [], "Async XLA Ops": []}
    written, steps, now = 0, 0, begin_ps
    while written < event_bytes:
        start, end = timing.steps(CHUNK_STEPS, now, random)
        if steps:  # how many more are wanted is known from the second chunk on
            wanted = max(1, round((event_bytes - written) / (written / steps)))
            start, end = start[:wanted], end[:wanted]
        count, now = len(start), int(end[-1].max())
        ticks, tick_ends = (start - SKEW_PS) // TICK_PS * TICK_PS, (end - SKEW_PS) // TICK_PS * TICK_PS
        on_device = [(offset_id, ticks.ravel()), (duration_id, (tick_ends - ticks).ravel())]
        ids = np.tile(op_ids[timing.op], count)
        lines["XLA Ops"].append(encode.events(ids, start.ravel(), (end - start).ravel(), on_device))
        flight = (start[:, timing.starts[dones]], end[:, dones])
        ids = np.tile(op_ids[timing.op[timing.starts[dones]]], count)
        lines["Async XLA Ops"].append(encode.events(ids, flight[0].ravel(), (flight[1] - flight[0]).ravel()))
        whole = start[:, 0], end[:, -1] - start[:, 0]
        runs = np.arange(steps, steps + count)
        lines["XLA Modules"].append(encode.events(np.full(count, module), *whole, [(run_id, runs)]))
        names = np.array([plane.metadata(str(step)) for step in runs])
        lines["Steps"].append(encode.events(names, *whole))
        steps += count
        written += sum(len(parts[-1]) for parts in lines.values())
    pieces = [encode.line(name, 1 + i, 0, parts) for i, (name, parts) in enumerate(lines.items())]
    return [plane.payload(), *pieces], steps * (len(timing.op) + len(dones) + 2)


def op_metadata(plane: PlaneBuilder, program: Program, index: int) -> int:
    """The id of one op's event metadata with the stats that a TPU recording has there."""
    op = program.ops[index]
    moved = bytes_of(op.shape) * 3
    stats: dict[str, Stat] = {
        "hlo_category": op.category,
        "program_id": program.program_id,
        "symbol_id": index + 1,
        "flops": op.flops,
        "model_flops": op.flops,
        "bytes_accessed": moved,
        "raw_bytes_accessed": moved,
        "shape_with_layout": op.text.split(" = ")[1].split(f" {op.opcode}(")[0],
        "tf_op": f"{op.stack}:",
        "source": op.source,
    }
    return plane.metadata(op.text, display_name=op.name, stats=stats)


def bytes_of(shape: str) -> int:
    """Bytes of all arrays of a shape."""
    total = 0
    for kind, sizes in re.findall(r"([a-z]+\d+)\[([\d,]*)\]", shape):
        count = 1
        for size in filter(None, sizes.split(",")):
            count *= int(size)
        total += count * int(re.sub(r"\D", "", kind)) // 8
    return total


def hlo_module(program: Program) -> bytes:
    """The program as an HLO proto: computations, instructions and name stacks, without operands."""
    kinds = {"bf16": 16, "f32": 11, "s32": 4}
    proto = hlo().HloProto()
    module = proto.hlo_module
    module.name, module.entry_computation_name, module.entry_computation_id = b"jit_train_step", b"main.1", 1

    def add(name: str, nodes: list[Node]) -> int:
        computation = module.computations.add(name=name.encode(), id=len(module.computations) + 1)
        for node in nodes:
            op = program.ops[node.op]
            instruction = computation.instructions.add(name=op.name.encode(), opcode=op.opcode.encode(), id=node.op + 1)
            instruction.metadata.op_name = op.stack.encode()
            instruction.metadata.source_file, line = op.source.rsplit(":", 1)[0].encode(), op.source.rsplit(":", 1)[1]
            instruction.metadata.source_line = int(line)
            kind, sizes = re.findall(r"([a-z]+\d+)\[([\d,]*)\]", op.shape)[-1]
            instruction.shape.element_type = kinds[kind]
            instruction.shape.dimensions.extend(int(size) for size in filter(None, sizes.split(",")))
            if op.opcode == "custom-call":
                instruction.custom_call_target = b"tpu_custom_call"
            if node.body:
                instruction.called_computation_ids.append(add(f"body.{op.name}", node.body))
            computation.root_id = node.op + 1
        return int(computation.id)

    add("main.1", program.root)
    data: bytes = proto.SerializeToString()
    return data


def generate(
    path: Path, size: int, variant: str = "baseline", devices: int = 4, seed: int = 0, host: str | None = None
) -> dict[str, float]:
    """Writes one recording of about ``size`` bytes; returns its bytes, events, bytes per event and number of ops.

    Hosts of one run have a ``host`` each: the program is the same, the times and the clock are the host's own.
    """
    program = Program(variant, seed)
    timing = Timing(program)
    seeds = [seed] if host is None else [seed, *host.encode()]
    rest = SpaceBuilder(hostnames=(host or "worker-0",))
    rest.hlo_proto("jit_train_step", program.program_id, hlo_module(program))
    rest.plane("Task Environment", stats={"profile_start_time": 1_741_722_099_081_044_120})
    tail = rest.to_bytes()
    events = event_bytes = 0
    with path.open("wb") as file:
        for device in range(devices):
            left = (size - len(tail) - file.tell()) // (devices - device)
            metadata = PlaneBuilder("probe")
            for index in range(len(program.ops)):
                op_metadata(metadata, program, index)
            pieces, count = device_plane(program, timing, device, seeds, max(1, left - len(metadata.payload())))
            length = sum(map(len, pieces))
            file.writelines([b"\x0a", encode.varint(length), *pieces])
            events, event_bytes = events + count, event_bytes + length - len(pieces[0])
        file.write(tail)
        total = file.tell()
    return {"bytes": total, "events": events, "bytes_per_event": event_bytes / events, "ops": len(program.ops)}


def parse_size(text: str) -> int:
    """``20MB`` or ``1GB`` in bytes (powers of ten)."""
    match = re.fullmatch(r"(\d+(?:\.\d+)?)\s*([kMG])?B?", text)
    if not match:
        raise argparse.ArgumentTypeError(f"{text!r} is not a size such as 20MB")
    return int(float(match[1]) * {"k": 10**3, "M": 10**6, "G": 10**9}.get(match[2], 1))


def main() -> None:
    """Command line."""
    parser = argparse.ArgumentParser(description="Write a TPU-like recording.")
    parser.add_argument("--size", type=parse_size, default="200MB", help="about this many bytes (default 200MB)")
    parser.add_argument("--variant", choices=("baseline", "optimized"), default="baseline")
    parser.add_argument("--devices", type=int, default=4)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("-o", "--output", type=Path, required=True)
    args = parser.parse_args()
    facts = generate(args.output, args.size, args.variant, args.devices, args.seed)
    print(
        f"{args.output}: {facts['bytes'] / 1e6:.1f} MB, {facts['events']:,} events on {args.devices} devices, "
        f"{facts['bytes_per_event']:.1f} bytes per event, {facts['ops']:,} ops"
    )


if __name__ == "__main__":
    main()
