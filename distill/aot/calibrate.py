"""Constants of the time estimates, measured on a user's own recording of the same chip.

    found = calibrate("run.xplane.pb")
    export_profile(compiled, asked, path, constants=found.constants)

Op by op: never against the time of a step, a throughput or an MFU. docs/distill/calibrate.md says which ops tell what.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from distill.aot.calibrate_fit import Finding, calibrated
from distill.aot.calibrate_samples import read_samples
from distill.aot.model_constants import Constant, constants_of
from distill.aot.timing import Timer
from profiler.api import load
from profiler.errors import NotComparableError, UnreadableError, UsageError
from profiler.hardware import CHIPS, Chip, identify_tpu
from profiler.trace import Trace

_PREFIXES = ((1e9, "G"), (1e6, "M"), (1e3, "k"), (1.0, ""), (1e-3, "m"), (1e-6, "µ"), (1e-9, "n"))
_SCALED = ("B/s", "s", "cycles/s")  # units that take a prefix


@dataclass(frozen=True)
class Calibration:
    """What a recording says about the constants of its chip.

    Attributes:
        chip: of profiler.hardware.
        source: names the recording.
        findings: by constant: those that an op of the recording hangs on.
    """

    chip: Chip
    source: str
    findings: Mapping[str, Finding]

    @property
    def constants(self) -> dict[str, Constant]:
        """Those that were measured: overrides for distill.aot.model_constants.constants_of."""
        return {name: each.measured for name, each in self.findings.items() if each.measured}

    def to_json(self) -> str:
        """For ``from_json``."""
        findings = {name: asdict(each) for name, each in self.findings.items()}
        return json.dumps({"chip": self.chip.key, "source": self.source, "findings": findings}, indent=1) + "\n"

    def to_text(self) -> str:
        """A table, one line per constant."""
        rows: list[tuple[str, ...]] = [("constant", "default", "measured", "range", "ops", "sizes", "calls", "")]
        for name, each in self.findings.items():
            found = each.measured
            value, ends = ("–", "–") if found is None else (_amount(found.value, found.unit), _range(found))
            counts = (f"{count:,}" for count in (each.ops, each.sizes, each.calls))
            rows.append((name, _amount(each.default.value, each.default.unit), value, ends, *counts, each.reason))
        widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
        lines = ["  ".join(f"{cell:{width}}" for cell, width in zip(row, widths, strict=True)).rstrip() for row in rows]
        table = constants_of(self.chip).table
        rest = [name for name, each in table.items() if each.fast != each.slow and name not in self.findings]
        return "\n".join(
            [
                f"constants of {self.chip.name}, measured on {self.source}",
                *lines,
                f"no op in the recording tells: {', '.join(rest) or 'none'}",
                "",
            ]
        )


def calibrate(path: str | Path, chip: Chip | None = None) -> Calibration:
    """Measures constants, or reads those that were saved as JSON.

    Args:
        path: what ``profiler`` takes as a recording, or a ``.json`` file made by ``Calibration.to_json``.
        chip: for which they are wanted; None takes the recording's.

    Raises:
        NotComparableError: it is of another chip, or no recording of a TPU.
        UnreadableError: it cannot be read, or lacks the ops or programs to calibrate with.
    """
    found = _saved(Path(path)) if str(path).endswith(".json") else _measured(str(path))
    if chip is not None and found.chip.key != chip.key:
        raise NotComparableError(
            f"is of {found.chip.name}, and the estimates are for {chip.name}",
            file=path,
            remedy="calibrate with a recording of the same chip",
        )
    return found


def recorded(path: str) -> tuple[Trace, Chip]:
    """A recording that can be calibrated with, and its chip; raises as ``calibrate`` does."""
    trace = load(path, timelines=False)
    first = trace.devices[0]
    if trace.kind == "compiled":
        raise NotComparableError("is a compiled profile: its times are estimates, nothing was measured", file=path)
    if first.platform != "tpu":
        raise NotComparableError(f"was recorded on {first.type or first.platform.upper()}, not on a TPU", file=path)
    chip = identify_tpu(first.type)
    if not trace.programs:
        raise UnreadableError(
            "holds no HLO of its programs, so no bytes or FLOPs of their ops", file=path,
            remedy="record with jax.profiler, which adds them unless host_tracer_level or enable_hlo_proto turn it off",
        )  # fmt: skip
    if chip is None:
        raise UnreadableError(f"does not name its chip, or one without known peaks: {first.type}", file=path)
    return trace, chip


def _measured(path: str) -> Calibration:
    trace, chip = recorded(path)
    timer, source = Timer(chip, constants_of(chip)), ", ".join(Path(file).name for file in trace.files)
    samples = read_samples(trace, timer)
    if not samples:
        raise UnreadableError("has no device op that its HLO describes", file=path)
    return Calibration(chip, source, calibrated(samples, timer, source))


def _saved(path: Path) -> Calibration:
    try:
        found = json.loads(path.read_text(encoding="utf-8"))
        chip = next(each for each in CHIPS if each.key == found["chip"])
        defaults = constants_of(chip).table
        findings = {name: _finding(each) for name, each in found["findings"].items()}
        if not findings.keys() <= defaults.keys():
            raise ValueError("unknown constant")
        return Calibration(chip, str(found["source"]), findings)
    except OSError as error:
        raise UnreadableError(f"cannot be read: {error.strerror or error}", file=path) from error
    except (ValueError, KeyError, TypeError, AttributeError, StopIteration, RecursionError) as error:
        raise UnreadableError("is not what `distill calibrate -o` writes", file=path) from error


def _finding(found: Mapping[str, Any]) -> Finding:
    default, measured = found["default"], found["measured"]
    ops, sizes, calls = (int(found[key]) for key in ("ops", "sizes", "calls"))
    return Finding(
        _constant(default), _constant(measured) if measured else None, ops, sizes, calls, str(found["reason"])
    )


def _constant(found: Mapping[str, Any]) -> Constant:
    value, fast, slow = (float(found[key]) for key in ("value", "fast", "slow"))
    if not (value > 0 and fast >= 0 and slow >= 0 and math.isfinite(value + fast + slow)):
        raise ValueError("a constant is a positive number")
    return Constant(value, fast, slow, str(found["unit"]), str(found["source"]))


def save(found: Calibration, path: Path) -> None:
    """Writes the JSON.

    Raises:
        UsageError: the file cannot be written.
    """
    try:
        path.write_text(found.to_json(), encoding="utf-8")
    except OSError as error:
        raise UsageError(f"cannot be written to: {error.strerror or error}", file=path) from error


def _amount(value: float, unit: str) -> str:
    """``44.1 GB/s``, ``0.82 of HBM bandwidth``."""
    word, _, rest = unit.partition(" ")
    if word not in _SCALED:
        return f"{value:.4g} {unit}"
    size, prefix = next((each for each in _PREFIXES if abs(value) >= each[0]), _PREFIXES[-1])
    return f"{value / size:.3g} {prefix}{word} {rest}".rstrip()


def _range(constant: Constant) -> str:
    low, high = (_amount(each, constant.unit) for each in sorted((constant.fast, constant.slow)))
    return f"{low.split()[0] if low.split()[1:] == high.split()[1:] else low} – {high}"
