"""The command line as its users meet it: options, exit codes, one line per failure, files whole or not at all."""

from __future__ import annotations

import json
import os
import re
import shlex
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from types import ModuleType
from typing import Any

import polars as pl
import pytest

from profiler import api, cli, results
from profiler.errors import NotComparableError, UnreadableError
from profiler.report import (
    comm_view,
    diff_view,
    health_view,
    history_view,
    hosts_view,
    kernels_view,
    ladder_view,
    memory_view,
    remat_view,
    roofline_view,
    summary_view,
)

needs_full = pytest.mark.skipif(not Path("/dev/full").exists(), reason="no /dev/full")

Run = Callable[..., "subprocess.CompletedProcess[str]"]

SUMMARY = results.Summary(
    "a.xplane.pb", "a", "recorded", (results.DeviceInfo("TPU:0", "TPU v6 Lite", 918.0, 32 << 30),),
    results.StepStats("Steps line", 3, 1e9, 1e9, 1e9, 1e9), 0.9, None, None, results.MfuInputs(None, 1e9, 918.0, None),
    (results.FamilyRow("idle", "idle", None, None, 1e9, 1.0),), (), results.Remat(0, 0, 0), results.Memory(), None,
    (results.Note("cut", "the last step is cut"),),
)  # fmt: skip
COLUMNS = {
    "program": "p", "program_id": 1, "op": "fusion.1", "category": "loop fusion", "family": "other", "phase": None,
    "occurrences": 2, "total_time_ps": 2e6, "self_time_ps": 1e6, "flops": 0.0, "bytes_accessed": 0.0,
    "name_stack": None, "source": None,
}  # fmt: skip
DIFF = results.Diff(
    True, "step", "no change", SUMMARY, SUMMARY, results.Delta(None, None, 1.0, None, None, 1e9, 1e9), (),
    1.0, 1.0, 1.0,
    pl.DataFrame(schema={
        **dict.fromkeys(("baseline_op", "optimized_op", "family", "phase", "match", "evidence"), pl.String),
        **dict.fromkeys(("baseline_time_ps", "optimized_time_ps", "delta_time_ps", "baseline_calls"), pl.Float64),
        **dict.fromkeys(("optimized_calls", "baseline_mean_ps", "optimized_mean_ps"), pl.Float64),
    }),
)  # fmt: skip


@pytest.fixture
def calls(monkeypatch: pytest.MonkeyPatch) -> list[tuple[Any, ...]]:
    """What the commands ask the library for; the library answers with hand-built results."""
    made: list[tuple[Any, ...]] = []
    frame = pl.DataFrame([COLUMNS])

    def answer(value: Any) -> Callable[..., Any]:
        def call(*args: Any) -> Any:
            made.append(args)
            return value

        return call

    monkeypatch.setattr(api, "summary", answer(SUMMARY))
    monkeypatch.setattr(api, "ops", answer(api.OpTable("a.xplane.pb", frame, frame.clear(), 1, SUMMARY.warnings)))
    monkeypatch.setattr(api, "diff", answer(DIFF))
    return made


# --- help, version, start-up


def test_profiler_alone_prints_help(run_cli: Run) -> None:
    done = run_cli()
    assert done.returncode == 0
    assert "explain why OPT is faster or slower than BASE" in done.stdout
    assert done.stderr == ""


def test_version_is_one_line(run_cli: Run) -> None:
    done = run_cli("--version")
    assert done.returncode == 0
    assert re.fullmatch(r"profiler \S.*\n", done.stdout)


