"""Cross-entropy of a linear head without the whole logits: twin in `reference`, chunked operator in `op`, a
chunk's arithmetic in `logits`, and kernels of a GPU in `triton`."""

from trainer_core.kernels.cross_entropy.logits import fused
from trainer_core.kernels.cross_entropy.op import linear_cross_entropy
from trainer_core.kernels.cross_entropy.reference import IGNORE_INDEX

__all__ = ["IGNORE_INDEX", "fused", "linear_cross_entropy"]
