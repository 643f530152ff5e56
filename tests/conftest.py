"""Fixtures that every test folder shares."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent


@pytest.fixture(scope="session")
def recordings() -> Path:
    """The folder of real recordings beside the checkout. Without it a test is skipped, in CI it fails."""
    folder = ROOT.parent / "shared" / "profiles"
    if not folder.is_dir():
        reason = f"no real recordings at {folder}"
        pytest.fail(reason) if os.environ.get("CI") else pytest.skip(reason)
    return folder


@pytest.fixture(scope="session")
def run_cli(tmp_path_factory: pytest.TempPathFactory) -> Callable[..., subprocess.CompletedProcess[str]]:
    """Runs ``python -m profiler ARGS`` as a process of its own: plain output, 100 columns, no settings of the caller.

    Keyword ``env`` adds variables, ``cwd`` sets the folder (an empty one unless given), ``timeout`` the seconds.
    """
    empty = tmp_path_factory.mktemp("cwd")
    kept = {"PATH", "HOME", "TMPDIR", "SYSTEMROOT", "PYTHONPATH", "VIRTUAL_ENV"}

    def run(*args: object, env: dict[str, str] | None = None, cwd: Path = empty, timeout: float = 120):
        clean = {name: value for name, value in os.environ.items() if name in kept}
        clean |= {"NO_COLOR": "1", "COLUMNS": "100", "PYTHONUTF8": "1", **(env or {})}
        command = [sys.executable, "-m", "profiler", *map(str, args)]
        return subprocess.run(command, capture_output=True, text=True, env=clean, cwd=cwd, timeout=timeout, check=False)

    return run
