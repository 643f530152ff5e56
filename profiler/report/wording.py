"""Words that every view of a diff uses: what times are per, what a side and a category are called."""

from __future__ import annotations

from profiler.results import Contribution, Diff, Summary

SAME_WORK = 0.005  # amounts of work that differ by less are one
EQUAL_WORK = {"flop": "model FLOPs", "token": "tokens"}


def basis(diff: Diff) -> str:
    """What the times of a diff are counted per: where the work of a step is known, both sides do the same."""
    work = EQUAL_WORK.get(diff.normalization)
    if work is None:
        return f"per device and {diff.normalization}"
    return f"per device, for the {work} of one baseline {diff.baseline.steps.unit}"


def per_step(diff: Diff) -> str:
    """What figures per step of each side are; where a step does another amount of work, how much more that is."""
    unit = diff.baseline.steps.unit
    own = f"Per device and {unit} of each side"
    equal = diff.delta.optimized_time_ps
    whole = not any(note.code == "mostly_idle" for note in diff.warnings)  # else the time is that of the devices alone
    growth = diff.optimized.steps.mean_ps / equal if diff.normalization in EQUAL_WORK and equal and whole else 1.0
    if abs(growth - 1) <= SAME_WORK:
        return f"{own}."
    return f"{own}, not scaled to equal work: the optimized {unit} does {growth:.2f}× the work."


def sides(diff: Diff) -> tuple[tuple[str, Summary], tuple[str, Summary]]:
    """Both recordings with the word for each."""
    return ("baseline", diff.baseline), ("optimized", diff.optimized)


def contribution_label(item: Contribution) -> str:
    """Family and phase; what is not hidden behind compute is called exposed."""
    family = f"{item.family} (exposed)" if item.category in ("communication", "transfer") else item.family
    return f"{family} · {item.phase}" if item.phase else family


def in_points(diff: Diff) -> bool:
    """Whether the parts of the change are in MFU points.

    They are in time where MFU is unknown, and where it is known but not split: normalised per step, the parts of the
    time are not those of the MFU.
    """
    return diff.delta.mfu_points is not None and all(item.mfu_points is not None for item in diff.contributions)


def kernel_title(kernel: str, family: str | None) -> str:
    """The family where it says which pass a kernel is, else the kernel's name."""
    return family if family and family.startswith(("splash", "gmm", "tgmm")) else kernel


def kernel_caption(unit: str) -> str:
    """What the times of a kernels table are."""
    return f"time of the kernels' own spans; overlapping streams may add up to more than the {unit}"
