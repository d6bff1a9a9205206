"""`nstrain models`: the presets with exact counts, built on the meta device (no memory, no weights)."""

from __future__ import annotations

from typing import Any

import torch

from trainer_core.models.presets import PRESETS
from trainer_core.models.registry import build

BYTES_PER_PARAMETER = 16
"""Parameters, gradients and two moments in fp32."""


def list_models() -> list[dict[str, Any]]:
    """One row per preset; keys as docs/files.md lists them. Counts are at the preset's own vocabulary."""
    return [_row(name) for name in PRESETS]


def _row(name: str) -> dict[str, Any]:
    preset = PRESETS[name]
    with torch.device("meta"):
        model = build(preset.family, preset.config, preset.vocab_size, seed=0)
    groups = {g.name: sum(p.numel() for _, p in g.params) for g in model.param_groups()}
    length = int(preset.training["row_length"])
    return {
        "name": name,
        "family": preset.family,
        "vocab_size": preset.vocab_size,
        "parameters": sum(groups.values()),
        "groups": groups,
        "bytes_per_parameter": BYTES_PER_PARAMETER,
        "flops_per_token": {str(length): model.flops_per_token(length)},
    }
