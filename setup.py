"""The compiled scanner. Everything else about the package is in pyproject.toml.

The extension is optional: without a C compiler the package installs all the same and reads with pyscan.py.
"""

import sys
import sysconfig

from setuptools import Extension, setup

# One wheel for Python 3.11 and later. Free-threaded builds have no limited API.
STABLE_ABI = not sysconfig.get_config_var("Py_GIL_DISABLED")
# A fused multiply-add would round differently from the Python twin.
FLAGS = ["/O2"] if sys.platform == "win32" else ["-O3", "-ffp-contract=off", "-Wall", "-Wextra"]

setup(
    ext_modules=[
        Extension(
            "profiler.xplane._scan",
            ["profiler/xplane/_scan.c"],
            define_macros=[("Py_LIMITED_API", "0x030B0000")] if STABLE_ABI else [],
            extra_compile_args=FLAGS,
            py_limited_api=STABLE_ABI,
            optional=True,
        )
    ],
    options={"bdist_wheel": {"py_limited_api": "cp311"}} if STABLE_ABI else {},
)
