"""Times the scanner alone on one file that is in memory: bytes read per CPU second, which is per core.

python benchmarks/scan_speed.py big.xplane.pb
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from profiler.xplane import scan
from profiler.xplane.schema import xspace

REPETITIONS = 3


def span_stats(data: bytes, plane: scan.Plane) -> scan.SpanStats:
    """The numbers that this plane gives to the stats of a span."""
    metadata = xspace().XPlane.FromString(b"".join(data[start:end] for start, end in plane.metadata))
    ids = {entry.value.name.decode(errors="replace"): entry.key for entry in metadata.stat_metadata}
    return scan.SpanStats(**{name: ids.get(name, -1) for name in scan.SpanStats.__dataclass_fields__})


def least_cpu(work: Callable[[], Any]) -> float:
    """CPU seconds of the fastest repetition."""
    seconds = []
    for _ in range(REPETITIONS):
        start = time.process_time()
        work()
        seconds.append(time.process_time() - start)
    return min(seconds)


def main() -> None:
    """Prints megabytes per CPU second of the index and of the per-op sums with self time."""
    parser = argparse.ArgumentParser(description="Time the scanner alone.")
    parser.add_argument("trace", type=Path)
    data = parser.parse_args().trace.read_bytes()
    space = scan.index(data)
    lines = [
        (line, span_stats(data, plane))
        for plane in space.planes
        if plane.name.startswith("/device:")
        for line in plane.lines
    ]
    read = sum(line.end - line.start for line, _ in lines)
    index = least_cpu(lambda: scan.index(data))
    sums = least_cpu(lambda: [scan.op_sums(data, line, stats) for line, stats in lines])
    print(
        f"{'compiled' if scan.COMPILED else 'pure Python'} scanner, MB per CPU second: "
        f"index {len(data) / index / 1e6:,.0f}, op sums with self time {read / sums / 1e6:,.0f}"
    )


if __name__ == "__main__":
    main()
