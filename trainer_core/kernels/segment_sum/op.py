"""Sums of rows by index, and weighted sums of the rows of a table."""

from trainer_core.kernels.segment_sum.reference import segment_sum_reference as segment_sum
from trainer_core.kernels.segment_sum.reference import weighted_rows_reference as weighted_rows

__all__ = ["segment_sum", "weighted_rows"]
