"""Runs of the trainer as processes of their own: what they write, how they stop, how they go on."""

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent.parent
TINY = [
    "student_overrides.base_num_decoder_layers=2",
    "teacher_overrides.base_num_decoder_layers=2",
    "per_device_batch_size=4",
    "max_target_length=64",
    "distill_layer_indices=[0]",
    "ici_data_parallelism=-1",
    "ici_fsdp_parallelism=1",
]


def environment():
    return os.environ | {"JAX_PLATFORMS": "cpu", "PYTHONPATH": str(ROOT), "PYTHONUTF8": "1"}


def command(out, *arguments):
    return [sys.executable, "-m", "distill", "train", "tiny-qwen3-base", *TINY, "-o", str(out), *arguments]


def train(out, *arguments, code=0):
    done = subprocess.run(command(out, *arguments), env=environment(), capture_output=True, text=True, timeout=300)
    assert done.returncode == code, done.stderr
    return done


def losses(out):
    """Everything but the times, by step."""
    lines = [json.loads(line) for line in (out / "metrics.jsonl").read_text().splitlines()]
    assert [each["step"] for each in lines] == list(range(len(lines)))
    timed = ("step_time_s", "tokens_per_s", "model_tflops_per_s", "mfu")
    return [{key: value for key, value in each.items() if key not in timed} for each in lines]


@pytest.fixture(scope="module")
def reference(tmp_path_factory):
    """Sixty steps on one device, four of them recorded. So many that a run can be stopped in the middle."""
    out = tmp_path_factory.mktemp("reference")
    done = train(out, "--steps", "60", "skip_first_n_steps_for_profiler=4", "profiler_steps=4", "no_such_key=1")
    return out, done


@pytest.fixture(scope="module")
def recording(reference):
    (file,) = reference[0].glob("plugins/profile/*/*.xplane.pb")
    return file


def test_the_loss_falls_and_every_step_has_its_metrics(reference):
    out, done = reference
    steps = losses(out)
    assert len(steps) == 60
    assert steps[-1]["loss"] < 0.8 * steps[0]["loss"]
    assert steps[-1]["tokens"] == 60 * 4 * 64
    last = json.loads((out / "metrics.jsonl").read_text().splitlines()[-1])
    assert last["mfu"] is None  # a CPU has no known peak
    assert last["tokens_per_s"] == pytest.approx(256 / last["step_time_s"])
    assert "steps 0 to 59" in done.stdout


def test_unknown_keys_are_named(reference):
    assert "unknown keys: no_such_key" in reference[1].stderr


def test_two_runs_of_one_seed_are_bit_identical(reference, tmp_path):
    train(tmp_path, "--steps", "60", "profiler=''")
    assert losses(tmp_path) == losses(reference[0])


def test_four_devices_with_the_same_global_batch_give_the_losses_of_one(reference, tmp_path):
    # Ten steps: sums in another order differ in the last bit, and training makes more of it step by step.
    arguments = ("--steps", "10", "learning_rate_schedule_steps=60", "profiler=''", "per_device_batch_size=1")
    train(tmp_path, *arguments, "--devices", "4")
    for one, four in zip(losses(reference[0])[:10], losses(tmp_path), strict=True):
        for name in one:
            assert four[name] == pytest.approx(one[name], rel=1e-5), (one["step"], name)


def test_a_run_killed_in_the_middle_resumes_from_the_last_whole_checkpoint(reference, tmp_path):
    arguments = ("--steps", "60", "profiler=''", "checkpoint_period=2", "--resume")
    process = subprocess.Popen(command(tmp_path, *arguments), env=environment(), stderr=subprocess.DEVNULL)
    try:
        wait_for(lambda: (tmp_path / "checkpoints" / "4").is_dir(), process)
    finally:
        process.kill()
        process.wait()
    done = train(tmp_path, *arguments)
    assert "resumed after" in done.stderr
    assert losses(tmp_path) == losses(reference[0])
    again = train(tmp_path, *arguments)
    assert "nothing to do" in again.stdout


