"""Facts about the run that no event tells: model FLOPs, tokens, configuration.

They come from the run-info plane of the trace, or from a configuration file (--config). Keys that are understood:
``model_tflops_per_device_per_step``, ``tokens_per_step`` (all devices together), ``convention`` (how the FLOPs were
counted), ``layers``, ``config`` (the knobs), ``xla_flags``, ``mesh``, ``versions``, ``git_commit``, ``metrics``.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from profiler.errors import UnreadableError
from profiler.trace import Trace

FACTS = ("model_tflops_per_device_per_step", "tokens_per_step", "convention", "layers")


def with_config(trace: Trace, config: Path | None) -> Trace:
    """The trace with a configuration file's facts; the file wins over what the trace carries."""
    if config is None:
        return trace
    document = read_config(config)
    facts = {key: document.pop(key) for key in FACTS if key in document}
    info = dict(trace.run_info or {})
    # A file that is itself run info has its knobs one level down.
    knobs = document.pop("config", None)
    info |= facts | {"config": {**document, **knobs} if isinstance(knobs, Mapping) else document}
    return replace(trace, run_info=info)


def read_config(file: Path) -> dict[str, Any]:
    """A YAML (or JSON) mapping.

    Raises:
        UnreadableError: missing, not YAML, or not a mapping.
    """
    import yaml

    try:
        document = yaml.safe_load(file.read_text(encoding="utf-8"))
    except OSError as error:
        raise UnreadableError(f"cannot be read: {error.strerror or error}", file=file) from error
    except (yaml.YAMLError, UnicodeDecodeError, RecursionError) as error:
        line = str(error).splitlines()[0] if str(error) else type(error).__name__
        raise UnreadableError(f"is not YAML: {line}", file=file) from error
    if not isinstance(document, dict):
        raise UnreadableError("is not a mapping of keys to values", file=file)
    return {str(key): value for key, value in document.items()}


def fact(trace: Trace, key: str) -> float | None:
    """A positive number of the run info, None where it is absent or no such number."""
    value = (trace.run_info or {}).get(key)
    if isinstance(value, bool) or not isinstance(value, int | float):
        return None
    return float(value) if 0 < value < float("inf") else None


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
