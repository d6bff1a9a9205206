"""Building by preset and by family, and refusals that name every mistake."""

import pytest

from trainer_core.errors import Refused
from trainer_core.models.base import Model
from trainer_core.models.registry import build

SHAPE = {"layers": 1, "width": 16, "heads": 2, "ffn": 24}


def test_a_family_takes_its_whole_configuration() -> None:
    model = build("llama", SHAPE, 10, 0)
    assert isinstance(model, Model)
    assert model.vocab_size == 10
    assert model.config.rope_max_seq_len == 2_048


def test_a_preset_takes_overrides() -> None:
    model = build("llama-nano-cpu", {"layers": 1, "rope_max_seq_len": 64}, 10, 0)
    assert len(model.blocks) == 1
    assert model.config.rope_max_seq_len == 64


def test_an_unknown_name_lists_the_known_ones() -> None:
    with pytest.raises(Refused, match=r"lama-cpu.*llama-cpu"):
        build("lama-cpu", None, 10, 0)


def test_every_mistake_is_reported_at_once() -> None:
    wrong = {"layers": 0, "width": "16", "ffn": True, "depth": 3, "norm_eps": -1}
    with pytest.raises(Refused) as caught:
        build("llama", wrong, 10, 0)
    text = "\n".join(caught.value.problems)
    assert len(caught.value.problems) == 6
    for key in ("layers", "width", "ffn", "depth", "norm_eps", "heads"):
        assert f"model.config.{key}" in text


def test_heads_must_divide_the_width_evenly() -> None:
    with pytest.raises(Refused, match="multiple of twice"):
        build("llama", SHAPE | {"heads": 3}, 10, 0)
