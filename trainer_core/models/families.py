"""The model families that come with nstrain: a line each. Imports none of them, and no torch.

A family of one file needs one line here; families of other packages register themselves (`external`).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType


@dataclass(frozen=True, kw_only=True)
class Family:
    """Where a family lives."""

    module: str
    """Module with `build(config, vocab_size, seed, dtype) -> Model`; it is imported when first asked for."""
    recomputation: tuple[str, ...]
    """What `ac` may be, as the family's Model says it too; here for checks that must not load torch."""
    presets: str | None = None
    """Torch-free module with PRESETS, the presets of the family; None: it has none."""


_HERE = "trainer_core.models"

FAMILIES: Mapping[str, Family] = MappingProxyType(
    {
        "neuronspark": Family(
            module=f"{_HERE}.neuronspark",
            presets=f"{_HERE}.neuronspark.presets",
            recomputation=("none", "scan", "dendritic", "hippocampal", "full"),
        ),
        "llama": Family(
            module=f"{_HERE}.llama", presets=f"{_HERE}.llama_presets", recomputation=("none", "full")
        ),
        "gpt2": Family(
            module=f"{_HERE}.gpt2", presets=f"{_HERE}.gpt2_presets", recomputation=("none", "full")
        ),
    }
)
"""Every built-in family by name."""
