"""The messages are made once, whoever asks first."""

from __future__ import annotations

import time
from concurrent.futures import ThreadPoolExecutor
from types import SimpleNamespace

from profiler.xplane.schema import built_once


def test_threads_that_ask_at_the_same_time_get_the_same_classes() -> None:
    built = []

    @built_once
    def slow() -> SimpleNamespace:
        time.sleep(0.05)
        built.append(1)
        return SimpleNamespace()

    with ThreadPoolExecutor(4) as pool:
        found = list(pool.map(lambda _: slow(), range(4)))
    assert len(built) == 1
    assert all(each is found[0] for each in found)
