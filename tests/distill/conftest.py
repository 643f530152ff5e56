"""What tests of several compiles share: a compile that nobody made."""

from __future__ import annotations

from pathlib import Path

import pytest

from distill.aot import find
from distill.aot.compiler import Compiled

GIB = 1 << 30


def _compiled(config, topology="v5e-4", **changes):
    facts = {
        "config": config,
        "topology": find(topology),
        "quick": True,
        "folder": Path("cache"),
        "module": None,
        "memory": None,
        "calls": (),
        "capacity_bytes": 16 * GIB,
        "error": None,
        "seconds": {"compile": 2.0},
        "process_peak_bytes": None,
        "analysis": {},
        "kernels": (),
        "notes": (),
        "versions": {},
        "flags": "",
        "from_cache": False,
    }
    return Compiled(**facts | changes)


@pytest.fixture(scope="session")
def compiled():
    """A function that makes a ``Compiled`` of a configuration, with these facts or others."""
    return _compiled
