"""Records the pairs in tiny-qwen3/ and tiny-gpt-oss/: distillation steps on the CPU, before and after tuning.

    python -m sample_profiles.record_tiny_pairs tiny-qwen3 [-o FOLDER]

Each side is trained a few times, in turn, by ``python -m distill train``. Kept are the two recordings, one of each
side, in which the teacher took the most similar time: it does the same work on both sides, so the machine was equally
fast.
"""

from __future__ import annotations

import argparse
import gzip
import math
import os
import tempfile
from itertools import product
from pathlib import Path

import yaml

import profiler
from distill.runs import Plan, Run, run
from profiler.xplane.schema import xspace

SIDES = {"baseline": "base", "optimized": "opt"}

# Source locations from the package's or site-packages' folder on, not from the recording machine's own folders.
ENVIRONMENT = {
    "JAX_PLATFORMS": "cpu",
    "JAX_HLO_SOURCE_FILE_CANONICALIZATION_REGEX": "^.*/(?=distill/|site-packages/)",
}

# What the thread pool says of itself: four of five events, and nothing about the ops.
LEFT_OUT = b"ThreadpoolListener::"


def smaller(data: bytes) -> bytes:
    """A recording without the events of the thread pool's bookkeeping."""
    space = xspace().XSpace()
    space.ParseFromString(data)
    for plane in space.planes:
        dropped = {entry.key for entry in plane.event_metadata if entry.value.name.startswith(LEFT_OUT)}
        for line in plane.lines:
            kept = [event for event in line.events if event.metadata_id not in dropped]
            del line.events[:]
            line.events.extend(kept)
    return bytes(space.SerializeToString())


def teacher_ps(one: Run) -> float:
    """Time that the teacher takes in a recorded step."""
    summary = profiler.summary(str(one.folder))
    return sum(row.time_ps_per_step for row in summary.families if row.phase == "teacher")


def most_alike(runs: dict[str, list[Run]]) -> tuple[Run, ...]:
    """One run of each side, the pair in which the teacher's times differ least."""
    times = {one.folder: teacher_ps(one) for ones in runs.values() for one in ones}
    return min(product(*runs.values()), key=lambda pair: abs(math.log(times[pair[0].folder] / times[pair[1].folder])))


def keep(side: str, one: Run, folder: Path) -> None:
    """Writes SIDE.xplane.pb.gz and SIDE.yml into the folder."""
    (trace,) = one.folder.glob("plugins/profile/*/*.xplane.pb")
    target = folder / f"{side}.xplane.pb.gz"
    target.write_bytes(gzip.compress(smaller(trace.read_bytes()), 9, mtime=0))
    (folder / f"{side}.yml").write_text(yaml.safe_dump(one.config, sort_keys=False), encoding="utf-8")
    steps, size = one.steps, target.stat().st_size
    print(f"{side}: {one.folder.name}, teacher {teacher_ps(one) / 1e9:.2f} ms of a step, {size / 1e3:.0f} kB")
    print(f"{side}: loss {steps[0]['loss']:.6f} → {steps[-1]['loss']:.6f}", flush=True)


def main() -> None:
    """Records one pair."""
    parser = argparse.ArgumentParser(description="Record a sample pair of the trainer.")
    parser.add_argument("model", choices=("tiny-qwen3", "tiny-gpt-oss"))
    parser.add_argument("--repeats", type=int, default=3, help="runs of each side (default: 3)")
    parser.add_argument("-o", "--output", type=Path, help="default: a folder of the model's name beside this script")
    args = parser.parse_args()
    folder = args.output or Path(__file__).parent / args.model
    folder.mkdir(parents=True, exist_ok=True)
    os.environ.update(ENVIRONMENT)
    plan = Plan(steps=30, repeats=args.repeats, overrides=("profiler_steps=6",))
    with tempfile.TemporaryDirectory() as temporary:
        runs: dict[str, list[Run]] = {side: [] for side in SIDES}
        for index, repeat in plan.order(len(SIDES)):
            side = list(SIDES)[index]
            out = Path(temporary) / f"{side}-{repeat}"
            runs[side].append(run(f"{args.model}-{SIDES[side]}", out, plan))
        for side, one in zip(SIDES, most_alike(runs), strict=True):
            keep(side, one, folder)


if __name__ == "__main__":
    main()
