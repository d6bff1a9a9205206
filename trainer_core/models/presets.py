"""Presets by name: those of the built-in families at hand, those of other packages when asked for.

Imports no torch; a package of a family that is not built in may.

A preset's vocabulary is only for printed counts: a line's vocabulary comes from its data line.
"""

from __future__ import annotations

import importlib
from collections.abc import Mapping
from types import MappingProxyType

from trainer_core.errors import Refused
from trainer_core.models import external
from trainer_core.models.families import FAMILIES
from trainer_core.models.preset import Preset


def _collect() -> dict[str, Preset]:
    found: dict[str, Preset] = {}
    for name, family in FAMILIES.items():
        for preset in importlib.import_module(family.presets).PRESETS if family.presets else ():
            assert preset.family == name and preset.name not in found, preset.name
            found[preset.name] = preset
    return found


PRESETS: Mapping[str, Preset] = MappingProxyType(_collect())
"""Every preset of a built-in family by name, a family after the other."""


def find_preset(name: str) -> Preset:
    """The preset of a name. Raises Refused with the known ones; only then other packages are imported."""
    if name in PRESETS:
        return PRESETS[name]
    found, problems = external_presets()
    if name in found:
        return found[name]
    presets = {**PRESETS, **found}
    if own := sorted(preset.name for preset in presets.values() if preset.family == name):
        raise Refused([f"model {name!r} is a family; name one of its presets: {', '.join(own)}", *problems])
    known = ", ".join(sorted(presets))
    raise Refused([f"model {name!r} is not known; expected one of {known}", *problems])


def external_presets() -> tuple[dict[str, Preset], list[str]]:
    """The presets of every other package by name, and what is wrong with packages that have no valid ones."""
    found: dict[str, Preset] = {}
    points, problems = external.declared()
    for family, point in points.items():
        try:
            presets = external.presets_of(point)
        except Refused as refused:
            problems += refused.problems
            continue
        for preset in presets:
            other = PRESETS.get(preset.name) or found.get(preset.name)
            if preset.name in FAMILIES or preset.name in points:
                problems.append(
                    f"model family {family!r}: its preset {preset.name!r} has the name of a family; rename it"
                )
            elif other is not None:
                problems.append(
                    f"model family {family!r}: its preset {preset.name!r} has the name of one of "
                    f"{other.family}; rename it"
                )
            else:
                found[preset.name] = preset
    return found, problems
