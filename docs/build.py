"""Builds the reports of the sample pairs: what a pull request gets, to look at before there is one.

python docs/build.py            # docs/reports/PAIR.html and PAIR.md
python docs/build.py -o FOLDER  # elsewhere
"""

from __future__ import annotations

import argparse
from collections.abc import Iterable
from pathlib import Path

import sample_profiles
from profiler.cli import main as profiler

PAIRS = {
    "qwen3-30b": ".xplane.pb",
    "qwen3-30b-pdbs8": ".xplane.pb.gz",
    "gpt-oss-20b": ".xplane.pb.gz",
    "tiny-qwen3": ".xplane.pb.gz",
    "tiny-gpt-oss": ".xplane.pb.gz",
}


def build(folder: Path, pairs: Iterable[str] = tuple(PAIRS)) -> list[Path]:
    """Writes both reports of each pair, and gives the files.

    Raises:
        SystemExit: a report could not be made; it has said why.
    """
    folder.mkdir(parents=True, exist_ok=True)
    written = []
    for pair in pairs:
        sides = [str(sample_profiles.path(f"{pair}/{side}{PAIRS[pair]}")) for side in ("baseline", "optimized")]
        page, comment = folder / f"{pair}.html", folder / f"{pair}.md"
        for command in (["report", *sides, "-o", str(page)], ["diff", *sides, "-o", str(comment)]):
            if code := profiler([*command, "--redact"]):
                raise SystemExit(code)
        written += [page, comment]
    return written


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("-o", "--output", type=Path, default=Path(__file__).parent / "reports")
    build(parser.parse_args().output)
