"""The table that a hippocampal layer knows by heart: product keys choose slots of a large table of values.

A query is cut in two halves, each of which is compared with n sub-keys; the best k of each half make k x k
pairs, of which the best k are read. So n x n slots are searched by 2 n comparisons (Lample et al. 2019,
1907.05242).
"""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from trainer_core.kernels.best_pairs import best_pairs
from trainer_core.kernels.norm import rms_norm
from trainer_core.kernels.segment_sum import weighted_rows
from trainer_core.kernels.tensors import wide
from trainer_core.models.blocks import Linear
from trainer_core.models.neuronspark.config import NeuronSparkConfig
from trainer_core.models.neuronspark.layer import Note, project


class ProductKeys(nn.Module):
    """Keys, gate and projections of one layer; the table of values may be shared."""

    def __init__(self, c: NeuronSparkConfig, dtype: torch.dtype) -> None:
        super().__init__()
        self.c = c
        shape = (c.pkm_heads, 2, c.pkm_keys, c.pkm_key_dim // 2)
        self.pkm_q = Linear(c.width, c.pkm_heads * c.pkm_key_dim, dtype)
        self.pkm_q_norm = nn.Parameter(torch.empty(c.pkm_key_dim, dtype=dtype))
        self.pkm_keys = nn.Parameter(torch.empty(shape, dtype=dtype))
        self.pkm_out = Linear(c.pkm_value_dim, c.width, dtype)
        self.pkm_gate = Linear(c.width, 1, dtype)
        self.pkm_gate_bias = nn.Parameter(torch.empty(1, dtype=dtype))

    def forward(self, x: Tensor, values: Tensor, note: Note | None = None) -> Tensor:
        """What the table says to x [B, T, D], gated, [B, T, D]; values [n n, dv]."""
        B, T, _ = x.shape
        slots, weights = self._choose(x.flatten(0, 1))
        gate = torch.sigmoid(wide(project(x, self.pkm_gate)) + self.pkm_gate_bias)
        if note is not None:
            note("slots", slots)
            note("slot_weights", weights)
            note("pkm_gate", gate)
        heads = weights.shape[1]
        found = weighted_rows(values, slots.flatten(1), weights.flatten(1) / heads)
        out = project(found, self.pkm_out).view(B, T, -1)
        return gate.to(out.dtype) * out

    def _choose(self, x: Tensor) -> tuple[Tensor, Tensor]:
        """Slots and weights [n, heads, k] of x [n, D]; weights sum to 1 over k."""
        c, n = self.c, x.shape[0]
        q = project(x, self.pkm_q).view(n, c.pkm_heads, c.pkm_key_dim)
        q = rms_norm(q, self.pkm_q_norm, c.norm_eps).to(self.pkm_keys.dtype)
        halves = q.view(n, c.pkm_heads, 2, -1).movedim(0, 2)
        chosen, slots = best_pairs(halves, self.pkm_keys, c.pkm_top)
        return slots.permute(2, 0, 1), F.softmax(chosen, dim=1).permute(2, 0, 1)
