"""Sums over tokens: what a pass leaves of a layer's inner quantities, and how sums become numbers.

A sum is [..., U] in float64, U the heads (or the one population) of a layer. Averages are taken over rows
first and quantiles over heads last, so the sums of several passes add up, and those of several layers stand
side by side: one function makes the numbers of a layer from its sums, and the model's from those of all.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

Notes = dict[str, Tensor]
"""Inner quantities of one layer in one pass, by the names that the layer notes."""
Sums = dict[str, Tensor]
"""Sums [..., U] by name; a quotient of two of them is a mean."""
Values = dict[str, Tensor]
"""Scalars by metric name, or one value per head [U]."""


def added(before: Sums, more: Sums) -> Sums:
    """The sums of two passes; a pass may have left some of them out."""
    both = {name: before[name] + more[name] for name in before.keys() & more.keys()}
    return {**before, **more, **both}


def beside(layers: Sequence[Sums]) -> Sums:
    """The sums of several layers as if they were one layer with all their heads."""
    return {name: torch.cat([sums[name] for sums in layers], -1) for name in layers[0]}


def total(x: Tensor, dims: tuple[int, ...]) -> Tensor:
    """The sum of x over dims, added up in float64."""
    return x.sum(dims, dtype=torch.float64)


def like(sums: Tensor, count: int) -> Tensor:
    """A count beside sums [U], the same for each unit."""
    return torch.full_like(sums, float(count))


def mean(sums: Sums, name: str, count: str) -> Tensor:
    """The mean over everything that was counted, all units together: a scalar."""
    return sums[name].sum() / sums[count].sum()


def spread(name: str, heads: Tensor, *quantiles: int) -> Values:
    """Quantiles in percent over heads [U], linear between two of them, and the largest."""
    found = {f"{name}_p{q}": torch.quantile(heads, q / 100) for q in quantiles}
    return found | {f"{name}_max": heads.max()}
