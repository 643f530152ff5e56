"""Small recorded pairs that the README, the tests and the dashboard open. How each was made is in README.md."""

from __future__ import annotations

from importlib.resources import files
from pathlib import Path


def path(name: str) -> Path:
    """The path of one sample file or folder, for example ``path("cpu-remat/baseline.xplane.pb")``.

    Raises:
        FileNotFoundError: there is no such sample.
    """
    found = Path(str(files(__name__))) / name
    if not found.exists():
        raise FileNotFoundError(f"no sample profile {name!r}")
    return found
