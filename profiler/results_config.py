"""What a diff says of two configurations and of what the runs learned; part of ``profiler.results``, with its rules."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from profiler.results import Note


@dataclass(frozen=True, slots=True)
class Knob:
    """One configuration key whose value differs.

    ``*_set`` is false where a side lacks the key; ``*_default`` is true where its value is then the key's known
    default, else it is None. ``group`` names the knobs that mean something only together. ``moves`` says what the knob
    can move at first hand; None for a key that is not known. ``source``: "config", "xla_flags", "versions" or "mesh".
    ``effect`` is what was seen of its group in a diff, ``mfu_points`` and ``time_ps`` its size; None without a trace.
    """

    key: str
    baseline: Any
    optimized: Any
    baseline_set: bool = True
    optimized_set: bool = True
    group: str | None = None
    what: str | None = None
    source: str = "config"
    moves: tuple[str, ...] | None = None
    baseline_default: bool = False
    optimized_default: bool = False
    effect: str | None = None
    mfu_points: float | None = None
    time_ps: float | None = None


@dataclass(frozen=True, slots=True)
class KnobEffect:
    """What was seen of a group of knobs in a diff, or of what no knob moves at first hand (group "rest", last).

    ``status``: "seen"; "none seen"; "not estimated" (a compiled profile cannot show it); "no time" (it does not move
    the step); "unknown" (a key that is not known); "no knob" (the rest; ``knobs`` are those that may be behind it).
    ``mfu_points`` and ``time_ps`` sum to the change over all effects, where nothing is ``shared`` with other groups.
    ``memory_bytes`` is the HBM that it costs; None where nothing tells it from other knobs' share.
    """

    group: str
    knobs: tuple[str, ...]
    status: str
    text: str
    mfu_points: float | None
    time_ps: float | None
    memory_bytes: int | None = None
    shared: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class LossDelta:
    """Do both runs compute the same? From the metrics in their run info.

    ``kind``: "steps" (same batches: step by step), "tokens" (other batches: at equal tokens seen) or "settings" (they
    learn under different ``settings``: no verdict). ``difference`` is the largest relative one of a step's loss or
    log-perplexity, else optimized − baseline loss in nats, ``at`` that step or token; ``tolerance`` what it was held
    against, over ``count`` steps. Losses and perplexities are (first, last step).
    """

    kind: str
    unchanged: bool | None
    difference: float | None
    tolerance: float | None
    at: int | None
    count: int
    baseline_loss: tuple[float, float] | None
    optimized_loss: tuple[float, float] | None
    baseline_perplexity: tuple[float, float] | None
    optimized_perplexity: tuple[float, float] | None
    settings: tuple[str, ...]
    text: str


@dataclass(frozen=True, slots=True)
class ConfigDelta:
    """What differs between two configurations.

    ``same`` counts the keys that are equal; ``written_defaults`` are those of them that one side spells out and the
    other leaves at the same default.
    """

    baseline: str
    optimized: str
    knobs: tuple[Knob, ...]
    same: int
    written_defaults: tuple[str, ...] = ()
    warnings: tuple[Note, ...] = ()
