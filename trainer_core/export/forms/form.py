"""What a family's module says of a model: configuration, names of tensors, code that goes along."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any


@dataclass(frozen=True, kw_only=True)
class Form:
    """A model in the Hugging Face layout. Tensors are as ours: every family is stored as it is published."""

    config: Mapping[str, Any]
    """Keys of config.json beside those that all families have."""
    names: Mapping[str, str]
    """Name in the export of every parameter, in the order in which they are written."""
    longest_row: int
    """Tokens that the model reads at once."""
    code: Mapping[str, str] = field(default_factory=dict)
    """Files of modelling code, by name; empty where transformers has the model itself."""
