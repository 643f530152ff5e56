"""profiler: this run got faster (or slower), so why?"""

from profiler.api import Options, comm, diff, kernels, load, memory, ops, remat, roofline, summary
from profiler.errors import ProfilerError

__all__ = [
    "Options",
    "ProfilerError",
    "comm",
    "diff",
    "kernels",
    "load",
    "memory",
    "ops",
    "remat",
    "roofline",
    "summary",
]
__version__ = "0.1.0"
