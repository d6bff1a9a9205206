"""Presets of the NeuronSpark family. Imports no torch."""

from __future__ import annotations

from typing import Any

from trainer_core.models.preset import CPU_TRAINING, Preset, make_preset


def _neuronspark(name: str, vocab_size: int, config: dict[str, Any], **training: Any) -> Preset:
    return make_preset(name, "neuronspark", vocab_size, {"interval": 4} | config, **_BASE | training)


_BASE: dict[str, Any] = {"betas": (0.9, 0.95)}

_LARGE: dict[str, Any] = {
    "row_length": 4_096,
    "tokens_per_update": 262_144,
    "warmup_tokens": 2_000 * 262_144,
    "peak_lr": 3e-4,
    "rows": 4,
    "ac": "dendritic",
}

PRESETS: tuple[Preset, ...] = (
    _neuronspark(
        "ns-2b",
        73_472,
        {
            "width": 2_048,
            "layers": 60,
            "dendritic_width": 4_096,
            "dendritic_heads": 64,
            "compartments": 128,
            "heads": 16,
            "key_heads": 4,
            "trace_heads": 32,
            "trace_channels": 16,
            "gate_width": 512,
            "ffn": 5_120,
            "pkm_keys": 128,
            "pkm_top": 16,
            "pkm_heads": 4,
            "pkm_key_dim": 256,
            "pkm_value_dim": 1_024,
            "pkm_shared": True,
            "rope_theta": 1e6,
            "rope_max_seq_len": 32_768,
        },
        **_LARGE,
    ),
    _neuronspark(
        "ns-1p3b",
        73_472,
        {
            "width": 1_792,
            "layers": 48,
            "dendritic_width": 3_584,
            "dendritic_heads": 56,
            "compartments": 128,
            "heads": 14,
            "key_heads": 2,
            "trace_heads": 32,
            "trace_channels": 16,
            "gate_width": 448,
            "ffn": 4_608,
            "pkm_keys": 128,
            "pkm_top": 16,
            "pkm_heads": 4,
            "pkm_key_dim": 256,
            "pkm_value_dim": 896,
            "pkm_shared": True,
            "rope_theta": 1e6,
            "rope_max_seq_len": 32_768,
        },
        **_LARGE,
    ),
    _neuronspark(
        "tiny-32k",
        32_768,
        {
            "width": 256,
            "layers": 8,
            "dendritic_width": 512,
            "dendritic_heads": 16,
            "compartments": 32,
            "heads": 4,
            "key_heads": 2,
            "trace_heads": 8,
            "trace_channels": 8,
            "gate_width": 128,
            "ffn": 768,
            "pkm_keys": 32,
            "pkm_top": 8,
            "pkm_heads": 2,
            "pkm_key_dim": 64,
            "pkm_value_dim": 128,
            "rope_theta": 5e5,
            "rope_max_seq_len": 32_768,
        },
        row_length=4_096,
        rows=8,
        tokens_per_update=65_536,
        warmup_tokens=312 * 65_536,
    ),
    _neuronspark(
        "micro-cpu",
        512,
        {
            "width": 192,
            "layers": 8,
            "dendritic_width": 384,
            "dendritic_heads": 12,
            "compartments": 32,
            "heads": 6,
            "key_heads": 2,
            "trace_heads": 8,
            "trace_channels": 6,
            "gate_width": 96,
            "ffn": 576,
            "pkm_keys": 32,
            "pkm_top": 8,
            "pkm_heads": 2,
            "pkm_key_dim": 48,
            "pkm_value_dim": 96,
            "rope_theta": 1e4,
            "rope_max_seq_len": 2_048,
        },
        **CPU_TRAINING,
    ),
    _neuronspark(
        "nano-cpu",
        320,
        {
            "width": 128,
            "layers": 8,
            "dendritic_width": 256,
            "dendritic_heads": 8,
            "compartments": 16,
            "heads": 4,
            "key_heads": 2,
            "trace_heads": 8,
            "trace_channels": 4,
            "gate_width": 64,
            "ffn": 384,
            "pkm_keys": 32,
            "pkm_top": 8,
            "pkm_heads": 2,
            "pkm_key_dim": 32,
            "pkm_value_dim": 64,
            "rope_theta": 1e4,
            "rope_max_seq_len": 2_048,
        },
        **CPU_TRAINING,
    ),
)
"""Every NeuronSpark that has a name."""
