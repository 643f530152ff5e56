"""Times profiler against xprof on generated recordings, whole process against whole process.

    python benchmarks/compare_xprof.py                           # ops at 20 MB and 200 MB, diff, --help, scan
    python benchmarks/compare_xprof.py --sizes 20MB 200MB 1GB --xprof-up-to 20MB --repetitions 3

For each size ``profiler ops FILE --format json`` and xprof's ``hlo_stats`` read the same file in turn. CPU seconds are
user plus system time of the whole process with its threads, from the operating system (wait4), imports included; the
smallest of the repetitions counts, since other work on a machine can only add time. xprof may answer from a cache
beside the file, so each of its runs gets a fresh folder.
"""

from __future__ import annotations

import argparse
import importlib.util
import os
import shutil
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path

from generate import generate, parse_size

XPROF = """
import sys
from xprof.convert import raw_to_tool_data
data, _ = raw_to_tool_data.xspace_to_tool_data([sys.argv[1]], "hlo_stats", {"use_saved_result": False})
open(sys.argv[2], "wb").write(data if isinstance(data, bytes) else data.encode())
"""


@dataclass(frozen=True)
class Cost:
    """What one process took."""

    cpu_s: float
    wall_s: float
    peak_bytes: int


def measure(command: list[str]) -> Cost:
    """Runs a command to its end.

    Raises:
        SystemExit: the command failed; its errors are shown.
    """
    with tempfile.TemporaryFile() as errors:
        start = time.perf_counter()
        process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=errors)
        _, status, usage = os.wait4(process.pid, 0)
        wall = time.perf_counter() - start
        process.returncode = os.waitstatus_to_exitcode(status)
        if process.returncode:
            errors.seek(0)
            sys.exit(f"{' '.join(command)}\nexit code {process.returncode}\n{errors.read().decode(errors='replace')}")
    scale = 1 if sys.platform == "darwin" else 1024  # Linux counts in kilobytes
    return Cost(usage.ru_utime + usage.ru_stime, wall, usage.ru_maxrss * scale)


def least(costs: list[Cost]) -> Cost:
    """The smallest value of each kind."""
    return Cost(min(c.cpu_s for c in costs), min(c.wall_s for c in costs), min(c.peak_bytes for c in costs))


def profiler(*args: object) -> list[str]:
    """The command line of a profiler command under this Python."""
    return [sys.executable, "-m", "profiler", *map(str, args)]


def ops_against_xprof(trace: Path, folder: Path, repetitions: int, with_xprof: bool) -> tuple[Cost, Cost | None]:
    """The least cost of ``profiler ops`` and of xprof on one file, run in turn."""
    ours, theirs = [], []
    for _ in range(repetitions):
        ours.append(measure(profiler("ops", trace, "--format", "json", "-o", folder / "ops.json")))
        if with_xprof:
            with tempfile.TemporaryDirectory(dir=folder) as fresh:
                copy = Path(fresh) / trace.name
                try:
                    copy.hardlink_to(trace)
                except OSError:
                    shutil.copyfile(trace, copy)
                theirs.append(measure([sys.executable, "-c", XPROF, str(copy), str(Path(fresh) / "out.json")]))
    return least(ours), least(theirs) if theirs else None


def show(name: str, cost: Cost, against: Cost | None = None, size: int | None = None) -> None:
    """One row of the table, with what the same work costs elsewhere times as much as here."""
    row = f"{name:34} {cost.cpu_s:9.2f} {cost.wall_s:9.2f} {cost.peak_bytes / 1e6:10.0f}"
    row += f" {cost.peak_bytes / size:9.2f}×" if size else " " * 11
    if against:
        row += f"   CPU {against.cpu_s / cost.cpu_s:.0f} ×, wall {against.wall_s / cost.wall_s:.0f} ×,"
        row += f" memory {against.peak_bytes / cost.peak_bytes:.1f} × as much"
    print(row.rstrip(), flush=True)


def main() -> None:
    """Command line."""
    parser = argparse.ArgumentParser(description="Time profiler against xprof.")
    parser.add_argument("--sizes", type=parse_size, nargs="*", default=[20 * 10**6, 200 * 10**6])
    parser.add_argument("--xprof-up-to", type=parse_size, default=200 * 10**6, help="largest size given to xprof")
    parser.add_argument("--repetitions", type=int, default=3)
    parser.add_argument("--devices", type=int, default=4)
    args = parser.parse_args()
    has_xprof = importlib.util.find_spec("xprof") is not None
    if not has_xprof:
        print("xprof is not installed (pip install 'profiler[xprof]'): profiler alone")

    with tempfile.TemporaryDirectory() as temporary:
        folder = Path(temporary)
        print(f"{'':34} {'CPU s':>9} {'wall s':>9} {'peak MB':>10} {'of file':>10}   what xprof takes")
        show("profiler --help", least([measure(profiler("--help")) for _ in range(args.repetitions)]))
        pair = [folder / f"{variant}.xplane.pb" for variant in ("baseline", "optimized")]
        for path in pair:
            generate(path, 20 * 10**6, path.name.split(".")[0], devices=4)
        diff = profiler("diff", *pair, "--format", "json", "-o", folder / "diff.json")
        show("profiler diff, two of 20 MB", least([measure(diff) for _ in range(args.repetitions)]))
        for size in args.sizes:
            trace = folder / f"size{size}.xplane.pb"
            facts = generate(trace, size, devices=args.devices)
            name = f"{facts['bytes'] / 1e6:.0f} MB, {facts['events'] / 1e6:.2f} M events"
            with_xprof = has_xprof and size <= args.xprof_up_to
            ours, theirs = ops_against_xprof(trace, folder, args.repetitions, with_xprof)
            show(f"profiler ops, {name}", ours, theirs, trace.stat().st_size)
            if theirs:
                show(f"xprof hlo_stats, {name}", theirs, size=trace.stat().st_size)
            print("  ", end="", flush=True)
            subprocess.run([sys.executable, Path(__file__).with_name("scan_speed.py"), trace], check=True)
            trace.unlink()


if __name__ == "__main__":
    main()
