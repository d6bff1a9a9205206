"""What a preset is, and which settings of training it gives. Imports no torch."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any

TRAINING: Mapping[str, Any] = MappingProxyType(
    {
        "row_length": 1_024,
        "tokens_per_update": 32_768,
        "warmup_tokens": 312 * 32_768,
        "peak_lr": 1e-3,
        "min_lr_ratio": 0.1,
        "betas": (0.9, 0.99),
        "eps": 1e-8,
        "weight_decay": 0.1,
        "clip": 1.0,
        "rows": 32,
        "ac": "none",
        "validation_every": 500,
        "checkpoint_every": 500,
    }
)
"""The keys of a preset's training, with the values of the small-Llama recipe."""

CPU_TRAINING: Mapping[str, Any] = MappingProxyType(
    {
        "row_length": 128,
        "tokens_per_update": 1_024,
        "rows": 8,
        "warmup_tokens": 16 * 1_024,
        "peak_lr": 3e-3,
        "betas": (0.9, 0.95),
        "validation_every": 32,
        "checkpoint_every": 32,
    }
)
"""Where the presets for two cores differ from TRAINING."""

LONGEST_ROW = ("rope_max_seq_len", "n_positions")
"""Keys of a configuration that hold the longest row: of rotary and of learnt positions."""


@dataclass(frozen=True, kw_only=True)
class Preset:
    """A model configuration with its training defaults."""

    name: str
    """Name given to `--model`."""
    family: str
    """Model family of the registry."""
    vocab_size: int
    """Vocabulary at which its parameters are counted."""
    config: Mapping[str, Any]
    """Configuration of the family."""
    training: Mapping[str, Any]
    """Defaults of a line: tokens and updates as integers, `peak_lr` a recommendation."""


def make_preset(
    name: str, family: str, vocab_size: int, config: Mapping[str, Any], **training: Any
) -> Preset:
    """A preset of a configuration and the settings of training that differ from TRAINING."""
    unknown = training.keys() - TRAINING.keys()
    assert not unknown, unknown
    return Preset(
        name=name,
        family=family,
        vocab_size=vocab_size,
        config=MappingProxyType(dict(config)),
        training=MappingProxyType({**TRAINING, **training}),
    )


def longest_row(config: Mapping[str, Any]) -> int | None:
    """Tokens of the longest row that a model of a configuration reads; None where it names no limit."""
    return next((config[key] for key in LONGEST_ROW if config.get(key) is not None), None)
