"""Gradient norms by layer, the clip, the judgement of an update and its counters: twin in `reference`."""

from __future__ import annotations

import torch

from trainer_core.kernels.grad_norm.reference import (
    BLOCK,
    GradNorm,
    NormState,
    Segments,
    grad_norm_reference,
)

__all__ = ["BLOCK", "GradNorm", "NormState", "Segments", "choose", "grad_norm_reference"]


def choose(segments: Segments, device: torch.device) -> GradNorm:
    """The implementation for a device."""
    return grad_norm_reference(segments)
