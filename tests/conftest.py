"""Fixtures that every test folder shares."""

from __future__ import annotations

import importlib.util
import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import settings

from profiler.xplane.write import SpaceBuilder

ROOT = Path(__file__).resolve().parent.parent

# How long an example takes says how busy the machine is, and no test may depend on that.
settings.register_profile("profiler", deadline=None)
settings.load_profile("profiler")


@pytest.fixture(scope="session")
def recordings() -> Path:
    """The folder of real recordings beside the checkout. Without it a test is skipped, in CI it fails."""
    folder = ROOT.parent / "shared" / "profiles"
    if not folder.is_dir():
        reason = f"no real recordings at {folder}"
        pytest.fail(reason) if os.environ.get("CI") else pytest.skip(reason)
    return folder


@pytest.fixture(scope="session")
def unprinted() -> Callable[[Path, str], list[str]]:
    """The lines of a page's example that a command does not print; widths of columns are a matter of rich's version."""

    def words(text: str) -> list[str]:
        return [" ".join(line.split()) for line in text.splitlines() if line.strip("─ ")]

    def missing(page: Path, printed: str) -> list[str]:
        example = words(page.read_text("utf-8").partition("```text\n")[2].partition("```")[0])
        assert example
        found = words(printed)
        return [line for line in example if line not in found]

    return missing


@pytest.fixture(scope="session")
def load_helper() -> Callable[[Path], Any]:
    """A module that lies beside the tests, by its path: they are no package that could be imported from."""

    def load(path: Path) -> Any:
        spec = importlib.util.spec_from_file_location(path.stem, path)
        assert spec is not None and spec.loader is not None
        module = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(module)
        return module

    return load


@pytest.fixture(scope="session")
def chrome(load_helper: Callable[[Path], Any], tmp_path_factory: pytest.TempPathFactory) -> Iterator[Any]:
    """Headless Chromium with one tab: ``Chrome`` of browser.py. Without it a test is skipped, in CI it fails."""
    browser = load_helper(ROOT / "tests" / "browser.py")
    binary = browser.find()
    if binary is None:
        reason = f"no Chromium on the PATH (looked for {', '.join(browser.NAMES)})"
        pytest.fail(reason) if os.environ.get("CI") else pytest.skip(reason)
    started = browser.Chrome(binary, tmp_path_factory.mktemp("chromium"))
    yield started
    started.close()


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


@pytest.fixture
def tpu_space() -> Callable[..., SpaceBuilder]:
    """Builds a one-program TPU trace from {device: {line: [(op, start, duration)]}}; times in ps, op as an HLO name."""

    def build(devices: dict[str, dict[str, list[tuple[str, int, int]]]], **stats: Any) -> SpaceBuilder:
        space = SpaceBuilder(hostnames=("host-0",))
        for device, lines in devices.items():
            plane = space.plane(f"/device:{device}", stats={"device_type_string": "TPU v6 Lite", **stats})
            for name, events in lines.items():
                line = plane.line(name)
                for op, start, duration in events:
                    if name in ("Steps", "XLA Modules"):
                        line.event(op, start, duration)
                        continue
                    opcode = op.split(".")[0]
                    line.event(
                        f"%{op} = f32[8]{{0}} {opcode}(f32[8]{{0}} %x)",
                        start,
                        duration,
                        display_name=op,
                        metadata_stats={
                            "program_id": 7,
                            "symbol_id": 1 + sum(ord(c) * 31**i for i, c in enumerate(op)) % 10**9,
                            "hlo_category": opcode,
                            "flops": 16,
                            "bytes_accessed": 64,
                            "tf_op": f"jit(step)/jvp()/{opcode}:",
                        },
                    )
        return space

    return build


@pytest.fixture
def saved(tmp_path: Path) -> Callable[..., str]:
    """Writes a space to a file and gives its path as an argument."""

    def write(space: SpaceBuilder, name: str = "host-0.xplane.pb") -> str:
        path = tmp_path / name
        path.parent.mkdir(parents=True, exist_ok=True)
        return str(space.write(path))

    return write
