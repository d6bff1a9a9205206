"""Cross-entropy of a linear head without the whole logits: twin in `reference`, chunked operator in `op`."""

from trainer_core.kernels.cross_entropy.op import IGNORE_INDEX, linear_cross_entropy

__all__ = ["IGNORE_INDEX", "linear_cross_entropy"]
