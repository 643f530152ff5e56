"""Threads that wait for the network. An interrupted program leaves them behind: it does not wait for a server."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable
from concurrent.futures import Future, wait
from queue import SimpleQueue
from types import TracebackType
from typing import Any, Self, TypeVar

Result = TypeVar("Result")

MOST = 8


class Workers:
    """Runs calls beside each other; leaving the ``with`` drops those that have not begun."""

    def __init__(self, count: int = MOST):
        self.count = count
        self._waiting: SimpleQueue[tuple[Future[Any], Callable[..., Any], tuple[Any, ...]] | None] = SimpleQueue()
        self._pending: list[Future[Any]] = []
        for _ in range(count):
            threading.Thread(target=self._work, name="profiler-remote", daemon=True).start()

    @classmethod
    def of(cls, stores: Iterable[Any]) -> Self:
        """As many as all of some fsspec file systems can serve: one where one of them is not made for many threads."""
        return cls(MOST if all(getattr(each, "async_impl", False) for each in stores) else 1)

    def start(self, call: Callable[..., Result], *args: Any) -> Future[Result]:
        """Begins a call as soon as a thread is free."""
        future: Future[Result] = Future()
        self._pending = [each for each in self._pending if not each.done()]
        self._pending.append(future)
        self._waiting.put((future, call, args))
        return future

    def result(self, future: Future[Result]) -> Result:
        """What a call gave, once it is there. Wakes up now and then: an endless wait can miss an interruption."""
        while not wait([future], timeout=0.2).done:
            pass
        return future.result()

    def _work(self) -> None:
        while (job := self._waiting.get()) is not None:
            future, call, args = job
            if not future.set_running_or_notify_cancel():
                continue
            try:
                future.set_result(call(*args))
            except BaseException as error:
                future.set_exception(error)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        for future in self._pending:
            future.cancel()
        for _ in range(self.count):
            self._waiting.put(None)
