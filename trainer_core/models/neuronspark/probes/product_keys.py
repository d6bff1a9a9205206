"""The table that a hippocampal layer knows by heart: how widely and how much it is read."""

from __future__ import annotations

import torch

from trainer_core.models.neuronspark.probes.sums import Notes, Sums, Values, mean, total
from trainer_core.models.neuronspark.probes.tokens import Tokens


def gather(notes: Notes, tokens: Tokens, *, table: int) -> Sums:
    """From slots and weights p [n, heads, k] and gate [B, T, 1]; table = number of slots.

    used      1 for each slot that was chosen [table, 1]
    entropy   -sum p ln p over the k slots, summed over tokens and heads [1]; `reads` counts them
    gate      chi summed over tokens [1]; `tokens` counts them
    """
    slots, p, gate = notes["slots"], notes["slot_weights"], notes["pkm_gate"]
    used = torch.zeros(table, 1, dtype=torch.float64, device=slots.device)
    used[slots.flatten()] = 1.0
    chi = total(gate, (0, 1))
    return {
        "used": used,
        "entropy": total(torch.special.entr(p), (0, 1, 2))[None],
        "reads": torch.full_like(chi, float(p.shape[0] * p.shape[1])),
        "gate": chi,
        "tokens": torch.full_like(chi, float(tokens.ids.numel())),
    }


def values(sums: Sums, *, shared: bool) -> Values:
    """Of the reads of a layer, or of all layers:

    pkm_entropy      mean of -sum p ln p over the k chosen slots; at most ln k
    pkm_slots_used   slots chosen at least once / slots that there are (layers that share a table count once)
    pkm_gate         mean chi
    """
    used = sums["used"] > 0
    return {
        "pkm_entropy": mean(sums, "entropy", "reads"),
        "pkm_slots_used": (used.any(-1) if shared else used).double().mean(),
        "pkm_gate": mean(sums, "gate", "tokens"),
    }
