"""A device as records of measurements name it. Every start of a trainer asks, so this imports little."""

from __future__ import annotations

import torch

from trainer_core.measure.tune_record import Device


def described(device: torch.device) -> Device:
    """The kind of a device, and what its driver calls it."""
    return Device(
        kind=device.type, name=torch.cuda.get_device_name(device) if device.type == "cuda" else "CPU"
    )
