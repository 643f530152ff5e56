"""The reduced form of a run: what is left of its hosts' profiles when the spans of all devices but one are left out.

A folder of parquet tables and a manifest, about a hundredth of the profiles; docs/reduced.md documents each of them.

    profiler.reduced.write.reduce_run(locate("logs/run").recordings[0], Path("run.parquet"))
    profiler.api.summary("run.parquet")
"""

from __future__ import annotations

VERSION = 1  # of the format: a reader refuses what is newer

HOSTS, STEPS, OPS, PROGRAMS, RUN_INFO = (
    "hosts.parquet",
    "steps.parquet",
    "ops.parquet",
    "programs.parquet",
    "run_info.json",
)
SUMS, SPANS, MODULES = "sums", "spans", "modules"  # folders: sums by 16 hosts, spans and modules by device
HOSTS_PER_SUMS = 16


def sums_name(host: int) -> str:
    """The table with the op sums of a host."""
    return f"{SUMS}/{host // HOSTS_PER_SUMS:05}.parquet"


def device_name(host: int, device: int) -> str:
    """How the tables of one kept device are called: spans/00012-3.parquet."""
    return f"{host:05}-{device}.parquet"
