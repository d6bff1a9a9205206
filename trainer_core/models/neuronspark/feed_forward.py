"""The second half of a hippocampal layer: neurons of both signs, a gate and an input, their product.

i = release of both signs (RMSNorm(h); in_theta)
h <- h + W_down (release(W_gate i; gate_theta_ffn) release(W_up i; up_theta))
"""

from __future__ import annotations

import torch
from torch import Tensor, nn

from trainer_core.kernels.release import fired, release, release_product
from trainer_core.models.blocks import Linear, RMSNorm
from trainer_core.models.neuronspark.config import NeuronSparkConfig
from trainer_core.models.neuronspark.layer import Note, project


class FeedForward(nn.Module):
    """Three populations of neurons."""

    def __init__(self, c: NeuronSparkConfig, dtype: torch.dtype) -> None:
        super().__init__()
        self.binary = c.release == "binary"
        self.ffn_norm = RMSNorm(c.width, c.norm_eps, dtype)
        self.in_theta = nn.Parameter(torch.empty(c.width, dtype=dtype))
        self.ffn_gate = Linear(c.width, c.ffn, dtype)
        self.ffn_up = Linear(c.width, c.ffn, dtype)
        self.gate_theta_ffn = nn.Parameter(torch.empty(c.ffn, dtype=dtype))
        self.up_theta = nn.Parameter(torch.empty(c.ffn, dtype=dtype))
        self.ffn_down = Linear(c.ffn, c.width, dtype)

    def forward(self, h: Tensor, note: Note | None = None) -> Tensor:
        """The residual stream [B, T, D] after it."""
        x = self.ffn_norm(h)
        i = release(x, self.in_theta, two_sided=True, binary=self.binary)
        gate, up = project(i, self.ffn_gate), project(i, self.ffn_up)
        if note is not None:
            note("ffn_in_fired", fired(x, self.in_theta, two_sided=True))
            note("ffn_gate_fired", fired(gate, self.gate_theta_ffn))
            note("ffn_up_fired", fired(up, self.up_theta))
        inner = release_product(gate, up, self.gate_theta_ffn, self.up_theta, binary=self.binary)
        return h + project(inner, self.ffn_down)
