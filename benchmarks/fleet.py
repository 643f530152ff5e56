"""Reduces runs of many hosts: time, CPU, memory of all processes together, size; and that nothing differs.

    python benchmarks/fleet.py                                   # 8, 16 and 64 hosts of 20 MB, 1 and 2 workers
    python benchmarks/fleet.py --hosts 4 8 --size 5MB --workers 1 2 4

Hosts are generated (``generate.py``): one program, times and a clock of their own, planes that are called alike. Memory
is the proportional share (PSS) of the command and all processes below it, looked at every 20 ms, so that a page that
several share counts once; CPU seconds are those of all of them. Each command runs once, imports included. Linux only.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import tempfile
import threading
import time
from dataclasses import dataclass
from pathlib import Path

from generate import generate, parse_size

CHECK = """
import sys
import numpy as np
from profiler.reduce import load
from profiler.xplane.locate import locate
one, other = (load(locate(path), all_devices=path == sys.argv[2]).fleet for path in sys.argv[1:3])
assert one.groups == other.groups and np.array_equal(one.group_steps, other.group_steps)
assert [each.name for each in one.devices] == [each.name for each in other.devices]
assert all(np.array_equal(a.spans, b.spans) for a, b in zip(one.windows, other.windows))
"""


@dataclass(frozen=True)
class Cost:
    """What a command and the processes below it took."""

    wall_s: float
    cpu_s: float
    peak_bytes: int


def measure(command: list[str]) -> Cost:
    """Runs a command to its end.

    Raises:
        SystemExit: it failed; its errors are shown.
    """
    with tempfile.TemporaryFile() as errors:
        start = time.perf_counter()
        process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=errors)
        peak = Peak(process.pid)
        _, status, usage = os.wait4(process.pid, 0)
        wall = time.perf_counter() - start
        process.returncode = os.waitstatus_to_exitcode(status)
        if process.returncode:
            errors.seek(0)
            sys.exit(f"{' '.join(command)}\nexit code {process.returncode}\n{errors.read().decode(errors='replace')}")
    return Cost(wall, usage.ru_utime + usage.ru_stime, peak.end())


class Peak(threading.Thread):
    """Watches the memory of a process and all below it."""

    def __init__(self, pid: int):
        super().__init__(daemon=True)
        self.pid, self.most, self.over = pid, 0, threading.Event()
        self.start()

    def run(self) -> None:
        """Looks until it is told to end."""
        while not self.over.wait(0.02):
            self.most = max(self.most, sum(map(pss, tree(self.pid))))

    def end(self) -> int:
        """The largest sum that was seen, bytes."""
        self.over.set()
        self.join()
        return self.most


def tree(pid: int) -> list[int]:
    """A process and all below it."""
    found = [pid]
    for each in found:
        try:
            for task in Path(f"/proc/{each}/task").iterdir():
                found += map(int, (task / "children").read_text().split())
        except OSError:  # it ended meanwhile
            continue
    return found


def pss(pid: int) -> int:
    """Bytes of a process, of shared pages its share; 0 where it is gone."""
    try:
        lines = Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines()
        return next(int(line.split()[1]) << 10 for line in lines if line.startswith("Pss:"))
    except (OSError, StopIteration):
        return 0


def size(folder: Path) -> int:
    """Bytes of all files."""
    return sum(path.stat().st_size for path in folder.rglob("*") if path.is_file())


def content(folder: Path) -> dict[str, bytes]:
    """All files."""
    return {str(path.relative_to(folder)): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


def main() -> None:
    """Command line."""
    parser = argparse.ArgumentParser(description="Measure runs of many hosts.")
    parser.add_argument("--hosts", type=int, nargs="+", default=[8, 16, 64])
    parser.add_argument("--size", type=parse_size, default="20MB", help="bytes of a host's file (default 20MB)")
    parser.add_argument("--workers", type=int, nargs="+", default=[1, 2])
    parser.add_argument("--folder", type=Path, help="where the files go, for a while (default: a temporary one)")
    args = parser.parse_args()
    with tempfile.TemporaryDirectory(dir=args.folder) as folder:
        run(Path(folder), args.hosts, args.size, args.workers)


def run(folder: Path, hosts: list[int], bytes_per_host: int, workers: list[int]) -> None:
    """Generates, reduces and compares."""
    files = []
    for number in range(max(hosts)):
        files.append(folder / f"host-{number:04}.xplane.pb")
        generate(files[-1], bytes_per_host, host=f"host-{number:04}")
    profiler = [sys.executable, "-m", "profiler"]
    print("| hosts | MB | workers | wall s | CPU s | CPU s per GB | peak MB | reduced MB | of the profiles |")
    print("|---:|---:|---:|---:|---:|---:|---:|---:|---:|")
    for count in hosts:
        here = folder / f"run-{count}"
        here.mkdir()
        for file in files[:count]:
            (here / file.name).hardlink_to(file)
        total = size(here)
        reduced = []
        for number in workers:
            reduced.append(folder / f"{count}-{number}.parquet")
            cost = measure([*profiler, "reduce", str(here), "-o", str(reduced[-1]), "--workers", str(number)])
            small = size(reduced[-1])
            print(
                f"| {count} | {total / 1e6:,.0f} | {number} | {cost.wall_s:.1f} | {cost.cpu_s:.1f} | "
                f"{cost.cpu_s / total * 1e9:.1f} | {cost.peak_bytes / 1e6:,.0f} | {small / 1e6:.2f} | "
                f"{small / total:.2%} |",
                flush=True,
            )
        for name, path in (("the profiles", here), ("the reduced run", reduced[0])):
            cost = measure([*profiler, "summary", str(path)])
            print(
                f"summary of {name}, {count} hosts: {cost.wall_s:.1f} s, {cost.cpu_s:.1f} CPU s, "
                f"{cost.peak_bytes / 1e6:,.0f} MB",
                file=sys.stderr,
            )
        if any(content(each) != content(reduced[0]) for each in reduced):
            sys.exit(f"{count} hosts: the bytes depend on the number of workers")
        cost = measure([sys.executable, "-c", CHECK, str(reduced[0]), str(here)])
        print(
            f"{count} hosts: equal bytes, and the figures of all devices in one process "
            f"({cost.wall_s:.1f} s, {cost.peak_bytes / 1e6:,.0f} MB)",
            file=sys.stderr,
        )


if __name__ == "__main__":
    main()
