"""What happens where one document ends and the next begins: whether heads forget and clocks run on.

A boundary is a token that ends a document with another one after it in the row; its two tokens are *near*
it, and all others *elsewhere*. Without a boundary (or with nothing elsewhere) means are 0 / 0, not defined.
"""

from __future__ import annotations

import torch
from torch import Tensor

from trainer_core.models.neuronspark.probes.sums import Notes, Sums, Values, like, spread, total
from trainer_core.models.neuronspark.probes.tokens import Tokens


def split_sums(x: Tensor, near: Tensor) -> Sums:
    """Sums of x [B, T, H] over the tokens near a boundary, bool near [B, T], and elsewhere; both counts."""
    close, far = (total(x * where[..., None], (0, 1)) for where in (near, ~near))
    num_near = near.sum().double().expand_as(close)
    return {
        "near": close,
        "num_near": num_near,
        "elsewhere": far,
        "num_elsewhere": like(close, near.numel()) - num_near,
    }


def kept_across(dt: Tensor, A: Tensor, boundary: Tensor) -> Tensor:
    """Sum over boundaries e of exp(A (dt_e + dt_{e+1})), [H]; dt [B, T, H], A [H], boundary [B, T]."""
    kept = torch.exp(A * (dt[:, :-1] + dt[:, 1:]))
    return total(kept * boundary[:, :-1, None], (0, 1))


def gather(notes: Notes, tokens: Tokens) -> Sums:
    """Steps near boundaries and elsewhere, retention across them, and how many there are; [H] each."""
    dt, boundary = notes["dt"], tokens.boundary
    kept = kept_across(dt, notes["A"], boundary)
    num = boundary.sum().double().expand_as(kept)
    return split_sums(dt, tokens.near) | {"kept": kept, "boundaries": num}


def values(sums: Sums) -> Values:
    """Over heads, where there is a boundary:

    boundary_retention    mean over boundaries of exp(A (dt_e + dt_{e+1})): _p50, _max
    boundary_step_ratio   mean dt near boundaries / mean dt elsewhere: _p50, _max
    """
    near, elsewhere = sums["near"] / sums["num_near"], sums["elsewhere"] / sums["num_elsewhere"]
    found = spread("boundary_retention", sums["kept"] / sums["boundaries"], 50)
    return found | spread("boundary_step_ratio", near / elsewhere, 50)
