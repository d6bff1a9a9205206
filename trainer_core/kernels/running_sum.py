"""Running sums along the last axis, in a fixed order on every device.

torch.cumsum of floats has no fixed order on a GPU and its deterministic mode refuses it; there two products
with triangles of ones do it, inside chunks and over the chunks' totals.
"""

from __future__ import annotations

from torch import Tensor
from torch.nn import functional as F

from trainer_core.kernels.target import target

CHUNK = 64
"""Elements that one triangle adds."""


def running_sum(x: Tensor) -> Tensor:
    """y_t = x_1 + ... + x_t along the last axis of x [..., T]."""
    return x.cumsum(-1) if target(x) == "cpu" else running_sum_by_products(x)


def running_sum_by_products(x: Tensor) -> Tensor:
    """The same by matrix products, which every device does in a fixed order."""
    T = x.shape[-1]
    chunks = F.pad(x, (0, -T % CHUNK)).view(*x.shape[:-1], -1, CHUNK)
    inside = chunks @ _triangle(CHUNK, x)
    totals = inside[..., -1]
    before = totals @ _triangle(totals.shape[-1], x).fill_diagonal_(0)
    out: Tensor = (inside + before[..., None]).flatten(-2)[..., :T]
    return out


def _triangle(n: int, like: Tensor) -> Tensor:
    """Ones where the row does not come after the column."""
    return like.new_ones(n, n).triu()
