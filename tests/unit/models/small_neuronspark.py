"""A NeuronSpark small enough for many passes, with two layers of each kind and no two widths alike."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from trainer_core.models.neuronspark.model import NeuronSpark
from trainer_core.models.registry import build

CONFIG: dict[str, Any] = {
    "width": 16,
    "layers": 4,
    "interval": 2,
    "dendritic_width": 24,
    "dendritic_heads": 4,
    "compartments": 5,
    "synapse_groups": 2,
    "heads": 4,
    "key_heads": 2,
    "trace_heads": 3,
    "trace_channels": 2,
    "gate_width": 10,
    "ffn": 20,
    "pkm_keys": 5,
    "pkm_top": 3,
    "pkm_heads": 2,
    "pkm_key_dim": 6,
    "pkm_value_dim": 7,
    "rope_max_seq_len": 300,
}

VOCAB = 31


def small(
    seed: int = 0, vocab: int = VOCAB, dtype: torch.dtype = torch.float32, **config: Any
) -> NeuronSpark:
    """The model with some of its configuration replaced."""
    model = build("neuronspark", CONFIG | config, vocab, seed, dtype)
    assert isinstance(model, NeuronSpark)
    return model


def token_ids(T: int, rows: int = 2, vocab: int = VOCAB) -> Tensor:
    """Rows of T + 1 random tokens."""
    return torch.randint(vocab, (rows, T + 1), generator=torch.Generator().manual_seed(T))


def disturbed(model: NeuronSpark) -> NeuronSpark:
    """Every parameter moved a little, so that none is at a value that would hide it."""
    g = torch.Generator().manual_seed(1)
    with torch.no_grad():
        for param in model.parameters():
            param.add_(torch.randn(param.shape, generator=g).to(param.dtype), alpha=0.1)
    return model


def gradients(model: NeuronSpark, ids: Tensor, ac: str = "none") -> list[Tensor]:
    """Of the loss, in the order of the parameters."""
    total, _ = model.loss(ids[:, :-1], ids[:, 1:], ac)
    return list(torch.autograd.grad(total, list(model.parameters())))
