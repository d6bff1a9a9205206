"""What dendritic heads keep of a row: retention, and the length over which they forget.

Of a compartment's potential after the row's first token exp(A sum of dt over the later ones) is left at its
end. Sums of dt, not products of decays: a head that forgets fast would otherwise underflow.
"""

from __future__ import annotations

import torch
from torch import Tensor

from trainer_core.models.neuronspark.probes.sums import Notes, Sums, Values, like, spread, total
from trainer_core.models.neuronspark.probes.tokens import Tokens

LONG = 32_768
"""Tokens of the retention that is extrapolated."""


def gather(notes: Notes, tokens: Tokens) -> Sums:
    """Decay -A dt of heads [H], summed; from steps dt [B, T, H] and rates A [H] < 0.

    decay      over all tokens (`tokens` counts them)
    exponent   [segments, H] over the tokens of each segment but the row's first (`later` counts them)
    """
    dt, A = notes["dt"], notes["A"].double()
    B, T, _ = dt.shape
    parts = [-A * total(dt[:, max(start, 1) : end], (0, 1)) for start, end in tokens.segments()]
    return {
        "decay": -A * total(dt, (0, 1)),
        "tokens": like(A, B * T),
        "exponent": torch.stack(parts),
        "later": like(A, B * (T - 1)),
        "rows": like(A, B),
    }


def exponents(sums: Sums) -> Tensor:
    """X_k = -A mean_rows(sum of dt over t = 2 .. end of segment k), [segments, H]."""
    return sums["exponent"].cumsum(0) / sums["rows"]


def values(sums: Sums) -> Values:
    """Quantiles over heads, and shares of heads. With X the exponent at the row's end, L the row length:

    retention               exp(-X): _p50, _max, _frac_gt_0.5, _frac_gt_0.9
    tau                     (L - 1) / X: _p50, _p90, _max
    retention32k_frac_gt_0.5   share of heads with exp(A 32768 mean dt) > 0.5, mean over rows and tokens
    retention_seg<k>        exp(-X_k): _p50, _max, where a row has several segments

    A row of one token has no retention and no tau.
    """
    kept = torch.exp(-sums["decay"] / sums["tokens"] * LONG)
    found = {"retention32k_frac_gt_0.5": _share(kept, 0.5)}
    if not sums["later"].any():
        return found
    X = exponents(sums)
    retention = torch.exp(-X)
    found |= spread("retention", retention[-1], 50)
    found |= {f"retention_frac_gt_{least}": _share(retention[-1], least) for least in (0.5, 0.9)}
    found |= spread("tau", sums["later"] / sums["rows"] / X[-1], 50, 90)
    if len(X) > 1:
        for k, heads in enumerate(retention):
            found |= spread(f"retention_seg{k}", heads, 50)
    return found


def _share(x: Tensor, least: float) -> Tensor:
    return (x > least).double().mean()
