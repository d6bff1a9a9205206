"""Presets of the GPT-2 family. Imports no torch."""

from __future__ import annotations

from typing import Any

from trainer_core.models.preset import CPU_TRAINING, Preset, make_preset


def _gpt2(
    name: str,
    vocab_size: int,
    shape: tuple[int, int, int],
    *,
    init_std: float = 0.02,
    n_positions: int = 1_024,
    **training: Any,
) -> Preset:
    """A GPT-2 of (layers, width, heads); training settings that differ from those of the 70M model."""
    layers, width, heads = shape
    config = {
        "layers": layers,
        "width": width,
        "heads": heads,
        "n_positions": n_positions,
        "dropout": 0.1,
        "norm_eps": 1e-5,
        "init_std": init_std,
    }
    return make_preset(name, "gpt2", vocab_size, config, **_BASE | training)


_BASE: dict[str, Any] = {
    "tokens_per_update": 65_536,
    "warmup_tokens": 458 * 65_536,
    "peak_lr": 1e-4,
    "betas": (0.9, 0.999),
    "validation_every": 2_000,
    "checkpoint_every": 2_000,
}
"""1e9 tokens are 15,259 updates, of which 3 % warm up."""

PRESETS: tuple[Preset, ...] = (
    _gpt2("gpt2-70m", 50_257, (12, 512, 8)),
    # As with Llama, a narrow model starts faster from wider initial weights: 2.47 nats per byte after 128
    # updates of 1,024 bytes of Python code, with 0.02 it is 2.69.
    _gpt2(
        "gpt2-cpu",
        4_096,
        (2, 128, 4),
        init_std=0.05,
        n_positions=256,
        **CPU_TRAINING,
    ),
)
"""Every GPT-2 that has a name."""
