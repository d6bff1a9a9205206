"""Causal self-attention as one operator: twin in `reference`, block-causal path, operator in `op`."""

from trainer_core.kernels.attention.op import causal_attention
from trainer_core.kernels.attention.reference import causal_attention_reference

__all__ = ["causal_attention", "causal_attention_reference"]
