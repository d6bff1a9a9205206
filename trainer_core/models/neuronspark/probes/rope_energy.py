"""How much of queries and keys lies in rotary pairs that do not come round within a row of the training.

Pair j of a head of width d holds its channels j and j + d/2 and has the wavelength 2 pi theta^(2 j / d). It
is *extended* where that exceeds the training's row length: longer rows turn it by angles never trained.
"""

from __future__ import annotations

import math

from torch import Tensor

from trainer_core.models.neuronspark.probes.sums import Notes, Sums, Values, spread, total
from trainer_core.models.neuronspark.probes.tokens import Tokens


def first_extended(theta: float, head_dim: int, train_length: int) -> int:
    """The first extended pair of head_dim / 2; wavelengths grow with the pair, so those behind it are too."""
    pairs = range(head_dim // 2)
    return sum(2 * math.pi * theta ** (2 * j / head_dim) <= train_length for j in pairs)


def energies(x: Tensor, first: int) -> tuple[Tensor, Tensor]:
    """Sums over rows and tokens of x [B, H, T, d] squared: [H] in pairs from `first` on, and in all."""
    half = x.shape[-1] // 2
    pairs = total(x.double().square().view(*x.shape[:-1], 2, half), (0, 2, 3))
    return pairs[:, first:].sum(-1), pairs.sum(-1)


def gather(notes: Notes, tokens: Tokens, *, theta: float) -> Sums:
    """Energies of queries [H] and keys [K] after norm and rotation, which keeps the energy of a pair."""
    first = first_extended(theta, notes["q"].shape[-1], tokens.train_length)
    found: Sums = {}
    for name in ("q", "k"):
        found[f"{name}_extended"], found[f"{name}_all"] = energies(notes[name], first)
    return found


def heads(sums: Sums) -> Values:
    """rope_ext_q, rope_ext_k = mean energy in extended pairs / mean energy, per query and per key head."""
    return {f"rope_ext_{name}": sums[f"{name}_extended"] / sums[f"{name}_all"] for name in ("q", "k")}


def values(sums: Sums) -> Values:
    """rope_ext_q and rope_ext_k: _p50 and _max over heads."""
    return {k: v for name, share in heads(sums).items() for k, v in spread(name, share, 50).items()}
