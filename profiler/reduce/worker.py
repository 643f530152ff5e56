"""A process that reads one file after another for profiler.reduce.pool: tasks come in on stdin, outcomes go to stdout.

Started as a program of its own, not by multiprocessing: nothing of the caller is imported again, so that a script needs
no ``if __name__ == "__main__"``, and no threads are forked.
"""

from __future__ import annotations

import os
import pickle
import signal
import struct
import sys
from typing import Any, BinaryIO

LENGTH = struct.Struct("<Q")


def send(stream: BinaryIO, value: Any) -> None:
    """Writes one value."""
    data = pickle.dumps(value, pickle.HIGHEST_PROTOCOL)
    stream.write(LENGTH.pack(len(data)))
    stream.write(data)
    stream.flush()


def receive(stream: BinaryIO) -> Any:
    """Reads one value.

    Raises:
        EOFError: the other side is gone.
    """
    header = stream.read(LENGTH.size)
    if len(header) < LENGTH.size:
        raise EOFError
    (size,) = LENGTH.unpack(header)
    data = stream.read(size)
    if len(data) < size:
        raise EOFError
    return pickle.loads(data)


def main() -> None:
    """Answers tasks until there are no more."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is the caller's, who ends us
    answers = os.fdopen(os.dup(1), "wb")
    os.dup2(2, 1)  # what a library prints must not come between
    from profiler.reduce.host_part import read_host

    try:
        while True:
            send(answers, read_host(receive(sys.stdin.buffer)))
    except (EOFError, BrokenPipeError):
        return
