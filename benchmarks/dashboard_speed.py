"""How long the dashboard's pages take, and what memory they need, on generated pairs of any size.

    python benchmarks/dashboard_speed.py --size 20MB --size 200MB

Every page runs in Streamlit's own test harness in a process of its own: the first view reads both files, a page's first
view makes its analysis, a warm one has everything. Times are the server's, without the browser's drawing.
"""

from __future__ import annotations

import argparse
import json
import resource
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

HERE = Path(__file__).parent
WARM_RUNS = 3


def main() -> None:
    """Measures each size in a fresh process and prints a table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--size", action="append", metavar="N", help="of each of the two files (20MB and 200MB)")
    parser.add_argument("--measure", nargs=2, metavar="FILE", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.measure:
        print(json.dumps(measure(*options.measure)))
        return
    for size in options.size or ["20MB", "200MB"]:
        with tempfile.TemporaryDirectory() as folder:
            files = [Path(folder) / f"{side}.xplane.pb" for side in ("baseline", "optimized")]
            for file in files:
                variant = file.name.partition(".")[0]
                generate = [sys.executable, str(HERE / "generate.py"), "--size", size, "--variant", variant]
                subprocess.run([*generate, "-o", str(file)], check=True, stdout=subprocess.DEVNULL)
            command = [sys.executable, __file__, "--measure", *map(str, files)]
            found = json.loads(subprocess.run(command, check=True, stdout=subprocess.PIPE).stdout)
            mebibytes = [file.stat().st_size / 2**20 for file in files]
        report(size, mebibytes, found)


def measure(base: str, opt: str) -> dict[str, Any]:
    """Seconds of the first and of warm views of every page, and the peak of resident memory in bytes."""
    from streamlit.testing.v1 import AppTest

    import dashboard
    from dashboard.pages import PAGES

    sys.argv = ["app.py", base, opt]
    app = AppTest.from_file(str(Path(dashboard.__file__).parent / "app.py"), default_timeout=600)
    pages: dict[str, list[float]] = {}
    for name in [page[0] for page in PAGES]:
        if pages:
            app.switch_page(f"views/{name}.py")
        taken = []
        for _ in range(1 + WARM_RUNS):
            begun = time.perf_counter()
            app.run()
            taken.append(time.perf_counter() - begun)
            if app.exception:
                raise SystemExit(f"{name}: {app.exception[0].message}")
        pages[name] = [taken[0], min(taken[1:])]
    return {"pages": pages, "peak_bytes": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024}


def report(size: str, mebibytes: list[float], found: dict[str, Any]) -> None:
    """One table, in Markdown."""
    files = " and ".join(f"{each:.0f} MiB" for each in mebibytes)
    print(f"\n{size} each ({files}), peak {found['peak_bytes'] / 2**30:.2f} GiB\n")
    print("| page | first view, s | warm, ms |\n|---|---:|---:|")
    for name, (first, warm) in found["pages"].items():
        print(f"| {name} | {first:.2f} | {1000 * warm:.0f} |")


if __name__ == "__main__":
    main()
