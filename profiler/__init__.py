"""profiler: this run got faster (or slower), so why?"""

from profiler.api import Options, diff, kernels, load, ops, remat, roofline, summary
from profiler.errors import ProfilerError

__all__ = ["Options", "ProfilerError", "diff", "kernels", "load", "ops", "remat", "roofline", "summary"]
__version__ = "0.1.0"
