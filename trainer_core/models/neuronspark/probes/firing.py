"""How many neurons release anything: `fired`, averaged over rows, tokens and the neurons of a population."""

from __future__ import annotations

import torch
from torch import Tensor

from trainer_core.models.neuronspark.probes.sums import Notes, Sums, Values, mean
from trainer_core.models.neuronspark.probes.tokens import Tokens

POPULATIONS = ("gate", "ffn_in", "ffn_gate", "ffn_up")
"""Those of a hippocampal layer."""


def gather_soma(notes: Notes, tokens: Tokens) -> Sums:
    """Neurons that fired in each segment and those that could, [segments, 1]; from fired [B, T, E] bool."""
    fired = notes["fired"]
    B, _, E = fired.shape
    bounds = list(tokens.segments())
    counts = [fired[:, start:end].sum() for start, end in bounds]
    could = torch.tensor([[B * E * (end - start)] for start, end in bounds])
    return {"fired": torch.stack(counts).double()[:, None], "could": could.to(fired.device, torch.float64)}


def soma_values(sums: Sums) -> Values:
    """firing = share of soma channels that fire; firing_seg<k> the same in segment k, where several are."""
    found = {"firing": mean(sums, "fired", "could")}
    if len(sums["fired"]) > 1:
        shares = sums["fired"].sum(-1) / sums["could"].sum(-1)
        found |= {f"firing_seg{k}": share for k, share in enumerate(shares)}
    return found


def gather(notes: Notes, tokens: Tokens) -> Sums:
    """Fired neurons of each population and those that could, [1]; from bool [B, T, its neurons]."""

    def count(fired: Tensor) -> tuple[Tensor, Tensor]:
        some = fired.sum().double()[None]
        return some, torch.full_like(some, float(fired.numel()))

    found = {}
    for name in POPULATIONS:
        found[name], found[f"{name}_could"] = count(notes[f"{name}_fired"])
    return found


def values(sums: Sums) -> Values:
    """<population>_firing = share of its neurons that fire."""
    return {f"{name}_firing": mean(sums, name, f"{name}_could") for name in POPULATIONS}
