"""The training loop: data in, steps, metrics, a recording of some of them, checkpoints.

Every step is waited for before the next one is dispatched: its time is then its own, and in a recording no step reaches
into the next. The host makes the next batch while the devices work.
"""

from __future__ import annotations

import signal
import statistics
import sys
import threading
import time
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import jax
import yaml

from distill import metrics as measuring
from distill import tracing
from distill.checkpoint import Checkpoints, load_params
from distill.config import Config, check_for_tpu
from distill.data import open_data
from distill.flops import CONVENTION, step_flops
from distill.kernels import Kernels, select
from distill.mesh import local_rows, make_mesh, put_batch, start_processes
from distill.metrics import Meter, MetricsFile, StepMetrics
from distill.progress import progress
from distill.runs import CONFIG_FILE
from distill.state import TrainState
from distill.step import Batch, TrainStep, abstract_params, build
from profiler.errors import ProfilerError, UsageError


class TrainingError(ProfilerError):
    """The run cannot go on."""


@dataclass(frozen=True)
class Result:
    """What a run left behind.

    Attributes:
        folder: the run's folder: metrics.jsonl, config.yml, plugins/profile/…, checkpoints/.
        first_step: where this process started; above 0 if it resumed.
        steps: metrics of the steps that this process did.
        trace: the recording of this host, None if none was made.
        notes: what the reader should know, one sentence each.
    """

    folder: Path
    first_step: int
    steps: tuple[StepMetrics, ...]
    trace: Path | None
    notes: tuple[str, ...] = ()

    def describe(self) -> str:
        """The run in a few lines."""
        if not self.steps:
            return f"nothing to do: {self.folder} has all its {self.first_step} steps"
        last = self.steps[-1]
        # The first step of a process also waits for pages and caches to fill.
        seconds = statistics.median(each.step_time_s for each in self.steps[1:] or self.steps)
        lines = [
            f"{self.folder}: steps {self.first_step} to {last.step}, loss {self.steps[0].loss:.4f} → {last.loss:.4f}, "
            f"perplexity {self.steps[0].perplexity:.2f} → {last.perplexity:.2f}, median step {seconds * 1e3:.1f} ms",
        ]
        if self.trace is not None:
            lines.append(f"recording: {self.trace}")
        return "\n".join(lines)


def train(config: Config, folder: Path, *, asked: Mapping[str, Any] | None = None) -> Result:
    """Trains for ``config.steps`` steps, or from the last checkpoint to there where checkpoints are enabled.

    Args:
        config: the run.
        folder: where its files go; made if missing.
        asked: what the run's records say of the configuration; ``config``'s own keys where None.

    Raises:
        ProfilerError: the folder cannot be written to, the loss is not finite, the configuration does not fit the
            devices.
        KeyboardInterrupt: interrupted; the step was finished, and a checkpoint saved if they are enabled.
    """
    start_processes()
    asked = dict(asked or config.to_dict())
    backend: Any = jax.default_backend()
    if backend == "tpu":
        check_for_tpu(config)
    elif backend == "cpu":
        tracing.keep_freed_memory()
    mesh = make_mesh(config)
    kernels = select(config, backend)
    _refuse_another_run(folder, config)
    _prepare(folder, asked)
    with ExitStack() as stack:
        # From here on Ctrl-C waits for the end of what runs: an exception inside XLA's compiler ends the process.
        interrupted = stack.enter_context(_interrupts())
        step = build(config, mesh, kernels)
        checkpoints = None
        if config.enable_checkpointing:
            keep = config.max_num_checkpoints_to_keep
            checkpoints = stack.enter_context(Checkpoints(folder / "checkpoints", keep=keep))
        state, notes = _initial_state(step, checkpoints, asked)
        first = int(state.step)
        for note in (*kernels.notes, *notes):
            print(f"distill: {note}", file=sys.stderr)
        if first >= config.steps:
            return Result(folder, first, (), None, notes)
        run = _Run(config, folder, step, kernels, asked, first, checkpoints)
        return run.loop(state, _teacher(step), interrupted, stack)


