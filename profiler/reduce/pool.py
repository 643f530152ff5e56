"""Hosts read beside each other, each by a process of this machine.

Processes, not threads: the scanner works without the interpreter's lock, but what comes after it does not
(docs/fleet.md has the figures). A process that dies takes one file with it, which is tried once more.
"""

from __future__ import annotations

import json
import os
import queue
import subprocess
import sys
import threading
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, cast

from profiler.reduce.host_part import Failure, Outcome, Task, read_host
from profiler.reduce.worker import receive, send

# Below this a run is read before a second process is up and has imported what it needs.
SMALL_BYTES = 64 << 20
# What reading a file takes, measured as the peak of a process less what an idle one has: docs/fleet.md.
BYTES_PER_BYTE, IDLE_BYTES, UNPACKED_RATIO = 3, 200 << 20, 10
TRIES = 2
# polars has signals restart what they interrupt: a wait without an end would never hear of Ctrl-C.
LISTEN_S = 0.2
_START = "import json, sys; sys.path[:] = json.loads(sys.argv[1]); from profiler.reduce.worker import main; main()"


def run(tasks: Sequence[Task], workers: int | None = None) -> Iterator[tuple[int, Outcome]]:
    """Reads every task's file: (which, what came of it), as they end.

    Args:
        tasks: what to read.
        workers: processes; None for as many as there are cores and memory for, and none where it is quick enough
            without; 1 for this process alone.
    """
    count = min(len(tasks), workers if workers is not None else _fitting(tasks))
    if count <= 1 or not sys.executable:
        for index, task in enumerate(tasks):
            yield index, read_host(task)
        return
    pool = _Pool(tasks, count)
    try:
        yield from pool.outcomes()
    finally:
        pool.end()


def _fitting(tasks: Sequence[Task]) -> int:
    sizes = [_size(task.file) for task in tasks]
    if sum(sizes) < SMALL_BYTES:
        return 1
    need = max(sizes) * BYTES_PER_BYTE + IDLE_BYTES
    available = _available_bytes()
    return max(1, min(cores(), available // need if available is not None else cores()))


def cores() -> int:
    """How many cores this process may use."""
    try:
        return len(os.sched_getaffinity(0))
    except AttributeError:  # not on macOS and Windows
        return os.cpu_count() or 1


def _size(file: Path) -> int:
    """Bytes, unpacked; a guess where it is packed."""
    try:
        size = file.stat().st_size
    except OSError:
        return 0
    return size * UNPACKED_RATIO if file.suffix == ".gz" else size


def _available_bytes() -> int | None:
    """Memory that new processes can have without swapping; None where the system does not say."""
    try:
        lines = Path("/proc/meminfo").read_text(encoding="ascii").splitlines()
        return next(int(line.split()[1]) << 10 for line in lines if line.startswith("MemAvailable:"))
    except (OSError, ValueError, StopIteration):
        return None


class _Pool:
    """Some processes, a thread for each, and the queue that their outcomes come through."""

    def __init__(self, tasks: Sequence[Task], count: int):
        self._count = len(tasks)
        threads = max(1, cores() // count)
        self._tasks = iter([(index, replace(task, threads=threads)) for index, task in enumerate(tasks)])
        self._lock = threading.Lock()
        self._ended = False
        self._processes: set[subprocess.Popen[bytes]] = set()
        self._found: queue.SimpleQueue[tuple[int, Outcome] | BaseException] = queue.SimpleQueue()
        self._threads = [threading.Thread(target=self._serve, daemon=True) for _ in range(count)]
        for thread in self._threads:
            thread.start()

    def outcomes(self) -> Iterator[tuple[int, Outcome]]:
        """All of them, as they come."""
        left = self._count
        while left:
            try:
                found = self._found.get(timeout=LISTEN_S)
            except queue.Empty:
                continue
            if isinstance(found, BaseException):
                raise found
            left -= 1
            yield found

    def end(self) -> None:
        """Ends every process, whatever it does."""
        with self._lock:
            self._ended = True
            for process in self._processes:
                process.kill()
        for thread in self._threads:
            thread.join()

    def _serve(self) -> None:
        """Keeps one process busy."""
        process: subprocess.Popen[bytes] | None = None
        try:
            while True:
                with self._lock:
                    index, task = (-1, None) if self._ended else next(self._tasks, (-1, None))
                if task is None:
                    return
                outcome: Outcome | None = None
                for _ in range(TRIES):
                    process = process or self._started()
                    if process is None:  # all is over
                        return
                    try:
                        send(cast(Any, process.stdin), task)
                        outcome = receive(cast(Any, process.stdout))
                        break
                    except (EOFError, OSError):
                        code, process = self._gone(process), None
                        outcome = Failure(task.name, f"the process that read it died ({_cause(code)}), twice")
                self._found.put((index, cast(Outcome, outcome)))
        except BaseException as error:
            self._found.put(error)
        finally:
            if process is not None:
                self._gone(process)

    def _started(self) -> subprocess.Popen[bytes] | None:
        with self._lock:
            if self._ended:
                return None
            process = subprocess.Popen(
                [sys.executable, "-c", _START, json.dumps(sys.path)],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                # Its few frames are small: a pool of threads in each process would only take memory.
                env={**os.environ, "POLARS_MAX_THREADS": "1"},
            )
            self._processes.add(process)
            return process

    def _gone(self, process: subprocess.Popen[bytes]) -> int:
        """Ends a process and gives its exit code."""
        with self._lock:
            self._processes.discard(process)
        for pipe in (process.stdin, process.stdout):
            if pipe is not None:
                try:
                    pipe.close()
                except OSError:  # what was not yet written
                    continue
        process.kill()  # at the end of its input it would leave by itself, after the file at hand
        return process.wait()


def _cause(code: int) -> str:
    if code == -9:
        return "killed: out of memory?"
    return f"signal {-code}" if code < 0 else f"exit code {code}"
