"""What is installed, what it needs, and whether the samples say what their README says."""

from __future__ import annotations

import gzip
import importlib.metadata
import os
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest
import yaml

import profiler
import sample_profiles
from profiler.xplane import scan
from profiler.xplane.schema import xspace

ROOT = Path(__file__).resolve().parent.parent


def sample(side: str):
    """The sample's XSpace."""
    return xspace().XSpace.FromString(
        gzip.decompress(sample_profiles.path(f"cpu-remat/{side}.xplane.pb.gz").read_bytes())
    )


def test_the_installed_version_is_the_one_in_the_source():
    assert importlib.metadata.version("profiler") == profiler.__version__


PACKAGES = {path.parent for top in ("profiler", "distill", "dashboard") for path in (ROOT / top).rglob("*.py")}


@pytest.mark.parametrize("folder", sorted(str(path.relative_to(ROOT)) for path in PACKAGES))
def test_every_folder_of_modules_is_a_package_that_says_what_it_is_for(folder):
    # Without an __init__.py it would work in a checkout and be missing from the wheel.
    assert (ROOT / folder / "__init__.py").read_text().startswith('"""')


def test_the_command_line_loads_nothing_that_only_extras_bring():
    code = (
        "import sys, profiler, profiler.cli, profiler.api, profiler.compare, profiler.report;"
        "extras = {'jax', 'xprof', 'streamlit', 'plotly', 'scipy', 'tensorflow', 'pandas', 'fsspec', 'aiohttp'};"
        "print(sorted(extras & set(sys.modules)))"
    )
    result = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert result.stdout.strip() == "[]"


def test_every_package_is_listed_for_the_wheel():
    listed = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["setuptools"]["packages"]
    folders = {str(path.relative_to(ROOT)).replace(os.sep, ".") for path in PACKAGES} | {"sample_profiles"}
    assert set(listed) == folders


@pytest.mark.skipif(not os.environ.get("CI") or "PROFILER_SCANNER" in os.environ, reason="only promised in CI")
def test_the_scanner_is_compiled():
    assert scan.COMPILED


def test_the_readme_has_two_commands_on_files_that_exist():
    commands = [line for line in (ROOT / "README.md").read_text().splitlines() if line.startswith("pip install -e")]
    assert len(commands) == 2
    assert all(command.count("&&") == 1 for command in commands)
    files = commands[0].split("profiler diff")[1]
    listed = subprocess.run(["bash", "-c", f"ls {files}"], cwd=ROOT, capture_output=True, text=True, check=True)
    assert len(listed.stdout.split()) == 2


def test_a_sample_that_does_not_exist_is_named():
    with pytest.raises(FileNotFoundError, match=r"nothing\.pb"):
        sample_profiles.path("nothing.pb")


def test_the_sample_configurations_differ_in_the_one_knob():
    base, opt = (
        yaml.safe_load(sample_profiles.path(f"cpu-remat/{side}.yml").read_text()) for side in ("baseline", "optimized")
    )
    assert {key for key in base if base[key] != opt[key]} == {"remat_policy"}


@pytest.mark.parametrize(("side", "rematerialised"), [("baseline", True), ("optimized", False)])
def test_a_sample_holds_steps_ops_and_their_program(side, rematerialised):
    steps, ops, programs = [], 0, b""
    for plane in sample(side).planes:
        names = {entry.key: entry.value.name for entry in plane.stat_metadata}
        for line in plane.lines:
            for event in line.events:
                stats = {names[stat.metadata_id]: stat for stat in event.stats}
                steps += [stats[b"step_num"].int64_value] if b"step_num" in stats else []
                ops += b"hlo_op" in stats
        programs += b"".join(
            stat.bytes_value
            for entry in plane.event_metadata
            for stat in entry.value.stats
            if names[stat.metadata_id] == b"Hlo Proto"
        )
    assert steps == list(range(4, 12))
    assert ops > 3000
    assert b"jit(train_step)" in programs
    assert (b"rematted_computation" in programs) == rematerialised


@pytest.mark.parametrize("side", ["baseline", "optimized"])
def test_a_sample_does_not_tell_where_it_was_recorded(side):
    data = gzip.decompress(sample_profiles.path(f"cpu-remat/{side}.xplane.pb.gz").read_bytes())
    assert not [place for place in (b"/home/", b"/root/", b"/tmp/", b"/Users/") if place in data]


def test_every_file_of_the_dashboard_is_in_the_wheel_and_in_the_source_archive():
    data = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["setuptools"]["package-data"]
    listed = {
        path
        for package, patterns in data.items()
        if package.split(".")[0] == "dashboard"
        for pattern in patterns
        for path in (ROOT / package.replace(".", os.sep)).glob(pattern)
    }
    files = {
        path
        for path in (ROOT / "dashboard").rglob("*")
        if path.is_file() and path.suffix not in (".py", ".pyc") and "__pycache__" not in path.parts
    }
    assert files == listed
    archived = next(line for line in (ROOT / "MANIFEST.in").read_text().splitlines() if "include dashboard" in line)
    assert {f"*{path.suffix}" for path in files} <= set(archived.split())
