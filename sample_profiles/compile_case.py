"""Compiles the pairs in qwen3-30b/, qwen3-30b-pdbs8/ and gpt-oss-20b/: full size, for a TPU slice that is not there.

    python -m sample_profiles.compile_case [qwen3-30b …] [-o FOLDER]

Each side is what ``python -m distill compile RECIPE --topology tpu7x-4x4x4 -o …`` writes, compiled to the end, with the
recipe beside it. Compiles that are in the cache of ``distill compile`` are not made again; the first ones take minutes
each, those of gpt-oss-20b longer.
"""

from __future__ import annotations

import argparse
import gzip
import tempfile
from pathlib import Path

import yaml

from distill.cli import main as distill
from distill.config import load

TOPOLOGY = "tpu7x-4x4x4"
# The first is what the README opens; the others, which are larger, lie gzipped.
PAIRS = {"qwen3-30b": ".xplane.pb", "qwen3-30b-pdbs8": ".xplane.pb.gz", "gpt-oss-20b": ".xplane.pb.gz"}
SIDES = {"baseline": "base", "optimized": "opt"}


def compile_side(recipe: str, target: Path, suffix: str) -> None:
    """Writes one side: ``target`` with ``suffix``, and ``target``.yml.

    Raises:
        SystemExit: the compile failed or does not fit; it has said why.
    """
    with tempfile.TemporaryDirectory() as folder:
        code = distill(["compile", recipe, "--topology", TOPOLOGY, "-o", folder])
        if code:
            raise SystemExit(code)
        data = Path(folder, f"{recipe}.xplane.pb").read_bytes()
    packed = gzip.compress(data, mtime=0) if suffix.endswith(".gz") else data
    target.with_suffix(suffix).write_bytes(packed)
    config = yaml.safe_dump(load(recipe).to_dict(), sort_keys=False)
    target.with_suffix(".yml").write_text(config, encoding="utf-8")


def main() -> None:
    """Compiles the pairs that are named, or all."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("pairs", nargs="*", metavar="PAIR", help=f"default: all of {', '.join(PAIRS)}")
    parser.add_argument("-o", "--output", type=Path, default=Path(__file__).parent, help="default: this folder")
    args = parser.parse_args()
    unknown = sorted(set(args.pairs) - set(PAIRS))
    if unknown:
        parser.error(f"no pair {', '.join(unknown)}; there are: {', '.join(PAIRS)}")
    for pair in args.pairs or PAIRS:
        folder = args.output / pair
        folder.mkdir(parents=True, exist_ok=True)
        for side, recipe in SIDES.items():
            compile_side(f"{pair}-{recipe}", folder / side, PAIRS[pair])


if __name__ == "__main__":
    main()
