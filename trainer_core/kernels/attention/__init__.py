"""Causal self-attention as one operator: twin in `reference`, block-causal path, operator in `op`."""

from trainer_core.kernels.attention.op import causal_attention
from trainer_core.kernels.attention.reference import causal_attention_reference

__all__ = ["ATTENTION", "causal_attention", "causal_attention_reference"]

ATTENTION = {"fast": causal_attention, "reference": causal_attention_reference}
"""Values of a model's `attention`: by blocks, or an explicit softmax over whole rows, for comparison."""
