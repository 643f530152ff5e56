"""profiler: this run got faster (or slower), so why?"""

from profiler.api import Options, diff, load, ops, summary
from profiler.errors import ProfilerError

__all__ = ["Options", "ProfilerError", "diff", "load", "ops", "summary"]
__version__ = "0.1.0"
