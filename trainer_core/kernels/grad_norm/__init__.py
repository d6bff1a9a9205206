"""Gradient norms by layer, the clip, the judgement of an update: twin in `reference`, GPU in `triton`."""

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
    if device.type == "cuda":
        from trainer_core.kernels.grad_norm.triton import grad_norm_triton

        return grad_norm_triton(segments, device)
    return grad_norm_reference(segments)
