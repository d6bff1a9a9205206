"""Gradient norms by layer, the clip, the judgement of an update: twin in `reference`, GPU in `triton`."""

from __future__ import annotations

import torch

from trainer_core.kernels.grad_norm.reference import (
    BLOCK,
    GradNorm,
    NormState,
    ReferenceGradNorm,
    Segments,
)

__all__ = ["BLOCK", "GradNorm", "NormState", "ReferenceGradNorm", "Segments", "choose"]


def choose(segments: Segments, device: torch.device) -> GradNorm:
    """The implementation for a device."""
    if device.type == "cuda":
        from trainer_core.kernels.grad_norm.triton import TritonGradNorm

        return TritonGradNorm(segments, device)
    return ReferenceGradNorm(segments)
