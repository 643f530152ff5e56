"""The Python examples of the documentation run as they stand, beside a profile named run.xplane.pb."""

from __future__ import annotations

import gzip
import importlib.util
import re
import subprocess
import sys
from pathlib import Path

import pytest

import sample_profiles

ROOT = Path(__file__).resolve().parent.parent
PAGES = sorted([ROOT / "README.md", *(ROOT / "docs").rglob("*.md")])
EXAMPLES = [
    (page, block)
    for page in PAGES
    for block in re.findall(r"^```python\n(.*?)^```", page.read_text("utf-8"), re.M | re.S)
]


@pytest.mark.parametrize(("page", "block"), EXAMPLES, ids=lambda value: value.stem if isinstance(value, Path) else "")
def test_a_python_example_runs(page: Path, block: str, tmp_path: Path) -> None:
    if "import jax" in block and importlib.util.find_spec("jax") is None:
        pytest.skip("an example of the trainer, and jax is not installed")
    sample = gzip.decompress(sample_profiles.path("cpu-remat/baseline.xplane.pb.gz").read_bytes())
    (tmp_path / "run.xplane.pb").write_bytes(sample)
    done = subprocess.run([sys.executable, "-c", block], cwd=tmp_path, capture_output=True, text=True, check=False)
    assert done.returncode == 0, f"{page}: {done.stderr}"


def test_links_between_pages_lead_somewhere() -> None:
    for page in PAGES:
        for target in re.findall(r"\]\(([^)#]+)(?:#[^)]*)?\)", page.read_text("utf-8")):
            if not target.startswith(("http", "mailto:")):
                assert (page.parent / target).exists(), f"{page}: {target}"
