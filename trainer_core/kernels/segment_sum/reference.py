"""The specification of sums by index, differentiated by autograd."""

from __future__ import annotations

from torch import Tensor


def segment_sum_reference(rows: Tensor, index: Tensor, size: int) -> Tensor:
    """Sums [size, d] of rows [n, d] by index [n]; an index that does not occur has zeros."""
    return rows.new_zeros(size, rows.shape[1]).index_add(0, index, rows)


def weighted_rows_reference(table: Tensor, slots: Tensor, weights: Tensor) -> Tensor:
    """sum_j weights[:, j] table[slots[:, j]] of table [S, dv], slots and weights [n, k]: [n, dv]."""
    return (table[slots] * weights[..., None]).sum(1)
