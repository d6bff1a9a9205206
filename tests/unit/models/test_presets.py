"""Presets: exact counts, torch-free, buildable, with complete training settings."""

import subprocess
import sys

import pytest
import torch

from trainer_core.errors import Refused
from trainer_core.models.families import FAMILIES
from trainer_core.models.preset import TRAINING, longest_row
from trainer_core.models.presets import PRESETS, find_preset
from trainer_core.models.registry import build

COUNTS = {
    "llama-20m": 20_403_520,
    "llama-50m": 48_507_392,
    "llama-90m": 91_605_120,
    "llama-150m": 152_006_400,
    "llama-1p3b": 1_279_887_360,
}


@pytest.mark.parametrize(("name", "count"), COUNTS.items())
def test_published_counts_at_32000(name: str, count: int) -> None:
    preset = PRESETS[name]
    assert preset.vocab_size == 32_000
    with torch.device("meta"):
        model = build(name, None, preset.vocab_size, 0)
    assert sum(p.numel() for p in model.parameters()) == count


@pytest.mark.parametrize("name", PRESETS)
def test_training_settings_are_complete_and_fit_the_model(name: str) -> None:
    preset = PRESETS[name]
    training = preset.training
    assert training.keys() == TRAINING.keys()
    assert training["ac"] in FAMILIES[preset.family].recomputation
    assert training["tokens_per_update"] % training["row_length"] == 0
    assert training["row_length"] <= longest_row(preset.config)
    assert training["rows"] * training["row_length"] <= training["tokens_per_update"]
    for key in ("row_length", "tokens_per_update", "warmup_tokens", "rows", "validation_every"):
        assert isinstance(training[key], int)


def test_a_family_named_as_a_preset_is_told_its_presets() -> None:
    with pytest.raises(Refused, match=r"'gpt2' is a family; name one of its presets: gpt2-70m, gpt2-cpu$"):
        find_preset("gpt2")
    with pytest.raises(Refused, match="'gpt3' is not known; expected one of gpt2-70m, "):
        find_preset("gpt3")


def test_reading_the_presets_imports_no_torch() -> None:
    code = "import sys; from trainer_core.models import presets; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


def test_presets_cannot_be_changed_by_accident() -> None:
    with pytest.raises(TypeError):
        PRESETS["llama-cpu"].config["width"] = 1  # type: ignore[index]
