"""How the scan by chunks cuts its work: chunks of tokens, and blocks of chunks that fit the cache.

Tensors stand as [chunks, rows, heads, tokens of a chunk, ...]: chunks outside, so that a block of them, of
all rows, is one piece of memory, as are the potentials before and after them.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor

from trainer_core.kernels.target import target, worth_doing

CPU_BLOCK, BLOCK = 1 << 18, 1 << 26
"""Values of u in a block: about a megabyte on a CPU, elsewhere few launches count more."""

CPU_CHUNK, LONG_CPU_CHUNK = 16, 32
"""Tokens of a chunk on a CPU, and where a channel has as many compartments as that: more per potential."""

CHUNK, WIDE_CHUNK = 128, 64
"""Most tokens of a chunk elsewhere, and where u is wider than 16 bits; kernels take powers of two from 16."""

HEADS = 16
"""The most heads of a group that a kernel adds; the parts are added afterwards."""

WIDEST = 128
"""Most channels of a head and compartments of a channel that the kernels take."""


class Inputs(NamedTuple):
    """What a scan is over."""

    u: Tensor
    """[B, T, H, P]."""
    dt: Tensor
    """[B, T, H], float32 or wider, as A."""
    A: Tensor
    """[H]."""
    b: Tensor
    """[B, T, G, N]."""
    r: Tensor
    """[B, T, G, N]."""
    skip: Tensor | None
    """[H]."""


Gradients = tuple[Tensor, Tensor, Tensor, Tensor, Tensor, Tensor, Tensor]
"""Of u, dt, A, b, r, skip (of no use where there is none) and of the first potentials [B, H, P, N]."""


def chunk_length(u: Tensor, b: Tensor, wanted: int | None) -> int:
    """Tokens of a chunk for u [B, T, H, P] and b [B, T, G, N]."""
    T = u.shape[1]
    if target(u) == "cpu":
        suited = LONG_CPU_CHUNK if b.shape[-1] >= LONG_CPU_CHUNK else CPU_CHUNK
        return min(wanted or suited, T)
    return kernel_chunk(T, wanted or (CHUNK if u.element_size() == 2 else WIDE_CHUNK))


def kernel_chunk(T: int, most: int = CHUNK) -> int:
    """Tokens of a chunk where kernels run, for rows of T tokens."""
    return max(16, 1 << (min(most, T) - 1).bit_length())


def has_kernels(x: Inputs, Q: int) -> bool:
    """Whether there are kernels for these tensors on their device."""
    dtypes = x.u.dtype in (torch.float32, torch.bfloat16) and x.dt.dtype == torch.float32
    fits = max(x.u.shape[-1], x.b.shape[-1]) <= WIDEST and Q >= 16 and Q & (Q - 1) == 0
    return target(x.u) == "cuda" and dtypes and fits


@dataclass(frozen=True, kw_only=True)
class Shape:
    """Sizes of a call."""

    B: int
    """Rows."""
    T: int
    """Tokens of a row."""
    H: int
    """Heads."""
    P: int
    """Channels of a head."""
    G: int
    """Groups of heads; the heads of a group share b and r."""
    N: int
    """Compartments of a channel."""
    Q: int
    """Tokens of a chunk."""

    @staticmethod
    def of(x: Inputs, Q: int) -> Shape:
        B, T, H, P = x.u.shape
        return Shape(B=B, T=T, H=H, P=P, G=x.b.shape[2], N=x.b.shape[3], Q=Q)

    @property
    def chunks(self) -> int:
        """Chunks of a row; tokens that do nothing fill the last one."""
        return -(-self.T // self.Q)

    @property
    def num_potentials(self) -> int:
        """Values of all potentials that stand before or after a chunk."""
        return self.B * (self.chunks + 1) * self.H * self.N * self.P

    @property
    def heads_together(self) -> int:
        """Heads that a kernel adds: the most, up to HEADS, that divide the heads of a group."""
        return max(n for n in range(1, HEADS + 1) if (self.H // self.G) % n == 0)

    @property
    def parts(self) -> int:
        """Parts of the heads of a group, whose gradients of b and r are added afterwards."""
        return self.H // (self.G * self.heads_together)

    def fill(self, x: Tensor) -> Tensor:
        """x [B, T, ...] as [B, chunks, Q, ...], with zeros in the tokens that a last chunk lacks."""
        short = self.chunks * self.Q - self.T
        if short:
            x = torch.cat((x, x.new_zeros(self.B, short, *x.shape[2:])), dim=1)
        return x.view(self.B, self.chunks, self.Q, *x.shape[2:])

    def by_chunk(self, x: Tensor) -> Tensor:
        """A filled x [B, chunks, Q, heads, ...] as [chunks, B, heads, Q, ...], a view."""
        return x.transpose(0, 1).transpose(2, 3)

    def by_token(self, x: Tensor) -> Tensor:
        """x [chunks, B, heads, Q, ...] as [B, T, heads, ...], contiguous."""
        return self.cut(x.transpose(2, 3).transpose(0, 1).contiguous())

    def empty(self, x: Tensor) -> Tensor:
        """Room for a gradient of x, as `fill` shapes it."""
        return x.new_empty(self.B, self.chunks, self.Q, *x.shape[2:])

    def cut(self, x: Tensor) -> Tensor:
        """The reverse of `fill`."""
        x = x.view(self.B, self.chunks * self.Q, *x.shape[3:])
        return x if x.shape[1] == self.T else x[:, : self.T].contiguous()


def blocks(u: Tensor, *others: Tensor) -> list[tuple[Tensor, ...]]:
    """Tensors whose first dimension goes over chunks, cut into those computed together, in the order of time.

    The size of u [chunks, B, H, Q, P] says how many that are on its device.
    """
    most = CPU_BLOCK if target(u) == "cpu" else BLOCK
    chunks = max(1, most // u[0].numel())
    parts = (torch.split(x, x.shape[0] // u.shape[0] * chunks) for x in (u, *others))
    return worth_doing(list(zip(*parts, strict=True)), u)
