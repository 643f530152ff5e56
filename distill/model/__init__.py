"""The two models that distillation joins, teacher and student: mixture-of-experts decoders in plain JAX.

- params.py: shapes, sharding, first values
- decoder.py: embedding, scanned layers, unembedding
- attention.py, moe.py: the two blocks of a layer
- norm.py, rope.py: what both use
"""

from distill.model.decoder import Output, forward, logits
from distill.model.moe import RouterStats
from distill.model.params import Params, ParamSpec, init_params, param_shardings, param_specs

__all__ = [
    "Output",
    "ParamSpec",
    "Params",
    "RouterStats",
    "forward",
    "init_params",
    "logits",
    "param_shardings",
    "param_specs",
]
