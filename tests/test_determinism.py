"""The same inputs give the same bytes, in every format, whatever the hash seed and the number of threads."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

import sample_profiles

# Every command in one process: {name: digest of its bytes}.
CODE = """
import contextlib, hashlib, io, json, sys, tempfile
from pathlib import Path
from profiler import cli

base, opt = sys.argv[1:3]
folder = Path(tempfile.mkdtemp())
commands = {name: [name, base, opt] for name in ("diff", "check", "ladder")}
commands["check"] += ["--warn-on", "throughput<-1%", "remat>0", "idle>+1ms", "loss>+0.1%"]
one = ("summary", "ops", "kernels", "memory", "remat", "roofline", "comm", "health", "hosts")
commands |= {name: [name, base] for name in one}
found = {}
for name, arguments in commands.items():
    formats = ["text", "json", "markdown"] + ["csv"] * (name != "check") + ["parquet"] * (name == "ops")
    for how in formats:
        for more in ([], ["--redact"]) if name == "diff" else ([],):
            path = folder / "out"
            page = ["--html", str(folder / "page.html")] if (name, how) == ("diff", "json") else []
            with contextlib.redirect_stderr(io.StringIO()) as said:
                code = cli.main([*arguments, *more, *page, "--top", "0", "--format", how, "-o", str(path)])
            assert code == 0, said.getvalue()
            key = " ".join([name, how, *more])
            found[key] = hashlib.sha256(path.read_bytes()).hexdigest()
            if page:
                found[key + " html"] = hashlib.sha256((folder / "page.html").read_bytes()).hexdigest()
print(json.dumps(found))
"""


@pytest.mark.slow
@pytest.mark.parametrize("pair", ["cpu-remat", "tiny-qwen3"])
def test_two_processes_write_the_same_bytes(pair: str, tmp_path: Path) -> None:
    sides = [str(sample_profiles.path(f"{pair}/{side}.xplane.pb.gz")) for side in ("baseline", "optimized")]
    runs = []
    for seed, threads in (("1", "1"), ("2", "4")):
        environment = {**os.environ, "PYTHONHASHSEED": seed, "POLARS_MAX_THREADS": threads}
        command = [sys.executable, "-c", CODE, *sides]
        done = subprocess.run(command, capture_output=True, text=True, env=environment, cwd=tmp_path, check=False)
        assert done.returncode == 0, done.stderr
        runs.append(json.loads(done.stdout))
    assert [name for name in runs[0] if runs[0][name] != runs[1][name]] == []
    assert len(runs[0]) == 54
