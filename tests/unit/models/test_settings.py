"""Numbers that no model has are refused by name; most of them crashed in torch."""

from typing import Any

import pytest
import torch

from trainer_core.errors import Refused
from trainer_core.models.presets import PRESETS
from trainer_core.models.registry import build

FAMILIES = {"llama": "llama-nano-cpu", "gpt2": "gpt2-cpu", "neuronspark": "nano-cpu"}


def refusal(family: str, **config: Any) -> list[str]:
    """What a family says of a preset of its own with other values."""
    with torch.device("meta"), pytest.raises(Refused) as refused:
        build(family, {**PRESETS[FAMILIES[family]].config, **config}, 64, 0)
    return list(refused.value.problems)


@pytest.mark.parametrize("size", [(1 << 24) + 1, 1 << 63, 10**30, 10**400])
@pytest.mark.parametrize("family", FAMILIES)
def test_a_size_beyond_all_memory(family: str, size: int) -> None:
    assert refusal(family, width=size) == [f"model.config.width is {size}; expected at most 16,777,216"]


@pytest.mark.parametrize("value", [1e-60, 5e-324, 1e39, 10**400])
@pytest.mark.parametrize("family", FAMILIES)
def test_a_number_that_float32_has_not(family: str, value: float) -> None:
    """It became 0 or infinite in the model."""
    wanted = f"model.config.norm_eps is {value!r}; expected a positive number that float32 has"
    assert refusal(family, norm_eps=value) == [wanted]
    for no_number in (float("inf"), float("nan")):
        wanted = f"model.config.norm_eps is {no_number!r}; expected a positive number"
        assert refusal(family, norm_eps=no_number) == [wanted]


@pytest.mark.parametrize("family", ["llama", "gpt2"])
def test_what_does_not_fit_is_said_beside_the_rest(family: str) -> None:
    times = "twice " if family == "llama" else ""
    assert refusal(family, heads=3, layers=0) == [
        "model.config.layers is 0; expected a positive integer",
        f"model.config.width {PRESETS[FAMILIES[family]].config['width']} must be a multiple of "
        f"{times}model.config.heads, {6 if times else 3}",
    ]


def test_sizes_whose_product_no_memory_has() -> None:
    wanted = "model: a parameter of this {} would have more than 2^63 bytes; make its sizes smaller"
    assert refusal("neuronspark", pkm_keys=1 << 24, pkm_value_dim=1 << 24) == [wanted.format("neuronspark")]
    for vocab_size in (1 << 60, 10**23):
        with torch.device("meta"), pytest.raises(Refused) as refused:
            build("llama", PRESETS["llama-nano-cpu"].config, vocab_size, 0)
        assert list(refused.value.problems) == [wanted.format("llama")]
