"""What a person sees of a run on stderr: a bar on a terminal, a line now and then elsewhere."""

from __future__ import annotations

import sys
from typing import Protocol

from distill.metrics import StepMetrics

LINES = 10  # of a whole run, where stderr is no terminal


class Progress(Protocol):
    """Follows a run; use as a context manager."""

    def __enter__(self) -> Progress: ...

    def __exit__(self, *_: object) -> None: ...

    def step(self, metrics: StepMetrics) -> None:
        """One more step is done."""
        ...


class Lines:
    """For log files: about ten lines, whatever the number of steps."""

    def __init__(self, total: int):
        self._total, self._every = total, max(1, total // LINES)

    def __enter__(self) -> Lines:
        return self

    def __exit__(self, *_: object) -> None:
        pass

    def step(self, metrics: StepMetrics) -> None:
        """Prints the step if it is one in ten, or the last."""
        done = metrics.step + 1
        if done % self._every == 0 or done == self._total:
            print(f"distill: step {done}/{self._total}  {_facts(metrics)}", file=sys.stderr, flush=True)


class Bar:
    """For terminals: a bar with the latest figures and the time that is left."""

    def __init__(self, total: int, first: int):
        from rich.console import Console
        from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

        self._bar = Progress(
            TextColumn("step"),
            MofNCompleteColumn(),
            BarColumn(),
            TextColumn("{task.fields[facts]}"),
            TimeRemainingColumn(),
            console=Console(stderr=True),
        )
        self._task = self._bar.add_task("train", total=total, completed=first, facts="compiling")

    def __enter__(self) -> Bar:
        self._bar.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._bar.stop()

    def step(self, metrics: StepMetrics) -> None:
        """Moves the bar."""
        self._bar.update(self._task, completed=metrics.step + 1, facts=_facts(metrics))


def progress(total: int, first: int) -> Progress:
    """The one that suits stderr; ``first`` of ``total`` steps are done already."""
    return Bar(total, first) if sys.stderr.isatty() else Lines(total)


def _facts(metrics: StepMetrics) -> str:
    """What fits beside a bar on a narrow terminal."""
    mfu = f"  MFU {metrics.mfu:.1%}" if metrics.mfu is not None else ""
    return f"loss {metrics.loss:.4f}  {metrics.step_time_s * 1e3:.0f} ms  {metrics.tokens_per_s:,.0f} tokens/s{mfu}"
