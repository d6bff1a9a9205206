"""`nstrain models`: the presets with exact counts, built on the meta device (no memory, no weights)."""

from __future__ import annotations

from typing import Any

import torch

from trainer_core.errors import Refused
from trainer_core.measure.limits import state_bytes_per_parameter
from trainer_core.models.preset import Preset
from trainer_core.models.presets import PRESETS, external_presets
from trainer_core.models.registry import build

STATE_BYTES = state_bytes_per_parameter(ema=False, shadow=False)
"""Of a parameter in training: itself, its gradient and two moments in float32."""

MORE_BYTES = {
    "ema": state_bytes_per_parameter(ema=True, shadow=False) - STATE_BYTES,
    "bf16": state_bytes_per_parameter(ema=False, shadow=True) - STATE_BYTES,
}
"""What a moving average and the rounded weights of bf16 add to that."""


def list_models() -> tuple[list[dict[str, Any]], list[str]]:
    """One row per preset, and what is wrong with presets of other packages.

    Keys as docs/files.md lists them. Counts are at the preset's own vocabulary.
    """
    rows = [_row(preset, external=False) for preset in PRESETS.values()]
    others, problems = external_presets()
    for preset in others.values():
        try:
            rows.append(_row(preset, external=True))
        except Refused as refused:
            problems += [f"preset {preset.name!r}: {problem}" for problem in refused.problems]
    return rows, problems


def _row(preset: Preset, *, external: bool) -> dict[str, Any]:
    with torch.device("meta"):
        model = build(preset.family, preset.config, preset.vocab_size, seed=0)
    groups = {g.name: sum(p.numel() for _, p in g.params) for g in model.param_groups()}
    length, ac = int(preset.training["row_length"]), preset.training["ac"]
    if ac not in model.recomputation:
        raise Refused(
            f"its ac {ac!r} is nothing that it can recompute; expected {', '.join(model.recomputation)}"
        )
    return {
        "name": preset.name,
        "family": preset.family,
        "external": external,
        "vocab_size": preset.vocab_size,
        "parameters": sum(groups.values()),
        "groups": groups,
        "bytes_per_parameter": STATE_BYTES,
        "more_bytes_per_parameter": MORE_BYTES,
        "row_length": length,
        "peak_lr": float(preset.training["peak_lr"]),
        "flops_per_token": {str(length): model.flops_per_token(length)},
        "recomputation": list(model.recomputation),
    }
