"""The specification of the causal depthwise convolution, differentiated by autograd."""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn import functional as F


def causal_conv_silu_reference(x: Tensor, taps: Tensor, state: Tensor | None = None) -> tuple[Tensor, Tensor]:
    """silu(y) and the last W-1 inputs, with y_t = sum_j taps[:, j] x_{t-(W-1)+j}.

    x [B, T, C], taps [C, W]; state [B, W-1, C] is what came before x, zeros by default.
    """
    B, T, C = x.shape
    W = taps.shape[1]
    before = x.new_zeros(B, W - 1, C) if state is None else state
    padded = torch.cat((before, x), dim=1)
    y = sum((padded[:, j : j + T] * taps[:, j] for j in range(W)), start=torch.zeros_like(x))
    return F.silu(y), padded[:, T:]
