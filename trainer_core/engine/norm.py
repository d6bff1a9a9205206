"""The gradient norm in two levels of fixed order: 1024-element blocks, then the blocks of each segment.

A flat vector_norm is wrong by percents on long buffers (its float32 running sum saturates); sums over 1024
elements are not, and everything above them is float64. The layer norms come out of the same pass.
"""

from __future__ import annotations

from functools import reduce

import torch
from torch import Tensor

from trainer_core.engine.layout import BLOCK, Layout


def segment_squares(G: Tensor, layout: Layout) -> list[Tensor]:
    """Sum of squares of each segment as float64 scalars on the device."""
    blocks = torch.linalg.vector_norm(G.view(-1, BLOCK), dim=1).to(torch.float64).square_()
    return [blocks[s.start // BLOCK : s.end // BLOCK].sum() for s in layout.segments]


def norms(G: Tensor, layout: Layout) -> tuple[Tensor, Tensor]:
    """Global norm (scalar) and norms by `layout.labels` [num_labels], float64 on the device."""
    squares = segment_squares(G, layout)
    by_label: dict[str, list[Tensor]] = {label: [] for label in layout.labels}
    for segment, square in zip(layout.segments, squares, strict=True):
        by_label[segment.label].append(square)
    labels = torch.stack([reduce(torch.add, members) for members in by_label.values()])
    return reduce(torch.add, squares).sqrt(), labels.sqrt()
