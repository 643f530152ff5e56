"""The reports that the docs script builds say what the JSON says."""

from __future__ import annotations

import html
import importlib.util
import json
import re
from pathlib import Path

import sample_profiles
from profiler.cli import main

SCRIPT = Path(__file__).resolve().parent.parent / "docs" / "build.py"


def test_the_reports_of_the_case_have_the_figures_of_its_json(tmp_path: Path) -> None:
    spec = importlib.util.spec_from_file_location("build_reports", SCRIPT)
    assert spec is not None and spec.loader is not None
    script = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(script)
    page, comment = (file.read_text(encoding="utf-8") for file in script.build(tmp_path, ["qwen3-30b"]))

    sides = [str(sample_profiles.path(f"qwen3-30b/{side}.xplane.pb")) for side in ("baseline", "optimized")]
    assert main(["diff", *sides, "-o", str(tmp_path / "diff.json")]) == 0
    diff = json.loads((tmp_path / "diff.json").read_text())
    gib = 1 << 30
    figures = [
        diff["verdict"].partition(". ")[0],
        f"{diff['delta']['mfu_points']:+.2f} points",
        f"{100 * diff['baseline']['mfu']:.2f} %",
        f"{100 * diff['optimized']['mfu']:.2f} %",
        f"{diff['optimized']['steps']['mean_ps'] / 1e12:.3f} s",
        f"{diff['optimized']['memory']['static_peak_bytes'] / gib:.2f} GiB",
    ]
    text = html.unescape(re.sub(r"<[^>]*>", "", page))
    for figure in figures:
        assert figure in text, figure
        assert figure in comment, figure
    assert str(Path(sides[0]).parent) not in page + comment
