"""The specification of the scan, for tests only: the recurrence as it is written, token after token."""

from __future__ import annotations

import torch
from torch import Tensor


def scan_reference(
    u: Tensor,
    dt: Tensor,
    A: Tensor,
    b: Tensor,
    r: Tensor,
    state: Tensor | None = None,
    *,
    skip: Tensor | None = None,
) -> tuple[Tensor, Tensor]:
    """V_t = exp(A dt_t) V_{t-1} + dt_t u_t b_t^T, y_t = V_t r_t + skip u_t; y [B, T, H, P] and the last V.

    u [B, T, H, P], dt [B, T, H], A [H], b and r [B, T, G, N] with H a multiple of G, V and state
    [B, H, P, N], skip [H].
    """
    B, T, H, P = u.shape
    G, N = b.shape[2:]
    b, r = (x.repeat_interleave(H // G, dim=2) for x in (b, r))
    V = u.new_zeros(B, H, P, N) if state is None else state
    y = []
    for t in range(T):
        decay = (A * dt[:, t]).exp()[..., None, None]
        V = decay * V + (dt[:, t, :, None] * u[:, t])[..., None] * b[:, t, :, None, :]
        y.append((V * r[:, t, :, None, :]).sum(-1))
    read = torch.stack(y, dim=1)
    return read if skip is None else read + skip[:, None] * u, V
