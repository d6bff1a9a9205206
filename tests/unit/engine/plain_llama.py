"""An independent Llama in plain PyTorch (nn.Linear, explicit softmax, one cross_entropy), for comparison."""

from __future__ import annotations

import math

import torch
from torch import Tensor, nn
from torch.nn import functional as F


class PlainBlock(nn.Module):
    def __init__(self, D: int, H: int, ffn: int) -> None:
        super().__init__()
        self.H = H
        self.attention_norm = nn.RMSNorm(D, eps=1e-5)
        self.ffn_norm = nn.RMSNorm(D, eps=1e-5)
        self.attention = nn.ModuleDict(
            {name: nn.Linear(D, D, bias=False) for name in ("q_proj", "k_proj", "v_proj", "out_proj")}
        )
        self.ffn = nn.ModuleDict(
            {
                "gate_proj": nn.Linear(D, ffn, bias=False),
                "up_proj": nn.Linear(D, ffn, bias=False),
                "down_proj": nn.Linear(ffn, D, bias=False),
            }
        )

    def _heads(self, name: str, x: Tensor) -> Tensor:
        B, T, D = x.shape
        return self.attention[name](x).view(B, T, self.H, D // self.H).transpose(1, 2)

    def forward(self, x: Tensor) -> Tensor:
        B, T, D = x.shape
        h = self.attention_norm(x)
        q, k, v = (self._heads(n, h) for n in ("q_proj", "k_proj", "v_proj"))
        scores = turned(q) @ turned(k).transpose(-1, -2) / math.sqrt(D // self.H)
        scores = scores + torch.full((T, T), -math.inf, dtype=x.dtype).triu(1)
        mixed = (scores.softmax(-1) @ v).transpose(1, 2).reshape(B, T, D)
        x = x + self.attention["out_proj"](mixed)
        h = self.ffn_norm(x)
        return x + self.ffn["down_proj"](F.silu(self.ffn["gate_proj"](h)) * self.ffn["up_proj"](h))


def turned(x: Tensor) -> Tensor:
    """Each pair (j, j + d/2) as a complex number, turned by t / 10000^(2j/d)."""
    T, d = x.shape[-2:]
    x = x.float() if x.dtype == torch.bfloat16 else x  # under autocast
    angles = torch.outer(torch.arange(T).double(), 10_000.0 ** (-torch.arange(0, d, 2).double() / d))
    z = torch.complex(x[..., : d // 2], x[..., d // 2 :]) * torch.polar(torch.ones_like(angles), angles).to(
        torch.complex128 if x.dtype == torch.float64 else torch.complex64
    )
    return torch.cat([z.real, z.imag], -1)


class PlainLlama(nn.Module):
    def __init__(self, V: int, L: int, D: int, H: int, ffn: int) -> None:
        super().__init__()
        self.embedding = nn.Embedding(V, D)
        self.blocks = nn.ModuleList(PlainBlock(D, H, ffn) for _ in range(L))
        self.norm = nn.RMSNorm(D, eps=1e-5)

    def forward(self, rows: Tensor) -> Tensor:
        """Mean cross-entropy of rows [R, L + 1]."""
        x = self.embedding(rows[:, :-1])
        for block in self.blocks:
            x = block(x)
        logits = self.norm(x) @ self.embedding.weight.T
        return F.cross_entropy(logits.flatten(0, 1), rows[:, 1:].flatten())
