"""What operators do to their arguments alike: the dtype that they compute in, rows in memory."""

from __future__ import annotations

import torch
from torch import Tensor


def wide_dtype(*tensors: Tensor) -> torch.dtype:
    """float32, or the widest dtype of the tensors if that is wider."""
    dtype = torch.float32
    for tensor in tensors:
        dtype = torch.promote_types(dtype, tensor.dtype)
    return dtype


def wide(t: Tensor) -> Tensor:
    """t in float32, or as it is if that is wider."""
    return t.to(wide_dtype(t))


def as_rows(t: Tensor) -> Tensor:
    """[n, C] with neighbours in memory along C; a slice of something wider is not copied."""
    rows = t.reshape(-1, t.shape[-1])
    return rows if rows.stride(-1) == 1 else rows.contiguous()
