"""Several compiles beside each other: as many as cores and memory have room for, all ended by one Ctrl-C.

A compile is a process of its own (distill.aot.compiler), mostly busy on one core; here a thread watches each.
"""

from __future__ import annotations

import os
import threading
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ThreadPoolExecutor, wait
from dataclasses import replace
from pathlib import Path

from distill.aot.cache import Cache
from distill.aot.compiler import Compiled, compile_step
from distill.config import Config
from profiler.errors import ProfilerError

Outcome = Compiled | ProfilerError
# (which, phase, seconds since its compile began, bytes that its process holds; None if unknown)
Progress = Callable[[int, str, float, int | None], None]

MOST = 2
QUICK_BYTES, WHOLE_BYTES = 3 << 29, 9 << 29  # what the process of a full-size compile comes to hold, and some room
_AGAIN_S = 1.0  # between two looks at the memory while something waits for it


class _Stopped(Exception):
    """Raised in a thread whose compile nobody waits for any more."""


def compile_all(
    configs: Sequence[Config],
    topology: str,
    *,
    quick: bool = False,
    cache: Cache | None = None,
    progress: Progress | None = None,
    finished: Callable[[int, Outcome], None] | None = None,
    most: int | None = None,
) -> list[Outcome]:
    """Compiles each configuration for a slice; see ``compile_step``. One that fails does not hold up the others.

    Args:
        configs: what to compile.
        topology: the slice's name.
        quick: end each once its buffer assignment is out.
        cache: where finished compiles are kept.
        progress: called a few times a second for each that runs, from threads.
        finished: called as each comes to its end, from the caller's thread.
        most: how many at once; by default two, or the cores if they are fewer. Memory may allow fewer.

    Returns:
        One for each, in their order: the compile without its parsed program, which is large, or why there is none.

    Raises:
        KeyboardInterrupt: interrupted. As with any other exception, no process is left.
    """
    most = most or min(MOST, os.cpu_count() or 1)
    need = QUICK_BYTES if quick else WHOLE_BYTES
    outcomes: dict[int, Outcome] = {}
    held: dict[int, int] = {}
    stop = threading.Event()

    def watch(index: int, phase: str, elapsed_s: float, memory_bytes: int | None) -> None:
        if stop.is_set():
            raise _Stopped
        held[index] = memory_bytes or 0
        if progress is not None:
            progress(index, phase, elapsed_s, memory_bytes)

    def run(index: int) -> Outcome:
        def seen(phase: str, elapsed_s: float, memory_bytes: int | None) -> None:
            watch(index, phase, elapsed_s, memory_bytes)

        try:
            compiled = compile_step(configs[index], topology, quick=quick, progress=seen, cache=cache)
        except ProfilerError as error:
            return error
        return replace(compiled, module=None)

    waiting = deque(range(len(configs)))
    running: dict[Future[Outcome], int] = {}
    with ThreadPoolExecutor(most) as threads:
        try:
            while waiting or running:
                while waiting and _room(running, held, need, most):
                    index = waiting.popleft()
                    running[threads.submit(run, index)] = index
                for future in wait(running, _AGAIN_S, FIRST_COMPLETED).done:
                    index = running.pop(future)
                    outcomes[index] = future.result()
                    if finished is not None:
                        finished(index, outcomes[index])
        except BaseException:
            stop.set()  # leaving the block waits for the threads, each of which ends its process
            raise
    return [outcomes[index] for index in range(len(configs))]


def _room(running: Mapping[Future[Outcome], int], held: Mapping[int, int], need: int, most: int) -> bool:
    """Whether one more may start: there is a core, and memory for it once those that run have all that they need."""
    if not running:
        return True
    if len(running) >= most:
        return False
    available = available_bytes()
    still_to_come = sum(max(0, need - held.get(index, 0)) for index in running.values())
    return available is not None and available - still_to_come >= need


def available_bytes() -> int | None:
    """Memory that a new process can have without swapping; None where the system does not say."""
    try:
        lines = Path("/proc/meminfo").read_text(encoding="ascii").splitlines()
        return next(int(line.split()[1]) << 10 for line in lines if line.startswith("MemAvailable:"))
    except (OSError, ValueError, StopIteration):
        return None
