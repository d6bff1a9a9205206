"""Cross-entropy of a linear head without the whole logits: twin in `reference`, chunked operator in `op`, and
kernels of a GPU in `triton`."""

from trainer_core.kernels.cross_entropy.op import linear_cross_entropy
from trainer_core.kernels.cross_entropy.reference import IGNORE_INDEX

__all__ = ["IGNORE_INDEX", "linear_cross_entropy"]
