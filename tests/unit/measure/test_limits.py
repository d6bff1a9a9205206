"""The floors against hand counts, and the refusal of what cannot be."""

from __future__ import annotations

import math

import pytest
import torch

from trainer_core.errors import Refused
from trainer_core.measure.limits import (
    Impossible,
    limits,
    limits_of,
    refuse_impossible,
    state_bytes_per_parameter,
    update_bytes_per_parameter,
)
from trainer_core.measure.peaks import by_short_name
from trainer_core.models.base import Model
from trainer_core.models.registry import build

SMALL = {"layers": 2, "width": 8, "heads": 2, "ffn": 16}


def small() -> Model:
    with torch.device("meta"):
        return build("llama", SMALL, vocab_size=10, seed=0)


@pytest.mark.parametrize(("ema", "shadow", "num"), [(False, False, 36), (True, False, 44), (True, True, 46)])
def test_bytes_of_an_update(ema: bool, shadow: bool, num: int) -> None:
    assert update_bytes_per_parameter(ema=ema, shadow=shadow) == num


def test_bytes_of_the_state() -> None:
    assert [state_bytes_per_parameter(ema=e, shadow=s) for e in (False, True) for s in (False, True)] == [
        16,
        18,
        20,
        22,
    ]


def test_a_2b_model_on_8_tb_per_s_takes_11_5_ms() -> None:
    found = limits(
        by_short_name("GB300"),
        flops_per_token=12e9,
        recomputed_per_token=4e9,
        num_parameters=2_000_000_000,
        tokens_per_update=262_144,
        ema=True,
        shadow=True,
    )
    assert found.update_seconds == pytest.approx(11.5e-3)
    assert found.tokens_per_second == pytest.approx(2500e12 / 12e9)
    assert found.micro_seconds == pytest.approx(16e9 * 262_144 / 2500e12)
    assert found.state_bytes == 44_000_000_000
    assert found.memory_share == pytest.approx(44 / 288)


def test_recomputation_is_a_third_of_the_blocks() -> None:
    """Per block 4 D^2 of attention and 3 D F of feed-forward; causal attention 6 layers D T; no head."""
    matrices = 2 * (4 * 8 * 8 + 3 * 8 * 16)
    expected = (6 * matrices + 6 * 2 * 8 * 32) / 3
    assert small().recomputed_flops_per_token(32, "full") == pytest.approx(expected)
    assert small().recomputed_flops_per_token(32, "none") == 0
    assert small().recomputed_flops_per_token(32, "every second block") is None


def test_the_printed_gpus() -> None:
    found = limits_of(small(), T=32, ac="full", tokens_per_update=64, ema=True)
    assert [row["gpu"] for row in found] == ["H100", "H200", "GB300"]
    assert found[0]["update_seconds"] / found[1]["update_seconds"] == pytest.approx(4.8 / 3.35)
    assert found[0]["micro_seconds"] == found[1]["micro_seconds"] > 64 / found[0]["tokens_per_second"]


def test_what_is_possible_passes() -> None:
    refuse_impossible("H200", {"MFU": 0.45, "HFU": None, "bandwidth": 1.0})


@pytest.mark.parametrize("share", [1.01, 40.0, math.nan, math.inf])
def test_more_than_the_peak_is_refused_and_says_that_the_measurement_is_wrong(share: float) -> None:
    with pytest.raises(Impossible, match=r"MFU.*H200.*measurement is wrong") as caught:
        refuse_impossible("H200", {"MFU": share, "HFU": 0.5, "bandwidth": share})
    assert isinstance(caught.value, Refused) and caught.value.exit_code == 20
    assert len(caught.value.problems) == 2
