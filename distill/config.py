"""The configuration of a run, under one roof.

`Config` has one field per key (settings/schema.py), `ModelSpec` is the shape of one model (settings/models.py), and
`load` turns a recipe's name or a YAML file and `key=value` overrides into a checked configuration (settings/load.py)::

    loaded = load("tiny-qwen3-base", ["steps=10", "student_overrides.head_dim=64"])
    loaded.config.student.head_dim
"""

from distill.settings.check import check_for_tpu
from distill.settings.load import Loaded, load, recipes
from distill.settings.models import MODELS, ModelSpec
from distill.settings.schema import REMAT_TENSORS, Config

__all__ = ["MODELS", "REMAT_TENSORS", "Config", "Loaded", "ModelSpec", "check_for_tpu", "load", "recipes"]
