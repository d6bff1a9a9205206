"""The bars of the speed benchmark: what misses them, and the workload that they are for."""

from __future__ import annotations

import pytest
import torch

from benchmarks.throughput import BF16_BARS, FP32_BARS, WORKLOAD, missing


def test_the_model_has_6_84_million_parameters() -> None:
    with torch.device("meta"):
        model = WORKLOAD.build()
    assert sum(param.numel() for param in model.parameters()) == pytest.approx(6.84e6, rel=1e-3)
    assert WORKLOAD.tokens == 2_048


def test_a_bar_is_missed_by_more_than_a_tenth() -> None:
    reached = {"nstrain-bf16": {"hf-trainer-fp32": 1.75 / 1.09, "hf-trainer-bf16": 1.15 / 1.11}}
    (problem,) = missing(reached, BF16_BARS)
    assert "nstrain-bf16 is 1.04 x hf-trainer-bf16, bar 1.15" in problem


def test_contenders_without_a_bar_miss_none() -> None:
    assert missing({"nstrain-bf16": {"nanogpt-bf16": 0.1}, "nstrain-fp32": {"x": 0.1}}, BF16_BARS) == []
    assert missing({"nstrain-fp32": {"hf-trainer-fp32": 0.5}}, FP32_BARS)
