"""NeuronSpark: a spiking selective state space model whose every fourth layer remembers single events.

Files: `config` its shape, `dendritic` and `hippocampal` the two layers; of the second, `leaky_trace` is the
slow context that steers it, `product_keys` the table it knows by heart, `feed_forward` its neurons;
`initialize` first values by name, `groups` the optimizer's view, `flops` its cost, `probes` a look inside,
`model` the stack.

A layer is a function of the residual stream, the tokens (`Context`) and what came before (its state), of
which training passes none. Each takes an optional `note`, which is called with the name and value of an
inner quantity: probes look inside without a second implementation, and training never makes what only they
need. Equations: the model's design, section 3; names in the code are those of its parameters.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:  # importing this package, as its presets do, loads no torch
    import torch

    from trainer_core.models.neuronspark.model import NeuronSpark


def build(config: Mapping[str, Any], vocab_size: int, seed: int, dtype: torch.dtype) -> NeuronSpark:
    """Builds and initialises a NeuronSpark; under torch.device("meta") only its shapes."""
    from trainer_core.models.neuronspark.config import NeuronSparkConfig
    from trainer_core.models.neuronspark.model import NeuronSpark

    return NeuronSpark(NeuronSparkConfig.read(config), vocab_size, seed, dtype)
