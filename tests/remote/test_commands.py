"""Commands on URLs, as processes of their own: the same answers, no secrets, interruptions, many at once."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

import sample_profiles
from profiler import cli

Run = Callable[..., subprocess.CompletedProcess[str]]
PAIR = ("/run/base.xplane.pb.gz", "/run/opt.xplane.pb.gz")
SECRETS = ("passw0rd", "s3cret")


@pytest.fixture
def pair(web) -> list[str]:
    """URLs of a recorded pair, with secrets."""
    for name, side in zip(PAIR, ("baseline", "optimized"), strict=True):
        web.files[name] = sample_profiles.path(f"cpu-remat/{side}.xplane.pb.gz").read_bytes()
    place = web.url.replace("://", "://ada:passw0rd@")
    return [f"{place}{name}?X-Amz-Signature=s3cret" for name in PAIR]


def test_a_diff_of_urls_is_that_of_the_files(run_cli: Run, web, pair: list[str], tmp_path: Path) -> None:
    env = {"PROFILER_CACHE": str(tmp_path / "cache")}
    done = run_cli("diff", *pair, "--format", "json", env=env)
    assert done.returncode == 0, done.stderr
    files = [str(sample_profiles.path(f"cpu-remat/{side}.xplane.pb.gz")) for side in ("baseline", "optimized")]
    local = run_cli("diff", f"base={files[0]}", f"opt={files[1]}", "--format", "json")
    far, near = json.loads(done.stdout), json.loads(local.stdout)
    assert [far[side]["file"] for side in ("baseline", "optimized")] == [web.url + name for name in PAIR]
    for side, name in zip(("baseline", "optimized"), files, strict=True):
        far[side]["file"] = near[side]["file"] = name
    text = [json.dumps(each) for each in (far, near)]
    for name, file in zip(PAIR, files, strict=True):
        text = [each.replace(web.url + name, file) for each in text]
    assert text[0] == text[1]
    assert not done.stderr


def test_no_output_holds_a_secret(web, pair: list[str], tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    web.files["/run/c.yml"] = b"base_num_decoder_layers: 4\n"
    config = pair[0].replace(PAIR[0], "/run/c.yml")
    pages = [tmp_path / name for name in ("page.html", "report.html", "trace.json")]
    commands: list[tuple[int, list[object]]] = [
        (0, ["diff", *pair, "--html", pages[0], "--config", config, config]),
        (0, ["diff", *pair, "--redact"]),
        (0, ["summary", f"x={pair[0]},{pair[1]}", "--format", "json"]),
        (0, ["config", config, config, "--format", "markdown"]),
        (0, ["ladder", *pair, "--format", "csv"]),
        (0, ["report", *pair, "-o", pages[1]]),
        (0, ["timeline", pair[0], "-o", pages[2]]),
        (3, ["summary", pair[0].replace("base", "none"), "--debug"]),
        (2, ["summary", *pair]),
        (3, ["summary", pair[0], "--config", config.replace("c.yml", "d.yml")]),
        (2, ["check", *pair, "--thresholds", config]),
    ]
    for code, arguments in commands:
        assert cli.main(list(map(str, arguments))) == code, capfd.readouterr()
    said = capfd.readouterr()
    texts = [said.out, said.err, *(page.read_text("utf-8") for page in pages), *map(str, tmp_path.rglob("*"))]
    assert not [text for text in texts if any(secret in text for secret in SECRETS)]
    assert f"{web.url}{PAIR[0]}" in said.out
    assert f"{web.url}/run/none.xplane.pb.gz: no such file" in said.err
    assert f"{web.url}{PAIR[0]}" in pages[0].read_text("utf-8")


def test_a_configuration_comes_by_url(run_cli: Run, web, tmp_path: Path) -> None:
    web.files |= {"/a.yml": b"remat_policy: full\n", "/b.yml": b"remat_policy: minimal\n"}
    done = run_cli("config", f"{web.url}/a.yml", f"{web.url}/b.yml", "--format", "json")
    delta = json.loads(done.stdout)
    assert (delta["baseline"], delta["optimized"]) == (f"{web.url}/a.yml", f"{web.url}/b.yml")
    assert "remat_policy" in done.stdout
    web.files["/a.yml"] = bytes(20 << 20)
    done = run_cli("config", f"{web.url}/a.yml", f"{web.url}/b.yml")
    assert (done.returncode, "is larger than 16 MiB" in done.stderr) == (3, True)


def test_without_the_extra_one_line_says_what_to_install(tmp_path: Path) -> None:
    code = (
        "import sys; sys.modules['fsspec'] = None; from profiler.cli import main;"
        "sys.exit(main(['summary', 'gs://bucket/a.xplane.pb']))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False, cwd=tmp_path)
    assert done.returncode == 3
    assert done.stderr == (
        "profiler: error: gs://bucket/a.xplane.pb: URLs need fsspec (pip install 'profiler[remote]')\n"
    )


def test_processes_that_want_the_same_file_fetch_it_once(run_cli: Run, web, pair: list[str], tmp_path: Path) -> None:
    web.pause_s = 0.3
    env = {"PROFILER_CACHE": str(tmp_path / "cache")}
    with ThreadPoolExecutor(3) as pool:
        done = list(pool.map(lambda _: run_cli("ops", pair[0], "--format", "csv", env=env), range(3)))
    assert [each.returncode for each in done] == [0, 0, 0], [each.stderr for each in done]
    assert len({each.stdout for each in done}) == 1
    assert len(web.gets) == 1
    (file,) = (tmp_path / "cache" / "remote").glob("*/*.gz")
    assert file.read_bytes() == web.files[PAIR[0]]


@pytest.mark.skipif(os.name == "nt", reason="signals of POSIX")
@pytest.mark.parametrize("how", [signal.SIGINT, signal.SIGKILL])
def test_an_interrupted_command_leaves_what_the_next_one_goes_on_with(
    run_cli: Run, web, tmp_path: Path, how: signal.Signals
) -> None:
    space = sample_profiles.path("cpu-remat/baseline.xplane.pb.gz").read_bytes()
    part = 8 << 20
    web.files["/big.xplane.pb.gz"] = space + bytes(4 * part - len(space))  # what follows a gzip member is left alone
    web.silent_from = part
    environ = {**os.environ, "PROFILER_CACHE": str(tmp_path / "cache")}
    command = [sys.executable, "-m", "profiler", "ops", f"{web.url}/big.xplane.pb.gz", "--format", "csv"]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=environ)
    folder = tmp_path / "cache" / "remote"
    for _ in range(400):
        partial = next(folder.glob("*/*.part"), None)
        if partial or process.poll() is not None:
            break
        time.sleep(0.05)
    if not partial:
        process.kill()
        pytest.fail(str(process.communicate()))
    begun = time.monotonic()
    process.send_signal(how)
    out, err = process.communicate(timeout=30)
    assert time.monotonic() - begun < 25
    assert process.returncode == (130 if how == signal.SIGINT else -signal.SIGKILL)
    assert (out, err) == ("", "")
    here = partial.stat().st_size
    assert here <= part
    assert web.files["/big.xplane.pb.gz"].startswith(partial.read_bytes())
    web.silent_from = None
    web.gets.clear()
    done = run_cli(
        "ops", f"{web.url}/big.xplane.pb.gz", "--format", "csv", env={"PROFILER_CACHE": str(tmp_path / "cache")}
    )
    assert done.returncode == 0, done.stderr
    assert min(web.begins()) == here


def test_what_libraries_log_goes_to_those_who_set_up_logging_alone(web, tmp_path: Path) -> None:
    code = (
        "import logging, sys; from profiler.cli import main; main(['summary', sys.argv[1]]);"
        "[logging.getLogger(name).warning('s3cret') for name in ('gcsfs', 's3fs', 'fsspec.http', 'aiohttp.client')]"
    )
    done = subprocess.run(
        [sys.executable, "-c", code, f"{web.url}/none.xplane.pb?x=s3cret"],
        capture_output=True,
        text=True,
        check=False,
        cwd=tmp_path,
    )
    assert done.stderr == f"profiler: error: {web.url}/none.xplane.pb: no such file or folder\n"


@pytest.mark.skipif(os.name == "nt", reason="terminals of POSIX")
def test_a_terminal_shows_how_far_it_is_and_nothing_of_it_stays(web, pair: list[str], tmp_path: Path) -> None:
    import pty

    web.pause_s = 0.3
    ours, theirs = pty.openpty()
    environ = {**os.environ, "PROFILER_CACHE": str(tmp_path / "cache"), "TERM": "xterm", "COLUMNS": "100"}
    command = [sys.executable, "-m", "profiler", "ops", pair[0], "--format", "csv"]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=theirs, env=environ)
    os.close(theirs)
    out, shown = process.communicate()[0], b""
    while True:
        try:
            data = os.read(ours, 1 << 16)
        except OSError:  # Linux: the other end is closed
            break
        if not data:
            break
        shown += data
    os.close(ours)
    assert process.returncode == 0
    assert b"fetching 1 file " in shown
    assert b"fetching" not in out
    assert not any(secret.encode() in shown for secret in SECRETS)
