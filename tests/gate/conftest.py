"""A hand-built pair whose every gated figure gets worse by a known amount."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import polars as pl
import pytest

from profiler import results

MS = 1e9
GIB = 1 << 30


def side(name: str, step_ms: float, mfu: float | None, hbm_gib: int, reruns: float, kind: str) -> results.Summary:
    return results.Summary(
        file=f"{name}.xplane.pb", label=name, kind=kind, devices=(),
        steps=results.StepStats("Steps line", 10, step_ms * MS, step_ms * MS, step_ms * MS, step_ms * MS),
        busy_fraction=0.9, mfu=mfu, hfu=mfu and mfu * 1.25,
        mfu_inputs=results.MfuInputs(None, step_ms * MS, None, None),
        families=(), kernels=(), remat=results.Remat(reruns, 10 * MS, 0.1),
        memory=results.Memory(hbm_gib * GIB, hbm_gib * GIB, None, 90 * GIB, hbm_gib * GIB), run_info=None, warnings=(),
        phases=(results.PhaseRow("forward", 1.0, 0.5),),
    )  # fmt: skip


def part(category: str, family: str, phase: str | None, base: float, opt: float, reach: float | None) -> Any:
    change = (opt - base) * MS
    bounds = None if reach is None else (change - reach * MS, change + reach * MS)
    significant = None if reach is None else abs(change) > reach * MS
    return results.Contribution(
        category, family, phase, None, base * MS, opt * MS, 1, 1, None, None, change, 0.0, change, significant, bounds
    )


@pytest.fixture
def pair() -> Callable[..., results.Diff]:
    """Step 100 → 110 ms; ``interval`` is that of the time ratio, ``reach`` of every category in ms."""

    def build(
        interval: tuple[float, float] | None = (1.08, 1.12),
        reach: float | None = 0.1,
        kind: str = "recorded",
        **kw: Any,
    ) -> results.Diff:
        base, opt = side("base", 100, 0.44, 50, 96, kind), side("opt", 110, 0.40, 60, 144, kind)
        parts = (
            part("compute", "gmm", "re-run", 8, 12, reach),
            part("compute", "gmm", "forward", 70, 72, reach),
            part("communication", "all-gather", None, 6, 7.2, reach),
            part("communication", "all-reduce", None, 4, 4.8, reach),
            part("transfer", "host transfer", None, 1, 1.5, reach),
            part("wait", "wait", None, 1, 1.5, reach),
            part("idle", "idle", None, 10, 11, reach),
        )
        loss = results.LossDelta(
            "steps", False, 0.02, 1e-4, 9, 10, (3.0, 2.0), (3.0, 2.04), None, None, (), "loss differs by 2 %"
        )
        diff = results.Diff(
            True, "step", "10 % slower", base, opt,
            results.Delta(-4.0, 100 / 110, 1.1, None, interval, 100 * MS, 110 * MS), parts, 1.0, 1.0, 1.0,
            pl.DataFrame(), loss=loss,
        )  # fmt: skip
        return replace(diff, **kw)

    return build
