"""The dendritic layer: heads of neurons whose compartments leak at a learnt, token-dependent rate.

    z, c, delta = W_in RMSNorm(h)          c = silu(conv(c)) -> u [heads, P], b and r [groups, N]
    dt = softplus(delta + dt_bias)         A = -exp(A_log)
    V_t = exp(A dt_t) V_{t-1} + dt_t u_t b_t^T     potentials of the compartments
    s_t = V_t r_t + skip u_t                       potential of the soma
    h <- h + W_out (release(RMSNorm(s); theta) silu(z))

Shapes: B rows, T tokens, D width, E channels of the soma, H heads of P channels, N compartments, G groups.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from trainer_core.kernels.conv import causal_conv_silu
from trainer_core.kernels.norm import rms_norm
from trainer_core.kernels.release import fired, norm_release_gate
from trainer_core.kernels.scan import scan
from trainer_core.kernels.split_linear import split_linear
from trainer_core.kernels.tensors import wide
from trainer_core.models.blocks import Linear, RMSNorm, recomputed
from trainer_core.models.neuronspark.config import NeuronSparkConfig
from trainer_core.models.neuronspark.layer import Context, Note, project

DendriticState = tuple[Tensor, Tensor]
"""Potentials [B, H, P, N] and the last inputs of the convolution [B, W - 1, E + 2 G N]."""


class DendriticLayer(nn.Module):
    """One dendritic layer."""

    def __init__(self, c: NeuronSparkConfig, dtype: torch.dtype) -> None:
        super().__init__()
        self.c = c
        E, H = c.dendritic_width, c.dendritic_heads
        self.norm = RMSNorm(c.width, c.norm_eps, dtype)
        self.in_proj = Linear(c.width, E + c.conv_channels + H, dtype)
        self.conv_weight = nn.Parameter(torch.empty(c.conv_channels, c.conv_width, dtype=dtype))
        self.dt_bias = nn.Parameter(torch.empty(H, dtype=dtype))
        self.A_log = nn.Parameter(torch.empty(H, dtype=dtype))
        self.skip = nn.Parameter(torch.empty(H, dtype=dtype))
        self.soma_norm = RMSNorm(E, c.norm_eps, dtype)
        self.theta = nn.Parameter(torch.empty(E, dtype=dtype))
        self.out_proj = Linear(E, c.width, dtype)

    def forward(self, h: Tensor, context: Context, *, redo: bool = False, note: Note | None = None) -> Tensor:
        """The residual stream [B, T, D] after it; with `redo` the backward pass runs the neurons again."""
        z, u, rest = self._projected(h)
        if redo and torch.is_grad_enabled():
            o = recomputed(self._released, z, u, rest)
        else:
            o = self._neurons(z, u, rest, None, note)[0]
        return h + project(o, self.out_proj)

    def init_state(self, rows: int) -> DendriticState:
        """The state before the first token."""
        c, like = self.c, self.dt_bias
        shape = (rows, c.dendritic_heads, c.dendritic_width // c.dendritic_heads, c.compartments)
        before = self.in_proj.weight.new_zeros(rows, c.conv_width - 1, c.conv_channels)
        return wide(like).new_zeros(shape), before

    def advance(self, h: Tensor, context: Context, state: DendriticState) -> tuple[Tensor, DendriticState]:
        """The residual stream of the next tokens, and the state after them."""
        o, state = self._neurons(*self._projected(h), state, None)
        return h + project(o, self.out_proj), state

    def _projected(self, h: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """z and what u is made of [B, T, E]; what b, r and the steps are made of [B, T, 2 G N + H]."""
        E, weight = self.c.dendritic_width, self.in_proj.weight
        z, u, rest = split_linear(self.norm(h).to(weight.dtype), weight, (E, E, len(weight) - 2 * E))
        return z, u, rest

    def _released(self, z: Tensor, u: Tensor, rest: Tensor) -> Tensor:
        return self._neurons(z, u, rest, None, None)[0]

    def _neurons(
        self, z: Tensor, u: Tensor, rest: Tensor, state: DendriticState | None, note: Note | None
    ) -> tuple[Tensor, DendriticState]:
        """What the neurons release [B, T, E], from what the input is projected to."""
        c, (B, T, _) = self.c, z.shape
        E, H, G, N = c.dendritic_width, c.dendritic_heads, c.synapse_groups, c.compartments
        potentials, taken = (None, None) if state is None else state
        synapses, delta = torch.split(rest, [2 * G * N, H], dim=-1)
        u, synapses, taken = self._convolved(u, synapses, taken)
        b, r = torch.split(synapses.view(B, T, 2 * G, N), G, dim=2)
        u = u.view(B, T, H, E // H)
        dt = F.softplus(wide(delta) + self.dt_bias)
        A = -self.A_log.exp()
        s, potentials = scan(u, dt, A, b, r, potentials, skip=self.skip)
        s = s.view(B, T, E)
        if note is not None:
            note("dt", dt)
            note("A", A)
            note("fired", fired(rms_norm(s, self.soma_norm.weight, c.norm_eps), self.theta))
        binary = c.release == "binary"
        o = norm_release_gate(s, self.soma_norm.weight, self.theta, z, c.norm_eps, binary=binary)
        return o, (potentials, taken)

    def _convolved(self, u: Tensor, synapses: Tensor, before: Tensor | None) -> tuple[Tensor, Tensor, Tensor]:
        """Both after their convolution, and the last inputs of it."""
        sizes = [u.shape[-1], synapses.shape[-1]]
        pasts = (None, None) if before is None else torch.split(before, sizes, dim=-1)
        taps = torch.split(self.conv_weight, sizes)
        (u, u_last), (synapses, last) = (
            causal_conv_silu(x, w, past) for x, w, past in zip((u, synapses), taps, pasts, strict=True)
        )
        return u, synapses, torch.cat((u_last, last), dim=-1)
