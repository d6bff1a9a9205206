"""The pool read: causal attention over events whose logits also hold a clock, a write tag and a match.

Twin in `reference`, path for every device in `blocks`, operator in `op`.
"""

from trainer_core.kernels.pool_read.op import pool_read, pool_weights
from trainer_core.kernels.pool_read.seen import seen_before

__all__ = ["pool_read", "pool_weights", "seen_before"]
