"""Records the pairs in tiny-qwen3/ and tiny-gpt-oss/: distillation steps on the CPU, before and after tuning.

    python -m sample_profiles.record_tiny_pairs tiny-qwen3 [-o FOLDER]

Each side is trained a few times, in turn, by ``python -m distill train``; of a side's recordings the one whose steps
took least is kept, since other work on the machine only ever adds time.
"""

from __future__ import annotations

import argparse
import gzip
import os
import statistics
import tempfile
from pathlib import Path

import yaml

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


def recorded_seconds(one: Run) -> float:
    """Mean seconds of the recorded steps."""
    config = one.config
    first = config["skip_first_n_steps_for_profiler"]
    return statistics.mean(each["step_time_s"] for each in one.steps[first : first + config["profiler_steps"]])


def keep(side: str, one: Run, folder: Path) -> None:
    """Writes SIDE.xplane.pb.gz and SIDE.yml into the folder."""
    (trace,) = one.folder.glob("plugins/profile/*/*.xplane.pb")
    target = folder / f"{side}.xplane.pb.gz"
    target.write_bytes(gzip.compress(smaller(trace.read_bytes()), 9, mtime=0))
    (folder / f"{side}.yml").write_text(yaml.safe_dump(one.config, sort_keys=False), encoding="utf-8")
    steps, size = one.steps, target.stat().st_size
    print(f"{side}: recorded steps {recorded_seconds(one) * 1e3:.1f} ms on average, {size / 1e3:.0f} kB")
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
        for side, ones in runs.items():
            keep(side, min(ones, key=recorded_seconds), folder)


if __name__ == "__main__":
    main()
