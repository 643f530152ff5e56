"""Facts about the run that no event tells: model FLOPs, tokens, configuration.

They come from the run-info plane of the trace, or from a configuration file (--config); docs/run-info.md lists the
keys.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from profiler.errors import UnreadableError
from profiler.results import Note
from profiler.trace import Trace
from profiler.xplane.urls import is_remote, shown

NUMBERS = ("model_tflops_per_device_per_step", "tokens_per_device_per_step", "tokens_per_step", "layers")
FACTS = (*NUMBERS, "convention", "mesh", "distillation")
MAX_BYTES = 16 << 20
MAX_VALUES = 100_000  # aliases can make a small file hold any number of values
MAX_DEPTH = 64


def with_config(trace: Trace, config: Path | str | None) -> Trace:
    """The trace with a configuration file's facts; the file wins over what the trace carries."""
    if config is None:
        return trace
    document = read_config(config)
    facts = {key: document.pop(key) for key in FACTS if key in document}
    info = dict(trace.run_info or {})
    # A file that is itself run info has its knobs one level down.
    knobs = document.pop("config", None)
    info |= facts | {"config": {**document, **knobs} if isinstance(knobs, Mapping) else document}
    return replace(trace, run_info=info, configured=frozenset((*facts, "config")))


def config_info(file: Path | str) -> dict[str, Any]:
    """A configuration file as run info; one that is itself run info as it is."""
    document = read_config(file)
    if isinstance(document.get("config"), Mapping):
        return document
    facts = {key: document.pop(key) for key in FACTS if key in document}
    return facts | {"config": document}


def read_config(file: Path | str) -> dict[str, Any]:
    """A YAML (or JSON) mapping, in a file or at a URL.

    Raises:
        UnreadableError: missing, not YAML, or not a mapping.
    """
    import yaml

    name = shown(str(file))
    try:
        document = yaml.safe_load(_text(file))
    except OSError as error:
        raise UnreadableError(f"cannot be read: {error.strerror or error}", file=name) from error
    except (yaml.YAMLError, ValueError, OverflowError, RecursionError) as error:
        line = " ".join(str(error).split())[:200] or type(error).__name__
        raise UnreadableError(f"cannot be read as YAML: {line}", file=name) from error
    if not isinstance(document, dict):
        raise UnreadableError("is not a mapping of keys to values", file=name)
    if not bounded(document):
        raise UnreadableError(f"holds more than {MAX_VALUES:,} values, or values {MAX_DEPTH} deep", file=name)
    return {str(key): value for key, value in document.items()}


def _text(file: Path | str) -> str:
    if is_remote(str(file)):
        from profiler.xplane.remote import read_small

        return read_small(str(file), MAX_BYTES).decode("utf-8")
    file = Path(file)
    if not file.is_file():
        raise UnreadableError("no such file" if not file.exists() else "is not a file", file=file)
    if file.stat().st_size > MAX_BYTES:
        raise UnreadableError(f"is larger than {MAX_BYTES >> 20} MiB: no configuration is", file=file)
    return file.read_text(encoding="utf-8")


def bounded(value: Any) -> bool:
    """Whether a document, its aliases written out, stays within MAX_VALUES and MAX_DEPTH."""
    pending, seen = [(value, 0)], 0
    while pending:
        item, depth = pending.pop()
        seen += 1
        if seen > MAX_VALUES or depth > MAX_DEPTH:
            return False
        if isinstance(item, Mapping):
            pending += [(each, depth + 1) for each in item.values()]
        elif isinstance(item, list | tuple):
            pending += [(each, depth + 1) for each in item]
    return True


def fact(trace: Trace, key: str) -> float | None:
    """A positive number of the run info, None where it is absent or no such number."""
    return number((trace.run_info or {}).get(key))


def number(value: Any) -> float | None:
    """A positive, finite number within reason; texts such as 1e3, which YAML leaves as text, count too."""
    if isinstance(value, bool) or not isinstance(value, int | float | str):
        return None
    try:
        found = float(value)
    except (ValueError, OverflowError):
        return None
    return found if math.isfinite(found) and 1e-12 < found < 1e18 else None


def fact_notes(trace: Trace) -> list[Note]:
    """Facts that are there and cannot be used, so that nobody wonders why they seem unknown."""
    info = trace.run_info or {}
    return [
        Note("fact_unusable", f"{key} is {str(info[key])[:80]!r}: not a positive number, so it is left out")
        for key in NUMBERS
        if info.get(key) is not None and number(info[key]) is None
    ]


def tokens_per_device(trace: Trace) -> float | None:
    """Tokens per device and step: as given, else those of all devices by the mesh, else by the devices of the trace."""
    given, total = fact(trace, "tokens_per_device_per_step"), fact(trace, "tokens_per_step")
    if given or not total:
        return given
    mesh = (trace.run_info or {}).get("mesh")
    sizes = [number(size) for size in mesh.values()] if isinstance(mesh, Mapping) else []
    devices = math.prod(size for size in sizes if size) if sizes and None not in sizes else None
    return total / (devices or trace.recorded_devices)


def flat(config: Any, prefix: str = "") -> dict[str, Any]:
    """Nested mappings with dotted keys: ``student_overrides.head_dim``."""
    if not isinstance(config, Mapping):
        return {}
    found: dict[str, Any] = {}
    for key, value in config.items():
        name = f"{prefix}{key}"
        if isinstance(value, Mapping) and value:
            found |= flat(value, f"{name}.")
        else:
            found[name] = value
    return found