def test_an_interrupted_run_saves_what_it_has_and_goes_on_from_there(reference, tmp_path):
    arguments = ("--steps", "60", "profiler=''", "checkpoint_period=100", "--resume")
    process = subprocess.Popen(command(tmp_path, *arguments), env=environment(), stderr=subprocess.PIPE, text=True)
    wait_for(lambda: (tmp_path / "metrics.jsonl").exists() and (tmp_path / "metrics.jsonl").read_text(), process)
    process.send_signal(signal.SIGINT)
    error = process.communicate(timeout=60)[1]
    assert process.returncode == 130, error
    assert "metrics are written, a checkpoint is saved" in error
    assert "Traceback" not in error
    train(tmp_path, *arguments)
    assert losses(tmp_path) == losses(reference[0])


def test_an_interrupt_while_the_step_compiles_ends_without_a_crash(tmp_path):
    process = subprocess.Popen(
        command(tmp_path, "--steps", "60", "profiler=''"), env=environment(), stderr=subprocess.PIPE, text=True
    )
    for line in process.stderr:
        if "compiling the step" in line:
            break
    process.send_signal(signal.SIGINT)
    error = process.communicate(timeout=240)[1]
    assert process.returncode == 130, error
    assert "interrupted before the first step" in error


def test_a_folder_that_holds_a_run_is_left_alone_without_resume(reference):
    before = losses(reference[0])
    done = train(reference[0], "--steps", "2", "profiler=''", code=2)
    assert "holds a run (--resume goes on with it; -o names another folder)" in done.stderr
    assert losses(reference[0]) == before


def test_checkpoints_that_are_no_folder_are_one_clear_error(tmp_path):
    (tmp_path / "checkpoints").write_text("")
    done = train(tmp_path, "--steps", "2", "profiler=''", "--resume", code=1)
    assert "checkpoints: is not a folder" in done.stderr


def test_a_folder_that_cannot_be_made_is_one_clear_error(tmp_path):
    (tmp_path / "file").write_text("")
    done = train(tmp_path / "file" / "run", "--steps", "2", "profiler=''", code=1)
    assert done.stderr.strip().endswith("cannot be written to: Not a directory (name another folder with -o)")


def test_a_value_that_is_not_possible_is_named_before_any_work(tmp_path):
    done = train(tmp_path / "run", "remat_policy=most", code=2)
    assert "remat_policy='most' is not possible" in done.stderr
    assert not (tmp_path / "run").exists()


def test_the_recording_explains_itself(recording):
    import profiler

    summary = profiler.summary(str(recording))
    assert summary.steps.unit == "step"
    assert summary.steps.source == "step_num annotations"
    info = summary.run_info
    assert info["convention"] == "maxtext"
    assert info["tokens_per_step"] == 256
    assert info["layers"] == 2
    assert info["config"]["remat_policy"] == "full"
    assert [each["step"] for each in info["metrics"]] == [4, 5, 6, 7]
    assert summary.mfu_inputs.model_tflops_per_device_per_step == info["model_tflops_per_device_per_step"]
    phases = {row.phase for row in summary.families if row.time_ps_per_step > 0}
    assert {"teacher", "student forward", "student backward", "re-run", "optimizer"} <= phases


def test_the_summary_command_reads_it(recording, run_cli):
    done = run_cli("summary", recording)
    assert done.returncode == 0
    assert "student backward" in done.stdout


def test_xprof_opens_it(recording):
    convert = pytest.importorskip("xprof.convert.raw_to_tool_data")
    for tool in ("hlo_stats", "overview_page"):  # XProf lists ops of device planes only, which a CPU has none of
        page, _ = convert.xspace_to_tool_data([str(recording)], tool, {})
        assert json.loads(page), tool


def wait_for(condition, process, seconds=240):
    """Until the condition holds; the process must be alive till then."""
    end = time.monotonic() + seconds
    while not condition():
        assert process.poll() is None, "the run ended early"
        assert time.monotonic() < end
        time.sleep(0.02)