@dataclass
class _Run:
    """The loop and what it needs."""

    config: Config
    folder: Path
    step: TrainStep
    kernels: Kernels
    asked: dict[str, Any]
    first: int
    checkpoints: Checkpoints | None

    def loop(self, state: TrainState, teacher: Any, interrupted: threading.Event, stack: ExitStack) -> Result:
        """All steps from ``first`` on."""
        config, mesh = self.config, self.step.mesh
        flops = step_flops(config)
        meter = Meter(
            config.tokens_per_step(mesh.size), flops.total / 1e12, measuring.peak_tflops(mesh.devices.flat[0])
        )
        batches = self._batches()
        # Metrics are the same everywhere: one process writes them.
        speaks = jax.process_index() == 0
        if speaks:
            print("distill: compiling the step", file=sys.stderr)
        compiled = self.step.step_fn.lower(*self.step.abstract_arguments()).compile()
        if interrupted.is_set():
            raise KeyboardInterrupt("interrupted before the first step; nothing was changed")
        shown = stack.enter_context(progress(config.steps, self.first)) if speaks else None
        log = stack.enter_context(MetricsFile(self.folder, self.first)) if speaks else None
        recorded = self._recorded_steps()
        if config.profiler and not recorded:
            print("distill: too few steps are left to record any", file=sys.stderr)
        done: list[StepMetrics] = []
        trace: Path | None = None
        batch = next(batches)
        for number in range(self.first, config.steps):
            if number in recorded and number == recorded.start:
                tracing.start(self.folder)
                stack.callback(tracing.abandon)
            start = time.perf_counter()
            with jax.profiler.StepTraceAnnotation("train", step_num=number):
                state, values = compiled(state, teacher, batch)
                batch = next(batches, batch)
                jax.block_until_ready((state, values))
            seconds = time.perf_counter() - start
            done.append(meter.measure(number, values, seconds))
            stopped = interrupted.is_set()
            last = stopped or number + 1 == config.steps
            if number in recorded and (number + 1 == recorded.stop or last):
                trace = tracing.stop(self.folder)
                tracing.add_run_info(trace, self._run_info(meter, [each for each in done if each.step in recorded]))
            if log and shown:
                log.write(done[-1])
                shown.step(done[-1])
            _check_finite(done[-1])
            if self.checkpoints and (last or (number + 1) % config.checkpoint_period == 0):
                self.checkpoints.save(number + 1, state, {"config": self.asked})
            if stopped:
                saved = "a checkpoint is saved" if self.checkpoints else "no checkpoint was asked for"
                raise KeyboardInterrupt(f"interrupted after step {number}; metrics are written, {saved}")
        return Result(self.folder, self.first, tuple(done), trace)

    def _batches(self) -> Iterator[Batch]:
        """The batches of the steps that are left, on the devices."""
        mesh = self.step.mesh
        data = open_data(self.config, mesh.size)
        rows = local_rows(mesh, data.global_batch)
        for number in range(self.first, self.config.steps):
            yield put_batch(mesh, data.batch(number, rows), data.global_batch)

    def _recorded_steps(self) -> range:
        """The steps to record: after the ones to skip, counted from where this process started; none if too few."""
        if not self.config.profiler:
            return range(0)
        start = self.first + self.config.skip_first_n_steps_for_profiler
        stop = start + self.config.profiler_steps
        return range(start, stop) if stop <= self.config.steps else range(0)

    def _run_info(self, meter: Meter, steps: list[StepMetrics]) -> dict[str, Any]:
        """What the recording says about its run: docs/run-info.md."""
        flops, mesh = step_flops(self.config), self.step.mesh
        info = {
            "model_tflops_per_device_per_step": meter.model_tflops,
            "student_tflops_per_device_per_step": flops.student / 1e12,
            "teacher_tflops_per_device_per_step": flops.teacher / 1e12,
            "convention": CONVENTION,
            "tokens_per_step": meter.tokens_per_step,
            "layers": self.config.student.num_layers,
            "distillation": True,
            "config": self.asked,
            "mesh": dict(mesh.shape),
            "device_kind": mesh.devices.flat[0].device_kind,
            "kernels": list(self.kernels.names),
            "xla_flags": tracing.xla_flags(),
            "versions": tracing.software(),
            "metrics": [asdict(each) for each in steps],
        }
        commit = tracing.git_commit()
        return info | ({"git_commit": commit} if commit else {})


