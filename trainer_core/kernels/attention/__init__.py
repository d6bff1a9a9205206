"""Causal self-attention as one operator: twin in `reference`, operator in `op`, which computes by
blocks or, on a GPU, by torch's own kernels in `flash`."""

from trainer_core.kernels.attention.op import causal_attention
from trainer_core.kernels.attention.reference import causal_attention_reference

__all__ = ["ATTENTION", "causal_attention", "causal_attention_reference"]

ATTENTION = {"fast": causal_attention, "reference": causal_attention_reference}
"""Values of a model's `attention`: by blocks, or an explicit softmax over whole rows, for comparison."""
