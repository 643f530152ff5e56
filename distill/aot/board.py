"""Progress of several compiles on stderr: one line that changes on a terminal, a line now and then elsewhere."""

from __future__ import annotations

import shutil
import sys
import threading
import time
from collections.abc import Sequence

from distill.aot.report import GIB

_EVERY_S = 10  # between two lines about one compile, where stderr is no terminal


class Board:
    """What runs, and how much is done. ``update`` may be called from several threads."""

    def __init__(self, labels: Sequence[str]):
        self._labels = labels
        self._terminal = sys.stderr.isatty()
        self._lock = threading.Lock()
        self._lines: dict[int, str] = {}
        self._said: dict[int, tuple[str, float]] = {}
        self._done = 0

    def update(self, index: int, phase: str, elapsed_s: float, memory_bytes: int | None) -> None:
        """One that runs: its phase, how long it has taken, and the memory that it holds."""
        held = f", {memory_bytes / GIB:.1f} GiB" if memory_bytes is not None else ""
        text = f"{self._labels[index]}: {phase}, {elapsed_s:.0f} s{held}"
        with self._lock:
            self._lines[index] = text
            if self._terminal:
                self._draw()
                return
            last, at = self._said.get(index, ("", 0.0))
            if phase != last or time.monotonic() - at > _EVERY_S:
                print(f"distill: {text}", file=sys.stderr, flush=True)
                self._said[index] = phase, time.monotonic()

    def finish(self, index: int, words: str) -> None:
        """One that is done, with what became of it: a line that stays."""
        with self._lock:
            self._lines.pop(index, None)
            self._done += 1
            self._clear()
            print(f"distill: {self._labels[index]}: {words}", file=sys.stderr, flush=True)
            if self._terminal:
                self._draw()

    def end(self) -> None:
        """Takes the line that changes away."""
        with self._lock:
            self._clear()

    def _draw(self) -> None:
        running = "; ".join(self._lines[index] for index in sorted(self._lines))
        text = f"distill: {self._done} of {len(self._labels)} done; {running}"
        width = shutil.get_terminal_size().columns - 1  # a line that wraps could not be taken back
        print(f"\r\x1b[K{text[:width]}", end="", file=sys.stderr, flush=True)

    def _clear(self) -> None:
        if self._terminal:
            print("\r\x1b[K", end="", file=sys.stderr, flush=True)
