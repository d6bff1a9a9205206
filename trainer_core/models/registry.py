"""Builds a model by preset or family name; a family's module is imported when first asked for."""

from __future__ import annotations

import importlib
from collections.abc import Mapping
from typing import Any

import torch

from trainer_core.errors import Refused
from trainer_core.models.base import Model
from trainer_core.models.families import FAMILIES
from trainer_core.models.presets import PRESETS


def build(
    name_or_family: str,
    config: Mapping[str, Any] | None,
    vocab_size: int,
    seed: int,
    dtype: torch.dtype = torch.float32,
) -> Model:
    """Builds a model: `config` is all of it for a family, and overrides a preset's for a preset."""
    preset = PRESETS.get(name_or_family)
    family = preset.family if preset else name_or_family
    if family not in FAMILIES:
        known = sorted([*FAMILIES, *PRESETS])
        raise Refused(f"model {name_or_family!r} is not known; expected one of {', '.join(known)}")
    resolved = {**(preset.config if preset else {}), **(config or {})}
    module = importlib.import_module(FAMILIES[family].module)
    model = module.build(resolved, vocab_size, seed, dtype)
    assert isinstance(model, Model), f"{module.__name__}.build returned {type(model)}"
    return model