def test_help_loads_nothing_heavy() -> None:
    code = (
        "import sys; from profiler.cli import main; main(['diff', '--help']);"
        "print(*(m for m in ('polars', 'rich', 'numpy', 'jinja2', 'google.protobuf', 'yaml') if m in sys.modules),"
        "file=sys.stderr)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stderr.strip() == ""


@pytest.mark.skipif(os.name != "posix", reason="resource usage of children needs POSIX")
def test_help_takes_less_than_a_quarter_of_a_cpu_second(run_cli: Run) -> None:
    import resource

    best = 9.0
    for _ in range(3):
        before = resource.getrusage(resource.RUSAGE_CHILDREN)
        run_cli("--help")
        after = resource.getrusage(resource.RUSAGE_CHILDREN)
        best = min(best, after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime)
    assert best < 0.25


@pytest.mark.parametrize(
    "command",
    [
        "summary", "ops", "diff", "ladder", "config", "peaks", "kernels", "remat", "roofline", "health", "hosts",
        "history", "check", "report", "timeline",
    ],
)  # fmt: skip
def test_every_command_explains_itself(run_cli: Run, command: str) -> None:
    done = run_cli(command, "--help")
    assert done.returncode == 0
    assert "--format" in done.stdout
    assert max(map(len, done.stdout.splitlines())) <= 100


@pytest.mark.parametrize(
    ("command", "view"),
    [
        ("summary", summary_view), ("diff", diff_view), ("kernels", kernels_view), ("remat", remat_view),
        ("roofline", roofline_view), ("memory", memory_view), ("comm", comm_view), ("ladder", ladder_view),
        ("health", health_view), ("hosts", hosts_view), ("history", history_view),
    ],
)  # fmt: skip
def test_help_says_how_many_rows_there_are(command: str, view: ModuleType, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        cli.build_parser().parse_args([command, "--help"])
    assert f"(default: {view.DEFAULT_ROWS}" in " ".join(capsys.readouterr().out.split())


# --- usage errors


@pytest.mark.parametrize(
    ("args", "message"),
    [
        (["diff", "a"], "the following arguments are required: OPT"),
        (["explain"], "invalid choice: 'explain'"),
        (["summary", "a", "--format", "parquet"], "invalid choice: 'parquet'"),
        (["summary", "a", "--top", "-1"], "-1 is negative"),
        (["summary", "a", "--steps", "5"], "'5' is not a range of steps such as 3:8"),
        (["summary", "a", "--steps", "8:3"], "'8:3' is empty"),
        (["summary", "a", "--steps", "-3:5"], "'-3:5' has a negative end: steps count from 0"),
        (["summary", "a", "--steps", "3:-1"], "steps count from 0"),
        (["summary", "a", "--steps", f"3:{10**30}"], "has an end over"),
        (["summary", "a", "--top", f"{10**9 + 1}"], "is more than 1000000000"),
        (["summary", "a", "--top", "9" * 5000], "is more than 1000000000"),
        (["summary", "a", "--top", "1.5"], "'1.5' is not a whole number"),
        (["summary", "a", "--skip-first", "9" * 30], "is more than"),
        (["summary", "a", "--model-tflops", "1e300"], "'1e300' is not between 1e-09 and 1e+12"),
        (["summary", "a", "--model-tflops", "1e-10"], "is not between"),
        (["summary", "a", "--peak-tflops", "inf"], "'inf' is not a positive number"),
        (["summary", "a", "--tokens-per-step", "1e19"], "is not between 1e-09 and 1e+18"),
        (["diff", "a", "b", "--peak-tflops", "918,0"], "'0' is not a positive number"),
        (["ops", "a", "--steps", "1:2"], "unrecognized arguments: --steps"),
        (["ops", "a", "--skip-first", "1"], "unrecognized arguments: --skip-first"),
        (["summary", "a", "--peak-tflops", "nan"], "'nan' is not a positive number"),
        (["summary", "a", "--model-tflops", "1,2"], "'1,2' is not a positive number"),
        (["diff", "a", "b", "--model-tflops", "1,2,3"], "more than two values"),
        (["diff", "a", "b", "--config", "one.yml"], "expected 2 arguments"),
        (["diff", "a", "b", "--norm", "step"], "unrecognized arguments: --norm"),
        (["peaks", "-o", "missing/x.json"], "the folder to write into does not exist"),
        (["peaks", "-o", "x.parquet"], "cannot write '.parquet' files"),
    ],
)
def test_a_usage_error_is_one_line_and_exits_with_2(run_cli: Run, args: list[str], message: str) -> None:
    done = run_cli(*args)
    assert (done.returncode, done.stdout) == (2, "")
    assert re.fullmatch(r"profiler: error: .+\n", done.stderr)
    assert message in done.stderr


def test_a_missing_file_is_unreadable(run_cli: Run) -> None:
    done = run_cli("summary", "no-such-file.xplane.pb")
    assert (done.returncode, done.stdout) == (3, "")
    assert re.fullmatch(r"profiler: error: .*no-such-file\.xplane\.pb.+\n", done.stderr)


def test_a_file_that_is_no_profile_is_unreadable(run_cli: Run, tmp_path: Path) -> None:
    path = tmp_path / "text.xplane.pb"
    path.write_text("this is not a profile\n" * 100)
    for command in (["summary", path], ["ops", path], ["diff", path, path]):
        done = run_cli(*command)
        assert (done.returncode, done.stdout) == (3, "")
        assert re.fullmatch(r"profiler: error: .+\n", done.stderr)


# --- what the library is asked


def test_options_reach_the_library(calls: list[Any], tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    selection = ["--host", "h", "--device", "TPU:1", "--steps", "2:7", "--skip-first", "1"]
    facts = ["--tokens-per-step", "4096", "--model-tflops", "12.5", "--peak-tflops", "918", "--config", "run.yml"]
    assert cli.main(["summary", "a=x", *selection, *facts]) == 0
    path, options = calls[0]
    assert path == "a=x"
    assert options == api.Options("h", "TPU:1", (2, 7), 1, 4096.0, 12.5, 918.0, Path("run.yml"))
    capsys.readouterr()


def test_two_values_are_for_the_two_sides(calls: list[Any], capsys: pytest.CaptureFixture[str]) -> None:
    args = ["--model-tflops", "1219.56,1829.35", "--tokens-per-step", "32768", "--config", "b.yml", "o.yml"]
    assert cli.main(["diff", "b", "o", *args, "--normalize", "flop", "--force", "--steps", "3:"]) == 0
    base, opt, base_options, opt_options = calls[0]
    assert (base, opt) == ("b", "o")
    assert (base_options.model_tflops, opt_options.model_tflops) == (1219.56, 1829.35)
    assert base_options.tokens_per_step == opt_options.tokens_per_step == 32768
    assert (base_options.config, opt_options.config) == (Path("b.yml"), Path("o.yml"))
    assert base_options.steps == opt_options.steps == (3, None)
    assert (base_options.normalize, base_options.force) == ("flop", True)
    capsys.readouterr()


def test_without_options_nothing_is_assumed(calls: list[Any], capsys: pytest.CaptureFixture[str]) -> None:
    cli.main(["ops", "a"])
    assert calls[0] == ("a", api.Options())
    capsys.readouterr()


# --- output


@pytest.mark.parametrize("command", [["summary", "a"], ["ops", "a"], ["diff", "a", "b"], ["peaks"]])
def test_data_goes_to_stdout_and_nothing_else(
    calls: list[Any], capfd: pytest.CaptureFixture[str], command: list[str]
) -> None:
    assert cli.main([*command, "--format", "json"]) == 0
    out, err = capfd.readouterr()
    assert json.loads(out)["schema_version"] == 1
    assert err == ""


def test_a_format_without_room_for_warnings_puts_them_on_stderr(
    calls: list[Any], capfd: pytest.CaptureFixture[str]
) -> None:
    assert cli.main(["ops", "a", "--format", "csv"]) == 0
    out, err = capfd.readouterr()
    assert out.startswith("program,program_id,op,")
    assert err == "profiler: warning: the last step is cut\n"


def test_the_file_name_chooses_the_format(calls: list[Any], tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["ops", "a", "-o", str(tmp_path / "ops.parquet")]) == 0
    assert pl.read_parquet(tmp_path / "ops.parquet").height == 1
    assert cli.main(["diff", "a", "b", "-o", str(tmp_path / "d.json"), "--html", str(tmp_path / "d.html")]) == 0
    assert json.loads((tmp_path / "d.json").read_text())["verdict"] == "no change"
    assert (tmp_path / "d.html").read_text().startswith("<!doctype html>")
    out, err = capfd.readouterr()
    assert out == ""
    assert err.splitlines()[-1] == f"profiler: wrote {tmp_path / 'd.html'}"


def test_a_bad_html_path_is_refused_before_the_work(calls: list[Any], tmp_path: Path) -> None:
    assert cli.main(["diff", "a", "b", "--html", str(tmp_path / "no" / "d.html")]) == 2
    assert calls == []


def test_the_ends_of_what_figures_may_be_are_accepted() -> None:
    args = ["--top", "1000000000", "--model-tflops", "1e-9", "--peak-tflops", "1e12", "--tokens-per-step", "1e18"]
    parsed = cli.build_parser().parse_args(["summary", "a", *args])
    assert (parsed.top, parsed.model_tflops, parsed.peak_tflops, parsed.tokens_per_step) == (10**9, 1e-9, 1e12, 1e18)


def input_files(folder: Path) -> dict[str, Path]:
    run = folder / "logs" / "plugins" / "profile" / "2025_01_01_00_00_00"
    run.mkdir(parents=True)
    files = {"file": folder / "a.xplane.pb", "run": run / "host.xplane.pb", "config": folder / "c.yml"}
    for file in files.values():
        file.write_text("input")
    (folder / "link.json").symlink_to(files["file"])
    (folder / "hard.json").hardlink_to(files["file"])
    return files


@pytest.mark.skipif(os.name != "posix", reason="links")
@pytest.mark.parametrize("option", ["-o", "--html"])
@pytest.mark.parametrize(
    "output",
    ["a.xplane.pb", "logs/../a.xplane.pb", "link.json", "hard.json", "c.yml",
     "logs/plugins/profile/2025_01_01_00_00_00/host.xplane.pb"],
)  # fmt: skip
def test_no_output_overwrites_an_input(
    calls: list[Any], tmp_path: Path, capsys: pytest.CaptureFixture[str], output: str, option: str
) -> None:
    files = input_files(tmp_path)
    sides = [f"x={files['file']},{files['file']}", str(tmp_path / "logs")]
    args = ["--config", str(files["config"]), str(files["config"]), "--format", "json", option, str(tmp_path / output)]
    assert cli.main(["diff", *sides, *args]) == 2
    assert re.fullmatch(r"profiler: error: .+ is an input and would be overwritten .+\n", capsys.readouterr().err)
    assert calls == []
    assert {file.read_text() for file in files.values()} == {"input"}


def test_two_outputs_are_two_files(calls: list[Any], tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    page = tmp_path / "d.html"
    args = ["--format", "json", "-o", f"{tmp_path}/./d.html", "--html", str(page)]
    assert cli.main(["diff", "a", "b", *args]) == 2
    assert "is named for two outputs" in capsys.readouterr().err
    assert not page.exists()


@pytest.mark.skipif(os.name != "posix", reason="names as on POSIX")
def test_what_is_said_of_a_hostile_output_name_stays_one_line(
    calls: list[Any], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert cli.main(["diff", "a", "b", "--html", str(tmp_path / "a\n\x1b[31mb.html")]) == 0
    assert capsys.readouterr().err == f"profiler: wrote {tmp_path}/a\\n\\x1b[31mb.html\n"


@pytest.mark.parametrize("option", ["-o", "--html"])
def test_a_name_that_is_too_long_is_a_usage_error(
    calls: list[Any], tmp_path: Path, capsys: pytest.CaptureFixture[str], option: str
) -> None:
    assert cli.main(["diff", "a", "b", option, str(tmp_path / ("x" * 300 + ".html")), "--format", "json"]) == 2
    assert len(capsys.readouterr().err.splitlines()) == 1
    assert calls == []


def test_hundreds_of_warnings_beside_a_format_without_room_are_counted(
    monkeypatch: pytest.MonkeyPatch, calls: list[Any], capsys: pytest.CaptureFixture[str]
) -> None:
    notes = tuple(results.Note("cut", f"warning {i}") for i in range(300))
    monkeypatch.setattr(api, "summary", lambda *_: replace(SUMMARY, warnings=notes))
    assert cli.main(["summary", "a", "--format", "csv"]) == 0
    lines = capsys.readouterr().err.splitlines()
    assert len(lines) == 21
    assert lines[-1] == "profiler: warning: … 280 more; --format json has all"


# --- streams that are closed, full, slow or go away


@pytest.mark.skipif(os.name != "posix", reason="a shell")
@pytest.mark.parametrize("unbuffered", ["", "1"])
@pytest.mark.parametrize(
    ("arguments", "code", "message"),
    [
        ("peaks >&-", 2, "stdout: is closed"),
        ("--version >&-", 2, "stdout: is closed"),
        ("--help >&-", 2, "stdout: is closed"),
        ("summary 2>&-", 2, None),
        ("peaks 2>&- >/dev/null", 0, None),
        ("summary >&- 2>&-", 2, None),
        pytest.param("peaks >/dev/full", 2, "stdout: cannot be written: No space left", marks=needs_full),
        pytest.param("--help >/dev/full", 2, "stdout: cannot be written: No space left", marks=needs_full),
        pytest.param("peaks -o /dev/full", 2, "/dev/full: cannot be written: No space left", marks=needs_full),
        pytest.param("summary 2>/dev/full", 2, None, marks=needs_full),
    ],
)
def test_a_stream_that_takes_nothing_sets_the_exit_code(
    arguments: str, code: int, message: str | None, unbuffered: str
) -> None:
    command = f"{shlex.quote(sys.executable)} -m profiler {arguments}"
    environment = {**os.environ, "PYTHONUNBUFFERED": unbuffered}
    done = subprocess.run(["sh", "-c", command], capture_output=True, text=True, env=environment, check=False)
    assert (done.returncode, done.stdout) == (code, "")
    if message is None:
        assert done.stderr == ""
    else:
        assert re.fullmatch(rf"profiler: error: {message}.*\n", done.stderr)


@pytest.mark.skipif(os.name != "posix", reason="pipes and signals as on POSIX")
@pytest.mark.parametrize("flag", ["-u", "-E"])  # unbuffered, and as usual
def test_a_reader_that_goes_away_in_the_middle_is_told_from_one_that_reads_all(flag: str) -> None:
    code = (
        "import sys; from profiler.report.output import write_stdout; from profiler import api, cli;"
        "api.summary = lambda *_: write_stdout(b'x' * 3_000_000); sys.exit(cli.main(['summary', 'x']))"
    )
    command = [sys.executable, flag, "-c", code]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE)
    assert process.stdout is not None
    assert process.stderr is not None
    process.stdout.read(10)
    process.stdout.close()
    assert process.stderr.read() == b""
    process.stderr.close()
    assert process.wait(60) == cli.EXIT_BROKEN_PIPE


# --- failures


@pytest.mark.parametrize(
    ("error", "code"),
    [
        (UnreadableError("is not a profile", file="x.pb", remedy="record it again"), 3),
        (NotComparableError("one is a TPU, the other a GPU", remedy="--force compares all the same"), 4),
        (ZeroDivisionError("float division"), cli.EXIT_BUG),
        (KeyboardInterrupt(), cli.EXIT_INTERRUPTED),
    ],
)
def test_a_failure_is_one_line_without_a_traceback(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path, error: BaseException, code: int
) -> None:
    def fail(*_: Any) -> None:
        raise error

    monkeypatch.setattr(api, "summary", fail)
    out_file = tmp_path / "out.json"
    assert cli.main(["summary", "x", "-o", str(out_file)]) == code
    out, err = capsys.readouterr()
    assert out == ""
    assert len(err.splitlines()) == (0 if isinstance(error, KeyboardInterrupt) else 1)
    assert "Traceback" not in err
    assert not out_file.exists()


def test_debug_shows_the_traceback(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    def fail(*_: Any) -> None:
        raise UnreadableError("is not a profile", file="x.pb")

    monkeypatch.setattr(api, "summary", fail)
    for args in (["--debug", "summary", "x"], ["summary", "x", "--debug"]):
        assert cli.main(args) == 3
        err = capsys.readouterr().err
        assert "Traceback" in err
        assert err.splitlines()[-1] == "profiler: error: x.pb: is not a profile"


def test_an_error_about_a_hostile_file_name_stays_one_line(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def fail(*_: Any) -> None:
        raise UnreadableError("is not a profile", file="a\n\x1b[31mb\u202e.pb")

    monkeypatch.setattr(api, "summary", fail)
    cli.main(["summary", "x"])
    assert capsys.readouterr().err == "profiler: error: a\\n\\x1b[31mb\\u202e.pb: is not a profile\n"


@pytest.mark.skipif(os.name != "posix", reason="pipes and signals as on POSIX")
def test_a_reader_that_goes_away_is_no_error() -> None:
    # The reader closes at once; the command must neither complain nor show a traceback.
    code = "import sys, time; time.sleep(0.3); from profiler.cli import main; sys.exit(main(['peaks']))"
    process = subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, stderr=subprocess.PIPE)
    assert process.stdout is not None
    assert process.stderr is not None
    process.stdout.close()
    errors = process.stderr.read()
    process.stderr.close()
    assert process.wait(60) == cli.EXIT_BROKEN_PIPE
    assert errors == b""


@pytest.mark.skipif(os.name != "posix", reason="pipes and signals as on POSIX")
def test_an_interrupt_is_quiet() -> None:
    code = (
        "import sys, time; from profiler import api, cli;"
        "api.summary = lambda *_: (print('ready', file=sys.stderr, flush=True), time.sleep(60));"
        "sys.exit(cli.main(['summary', 'x']))"
    )
    process = subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    assert process.stderr is not None
    assert process.stderr.readline() == "ready\n"
    time.sleep(0.2)
    process.send_signal(signal.SIGINT)
    out, errors = process.communicate(timeout=60)
    assert (process.returncode, out, errors) == (cli.EXIT_INTERRUPTED, "", "")


def test_text_survives_a_stream_without_unicode(run_cli: Run) -> None:
    done = run_cli("peaks", env={"PYTHONIOENCODING": "ascii", "PYTHONUTF8": "0"})
    assert done.returncode == 0
    assert done.stdout.isascii()
    assert "one way, 6 links x 45" in done.stdout


def test_markdown_and_csv_are_utf_8_whatever_the_stream_is() -> None:
    environment = {**os.environ, "PYTHONIOENCODING": "ascii", "PYTHONUTF8": "0"}
    command = [sys.executable, "-m", "profiler", "peaks", "--format", "markdown"]
    done = subprocess.run(command, capture_output=True, env=environment, check=True)
    assert "6 links × 45" in done.stdout.decode("utf-8")


def test_the_same_command_gives_the_same_bytes(run_cli: Run) -> None:
    assert run_cli("peaks").stdout == run_cli("peaks").stdout


# --- documentation


DOCS = Path(__file__).resolve().parent.parent / "docs"


@pytest.mark.parametrize("page", sorted(DOCS.glob("commands/*.md")), ids=lambda page: page.stem)
def test_every_documented_command_is_one(page: Path) -> None:
    examples = re.findall(r"^\$ profiler (.+)$", page.read_text("utf-8"), re.MULTILINE)
    assert examples
    for example in examples:
        assert cli.build_parser().parse_args(example.split()).run is not None


@pytest.mark.parametrize("page", sorted(DOCS.glob("commands/*.md")), ids=lambda page: page.stem)
def test_no_page_names_an_option_that_does_not_exist(page: Path) -> None:
    text = page.read_text("utf-8")
    options = set(re.findall(r"--[a-z][a-z-]+", text)) - {"--fail-on"}
    help_text = subprocess.run(
        [sys.executable, "-m", "profiler", page.stem, "--help"], capture_output=True, text=True, check=True
    ).stdout
    assert options <= set(re.findall(r"--[a-z][a-z-]+", help_text)) | {"--peak-tflops"}
