"""A small, valid run.json for tests to change."""

from __future__ import annotations

from typing import Any


def run_json(**changes: Any) -> dict[str, Any]:
    """Rows of 16 tokens, 4 rows an update, a schedule that never ends; `changes` replace whole keys."""
    value: dict[str, Any] = {
        "format": "run/1",
        "model": {"name": "llama-nano-cpu", "family": "llama", "vocab_size": 64, "config": {"layers": 1}},
        "data": "/data/line",
        "schedule": [{"from": 0, "to": None, "kind": "constant"}],
        "tokens_per_update": 64,
        "optimizer": {
            "peak_lr": 0.01,
            "min_lr": 0.001,
            "betas": [0.9, 0.95],
            "eps": 1e-8,
            "weight_decay": 0.1,
            "clip": 1.0,
        },
        "lengths": [{"length": 16, "rows": 4}],
        "seed": 0,
        "validation": {"every_updates": 8, "rows_per_stratum": 2},
        "checkpoints": {"every_updates": 8},
    }
    return value | changes