def _refuse_another_run(folder: Path, config: Config) -> None:
    """A folder that holds a run is gone on with, or left alone: two runs' metrics and checkpoints must not mix."""
    if config.enable_checkpointing:
        return
    metrics, checkpoints = folder / measuring.FILE_NAME, folder / "checkpoints"
    try:
        held = (metrics.is_file() and metrics.stat().st_size > 0) or (
            checkpoints.is_dir() and any(checkpoints.iterdir())
        )
    except OSError:  # _prepare says what is wrong with the folder
        return
    if held:
        raise UsageError("holds a run", file=folder, remedy="--resume goes on with it; -o names another folder")


def _prepare(folder: Path, asked: Mapping[str, Any]) -> None:
    """Makes the run's folder, with the configuration in it."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
        if jax.process_index() == 0:
            (folder / CONFIG_FILE).write_text(yaml.safe_dump(dict(asked), sort_keys=False), encoding="utf-8")
    except OSError as error:
        raise TrainingError(
            f"cannot be written to: {error.strerror or error}", file=folder, remedy="name another folder with -o"
        ) from error


def _initial_state(
    step: TrainStep, checkpoints: Checkpoints | None, asked: Mapping[str, Any]
) -> tuple[TrainState, tuple[str, ...]]:
    """The state to start from, and what the user should know about it: the last checkpoint's, else a new one."""
    latest = checkpoints.latest if checkpoints else None
    if checkpoints is None or latest is None:
        state = step.init_state()
        source = step.config.student_overrides.get("load_parameters_path") or step.config.load_parameters_path
        if source:
            params = load_params(Path(source), step.abstract_arguments()[0].params)
            state = TrainState(state.step, params, state.opt_state)
        return state, ()
    state = checkpoints.restore(latest, step.abstract_arguments()[0])
    before = checkpoints.facts(latest).get("config", {})
    notes = [f"resumed after {latest} steps"]
    changed = [key for key in asked if key in before and before[key] != asked[key]]
    if changed:
        words = ", ".join(f"{key} {before[key]} → {asked[key]}" for key in changed)
        notes.append(f"the configuration is not the one of the checkpoint: {words}")
    return state, tuple(notes)


def _teacher(step: TrainStep) -> Any:
    """The teacher's parameters: those of a checkpoint where the configuration names one, else from the seed."""
    source = step.config.teacher_overrides.get("load_parameters_path")
    if source:
        return load_params(Path(source), abstract_params(step.config.teacher, step.mesh, step.config.dtype))
    return step.init_teacher()


def _check_finite(metrics: StepMetrics) -> None:
    """Ends a run that has nothing left to learn from."""
    if not abs(metrics.loss) < float("inf"):
        raise TrainingError(
            f"the loss is {metrics.loss} at step {metrics.step}",
            remedy="try a lower learning_rate, a longer warmup or dtype=float32",
        )


@contextmanager
def _interrupts() -> Iterator[threading.Event]:
    """An event that Ctrl-C sets, so that a step is never torn; a second Ctrl-C ends the process where it is."""
    event = threading.Event()
    if threading.current_thread() is not threading.main_thread():  # only the main thread may handle signals
        yield event
        return

    def handle(*_: object) -> None:
        if event.is_set():
            raise KeyboardInterrupt("interrupted twice: the step was not finished")
        event.set()

    before = signal.signal(signal.SIGINT, handle)
    try:
        yield event
    finally:
        signal.signal(signal.SIGINT, before)
