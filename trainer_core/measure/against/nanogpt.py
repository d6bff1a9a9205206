"""A plain training loop in the style of nanoGPT: one file, autocast, the optimizer over a list of tensors.

The model is the same Llama, written as such scripts write it: torch's own attention, all logits at once.
"""

from __future__ import annotations

from contextlib import AbstractContextManager, nullcontext

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from trainer_core.kernels.cross_entropy import IGNORE_INDEX
from trainer_core.measure.against.contender import Batches
from trainer_core.measure.throughput import SCALARS, Workload
from trainer_core.models.llama import Llama, LlamaConfig


class PlainBlock(nn.Module):
    """Attention and SwiGLU behind RMSNorms."""

    def __init__(self, c: LlamaConfig) -> None:
        super().__init__()
        self.heads = c.heads
        self.attention_norm = nn.RMSNorm(c.width, c.norm_eps)
        self.attention = nn.ModuleDict(
            {
                name: nn.Linear(c.width, c.width, bias=False)
                for name in ("q_proj", "k_proj", "v_proj", "out_proj")
            }
        )
        self.ffn_norm = nn.RMSNorm(c.width, c.norm_eps)
        self.ffn = nn.ModuleDict(
            {
                "gate_proj": nn.Linear(c.width, c.ffn, bias=False),
                "up_proj": nn.Linear(c.width, c.ffn, bias=False),
                "down_proj": nn.Linear(c.ffn, c.width, bias=False),
            }
        )

    def forward(self, x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
        x = x + self._attend(self.attention_norm(x), cos, sin)
        y = self.ffn_norm(x)
        gated = F.silu(self.ffn["gate_proj"](y)) * self.ffn["up_proj"](y)
        out: Tensor = x + self.ffn["down_proj"](gated)
        return out

    def _attend(self, x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
        B, T, D = x.shape
        q, k, v = (
            self.attention[name](x).view(B, T, self.heads, -1).transpose(1, 2)
            for name in ("q_proj", "k_proj", "v_proj")
        )
        q, k = _rotate(q, cos, sin), _rotate(k, cos, sin)
        y = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        out: Tensor = self.attention["out_proj"](y.transpose(1, 2).reshape(B, T, D))
        return out


class PlainLlama(nn.Module):
    """The parameter names are those of our Llama, so that its state dict loads."""

    cos: Tensor
    sin: Tensor

    def __init__(self, ours: Llama) -> None:
        super().__init__()
        c = ours.config
        self.embedding = nn.Embedding(ours.vocab_size, c.width)
        self.blocks = nn.ModuleList(PlainBlock(c) for _ in range(c.layers))
        self.norm = nn.RMSNorm(c.width, c.norm_eps)
        self.register_buffer("cos", ours.cos.clone(), persistent=False)
        self.register_buffer("sin", ours.sin.clone(), persistent=False)
        self.load_state_dict(ours.state_dict())

    def forward(self, ids: Tensor, targets: Tensor) -> Tensor:
        """Mean cross-entropy of ids and targets [B, T]."""
        x, T = self.embedding(ids), ids.shape[1]
        for block in self.blocks:
            x = block(x, self.cos[:T], self.sin[:T])
        logits = F.linear(self.norm(x), self.embedding.weight)
        return F.cross_entropy(logits.flatten(0, 1).float(), targets.flatten(), ignore_index=IGNORE_INDEX)


def _rotate(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    first, second = x.chunk(2, -1)
    turned = torch.cat([first * cos - second * sin, first * sin + second * cos], -1)
    return turned.to(x.dtype)


class NanoGpt:
    """The loop. In bf16 its matrix products run under autocast."""

    def __init__(self, workload: Workload, batches: Batches, *, bf16: bool) -> None:
        ours = workload.build()
        assert isinstance(ours, Llama), type(ours)
        self._model = PlainLlama(ours)
        self._bf16 = bf16
        self._rows = iter(batches)
        s, params = SCALARS, list(self._model.parameters())
        self._optimizer = torch.optim.AdamW(
            [
                {"params": [p for p in params if p.ndim >= 2], "weight_decay": s.weight_decay},
                {"params": [p for p in params if p.ndim < 2], "weight_decay": 0.0},
            ],
            lr=s.lr,
            betas=(s.beta1, s.beta2),
            eps=s.eps,
            fused=True,
        )

    def update(self) -> float:
        micro = next(self._rows)
        total = 0.0
        for rows in micro:
            with self._autocast():
                loss = self._model(rows[:, :-1], rows[:, 1:]) / len(micro)
            loss.backward()
            total += loss.item()
        nn.utils.clip_grad_norm_(self._model.parameters(), SCALARS.clip)
        self._optimizer.step()
        self._optimizer.zero_grad(set_to_none=True)
        return total

    def close(self) -> None:
        self._optimizer.zero_grad(set_to_none=True)

    def _autocast(self) -> AbstractContextManager[object]:
        return torch.autocast("cpu", torch.bfloat16) if self._bf16 else nullcontext()
