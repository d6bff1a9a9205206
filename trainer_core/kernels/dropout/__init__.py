"""Dropout without a generator: twin in `reference`, kernel in `triton`, operator in `op`."""

from trainer_core.kernels.dropout.op import dropout

__all__ = ["dropout"]
