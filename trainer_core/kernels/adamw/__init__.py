"""The optimizer's update: specification in `reference`, `cpu` and `triton` for the devices."""

from __future__ import annotations

import torch

from trainer_core.kernels.adamw.cpu import has_fused_cpu, update_cpu
from trainer_core.kernels.adamw.reference import AdamWUpdate, Buffers, Coefficients, update_reference

__all__ = [
    "AdamWUpdate",
    "Buffers",
    "Coefficients",
    "choose",
    "has_fused_cpu",
    "update_cpu",
    "update_reference",
]


def choose(device: torch.device) -> AdamWUpdate:
    """The implementation for a device."""
    if device.type == "cuda":
        from trainer_core.kernels.adamw.triton import update_triton

        return update_triton
    return update_cpu if device.type == "cpu" and has_fused_cpu() else update_reference
