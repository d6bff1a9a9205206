"""Every preset of the built-in families by name. Imports no torch.

A preset's vocabulary is only for printed counts: a line's vocabulary comes from its data line.
"""

from __future__ import annotations

import importlib
from collections.abc import Mapping
from types import MappingProxyType

from trainer_core.models.families import FAMILIES
from trainer_core.models.preset import Preset

__all__ = ["PRESETS", "Preset"]


def _collect() -> dict[str, Preset]:
    found: dict[str, Preset] = {}
    for name, family in FAMILIES.items():
        for preset in importlib.import_module(family.presets).PRESETS if family.presets else ():
            assert preset.family == name and preset.name not in found, preset.name
            found[preset.name] = preset
    return found


PRESETS: Mapping[str, Preset] = MappingProxyType(_collect())
"""Every preset by name, a family after the other."""
