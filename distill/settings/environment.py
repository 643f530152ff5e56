"""The recipe's XLA flags, put where the backend looks for them."""

from __future__ import annotations

import os
from collections.abc import MutableMapping

from distill.settings.schema import Config


def set_xla_flags(config: Config, environ: MutableMapping[str, str] = os.environ) -> str:
    """Add `xla_flags` to the environment and return the variable's name. Call it before jax starts a backend.

    libtpu has flags of its own and reads them from LIBTPU_INIT_ARGS; every other backend reads XLA_FLAGS and ends the
    process on a flag that it does not know. So the flags of a recipe for TPU never reach another backend. Flags that
    are already set stay, and come last, so that they win.
    """
    variable = "LIBTPU_INIT_ARGS" if config.hardware.startswith("tpu") else "XLA_FLAGS"
    there = environ.get(variable, "").split()
    added = [flag for flag in config.xla_flags if flag not in there]
    if added:
        environ[variable] = " ".join([*added, *there])
    return variable
