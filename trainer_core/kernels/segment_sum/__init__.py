"""Sums of rows by index in a fixed order: twin in `reference`, operators in `op`."""

from trainer_core.kernels.segment_sum.op import segment_sum, weighted_rows

__all__ = ["segment_sum", "weighted_rows"]
