"""The pool read: causal attention over events whose logits also hold a clock, a write tag and a match."""

from trainer_core.kernels.pool_read.reference import pool_read_reference as pool_read
from trainer_core.kernels.pool_read.reference import pool_weights_reference as pool_weights
from trainer_core.kernels.pool_read.seen import seen_before

__all__ = ["pool_read", "pool_weights", "seen_before"]
