"""The command line: arguments, exit codes, one-line errors, the environment that jax starts in."""

import errno
import signal

import pytest

from distill import cli
from distill.config import Config


def run(capsys, *arguments):
    code = cli.main(list(arguments))
    out = capsys.readouterr()
    return code, out.out, out.err


def test_without_a_command_help_is_printed(capsys):
    code, out, _ = run(capsys)
    assert code == 0
    assert "compare" in out


def test_recipes_are_listed(capsys):
    code, out, _ = run(capsys, "recipes")
    assert code == 0
    assert "tiny-qwen3-base" in out
    assert "gpt-oss-20b-opt" in out


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["dance"], "invalid choice"),
        (["train"], "the following arguments are required"),
        (["train", "no-such-recipe"], "no such recipe or file"),
        (["train", "tiny-qwen3-base", "--steps", "0"], "--steps"),
        (["train", "tiny-qwen3-base", "--speed", "9"], "unrecognized argument: --speed"),
        (["train", "tiny-qwen3-base", "distill_alpha=2"], "distill_alpha"),
        (["recipes", "a=1"], "unrecognized argument: a=1"),
    ],
)
def test_a_wrong_command_line_is_one_line_and_exit_code_2(capsys, arguments, words):
    code, out, err = run(capsys, *arguments)
    assert (code, out) == (2, "")
    assert words in err
    assert err.count("\n") == 1
    assert err.startswith("distill: error: ")


def test_a_file_that_is_no_mapping_is_unreadable(capsys, tmp_path):
    file = tmp_path / "run.yml"
    file.write_text("- a\n- b\n")
    code, _, err = run(capsys, "train", str(file))
    assert code == 3
    assert "is not a mapping" in err


def test_overrides_may_stand_before_and_after_options(capsys, monkeypatch, tmp_path):
    seen = []
    monkeypatch.setattr(cli, "set_environment", lambda *arguments: seen.append(arguments[1]))
    monkeypatch.setattr("distill.train.train", lambda config, folder, asked: (_ for _ in ()).throw(KeyboardInterrupt))
    code, _, err = run(
        capsys, "train", "tiny-qwen3-base", "distill_alpha=0.25", "-o", str(tmp_path), "--steps", "20", "nonsense=1"
    )
    assert code == 130
    assert (seen[0].distill_alpha, seen[0].steps) == (0.25, 20)
    assert "unknown keys: nonsense" in err


def test_a_bug_is_said_to_be_one(capsys, monkeypatch):
    monkeypatch.setattr("distill.config.recipes", lambda: 1 / 0)
    code, _, err = run(capsys, "recipes")
    assert code == cli.EXIT_BUG
    assert "ZeroDivisionError" in err
    assert "a bug in distill" in err


def test_flags_go_where_only_their_compiler_reads_them():
    environment = {"XLA_FLAGS": "--xla_dump_to=d"}
    flags = (
        "--xla_tpu_scoped_vmem_limit_kib=61440",
        "--xla_gpu_graph_level=0",
        "--xla_latency_hiding_scheduler_rerun=2",
    )
    cli.set_environment(environment, Config(xla_flags=flags), None)
    assert environment == {
        "XLA_FLAGS": "--xla_dump_to=d --xla_gpu_graph_level=0",
        "LIBTPU_INIT_ARGS": "--xla_tpu_scoped_vmem_limit_kib=61440 --xla_latency_hiding_scheduler_rerun=2",
    }


def test_simulated_devices_are_cpu_devices():
    environment = {}
    cli.set_environment(environment, Config(), 4)
    assert environment == {"JAX_PLATFORMS": "cpu", "XLA_FLAGS": "--xla_force_host_platform_device_count=4"}


def test_a_short_run_records_what_it_has(capsys):
    assert cli._window(6, []) == ["skip_first_n_steps_for_profiler=2", "profiler_steps=4"]
    assert "steps 2 to 5 are recorded" in capsys.readouterr().err
    assert cli._window(15, []) == []
    assert cli._window(6, ["profiler_steps=1"]) == []


def test_a_compile_checks_its_folders_before_it_works(capsys, tmp_path):
    (tmp_path / "file").write_text("")
    for option in ("-o", "--cache"):
        code, _, err = run(capsys, "compile", "tiny-qwen3-base", "--topology", "v5e-4", option, str(tmp_path / "file"))
        assert code == 2
        assert "cannot be written to" in err


def compiles_as(monkeypatch, does):
    """Stands in for the compiler."""
    monkeypatch.setattr("distill.aot.compile_step", does)


def test_a_file_that_cannot_be_written_is_no_program_that_does_not_fit(capsys, monkeypatch):
    def full(*_, **__):
        raise PermissionError(errno.EACCES, "Permission denied", "cache/entry")

    compiles_as(monkeypatch, full)
    code, _, err = run(capsys, "compile", "tiny-qwen3-base", "--topology", "v5e-4")
    assert (code, err) == (2, "distill: error: cache/entry: Permission denied\n")


def test_kill_ends_a_compile_as_an_interrupt_does(capsys, monkeypatch):
    cleaned = []

    def killed(*_, **__):
        try:
            signal.raise_signal(signal.SIGTERM)
        finally:
            cleaned.append(True)

    compiles_as(monkeypatch, killed)
    before = signal.getsignal(signal.SIGTERM)
    code, _, err = run(capsys, "compile", "tiny-qwen3-base", "--topology", "v5e-4")
    assert (code, err, cleaned) == (143, "", [True])
    assert signal.getsignal(signal.SIGTERM) == before


def test_calibrating_with_nothing_is_said_to_be_wrong(capsys, tmp_path):
    code, _, err = run(
        capsys, "compile", "tiny-qwen3-base", "--topology", "v5e-4", "-o", str(tmp_path), "--calibrate", ""
    )
    assert code in (2, 3)
    assert err.count("\n") == 1
