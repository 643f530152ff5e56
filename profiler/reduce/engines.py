"""Who reads the hosts of a run: processes of this machine, or those of a Ray cluster; what they find is equal."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence

from profiler.reduce import pool
from profiler.reduce.host_part import Outcome, Task

# Reads tasks, as many at once as are asked for, and gives each one's place with what came of it, as they end.
Engine = Callable[[Sequence[Task], int | None], Iterator[tuple[int, Outcome]]]
ENGINES = ("local", "ray")


def engine(name: str) -> Engine:
    """The engine of a name of ENGINES.

    Raises:
        UsageError: what it needs is not installed.
    """
    if name == "local":
        return pool.run
    from profiler.reduce.ray_engine import checked

    return checked()
