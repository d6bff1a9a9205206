"""The trace of a hippocampal layer: what was lately, forgotten at several rates; it steers the memory.

    ut, delta = W_tr x      tdt = softplus(delta + tr_dt_bias)      tA = -exp(tr_A_log)
    e_t = exp(tA tdt_t) e_{t-1} + tdt_t |tA| ut_t

It is the scan of the dendritic layer with one compartment that everything is written to and read from.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from trainer_core.kernels.scan import scan
from trainer_core.kernels.tensors import wide
from trainer_core.models.blocks import Linear
from trainer_core.models.neuronspark.config import NeuronSparkConfig
from trainer_core.models.neuronspark.layer import Note, project


class Trace(nn.Module):
    """Leaky averages of projections of the input."""

    def __init__(self, c: NeuronSparkConfig, dtype: torch.dtype) -> None:
        super().__init__()
        self.heads, self.channels = c.trace_heads, c.trace_channels
        self.trace_proj = Linear(c.width, c.trace_width + c.trace_heads, dtype)
        self.tr_dt_bias = nn.Parameter(torch.empty(c.trace_heads, dtype=dtype))
        self.tr_A_log = nn.Parameter(torch.empty(c.trace_heads, dtype=dtype))

    def forward(self, x: Tensor, state: Tensor | None, note: Note | None = None) -> tuple[Tensor, Tensor]:
        """The trace [B, T, heads x channels] of x [B, T, D] and its last value [B, heads, channels, 1]."""
        B, T, _ = x.shape
        mixed, delta = torch.split(
            project(x, self.trace_proj), [self.heads * self.channels, self.heads], dim=-1
        )
        dt = F.softplus(wide(delta) + self.tr_dt_bias)
        rate = self.tr_A_log.exp()
        if note is not None:
            note("trace_dt", dt)
            note("trace_A", -rate)
        u = mixed.view(B, T, self.heads, self.channels) * rate[:, None].to(mixed.dtype)
        one = u.new_ones(B, T, 1, 1)
        e, state = scan(u, dt, -rate, one, one, state)
        return e.flatten(2), state

    def init_state(self, rows: int) -> Tensor:
        """The trace of no token."""
        return wide(self.tr_dt_bias).new_zeros(rows, self.heads, self.channels, 1)
