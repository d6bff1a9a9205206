"""The exported tokenizer gives the ids that documents were encoded to, with nothing put around them."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from tokenizers import Tokenizer

from tests.tools.tiny_data import write_byte_tokenizer
from trainer_core.errors import Refused
from trainer_core.export.tokenizer_files import tokenizer_files

AROUND = {
    "type": "TemplateProcessing",
    "single": [{"SpecialToken": {"id": "<eos>", "type_id": 0}}, {"Sequence": {"id": "A", "type_id": 0}}],
    "pair": [{"Sequence": {"id": "A", "type_id": 0}}, {"Sequence": {"id": "B", "type_id": 0}}],
    "special_tokens": {"<eos>": {"id": "<eos>", "ids": [256], "tokens": ["<eos>"]}},
}
LETTERS = {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True, "use_regex": True}


@pytest.fixture
def content(tmp_path: Path) -> dict[str, Any]:
    write_byte_tokenizer(tmp_path / "tokenizer.json")
    value: dict[str, Any] = json.loads((tmp_path / "tokenizer.json").read_bytes())
    return value


def exported(content: dict[str, Any]) -> dict[str, Any]:
    return tokenizer_files(json.dumps(content).encode(), eos_id=256, longest_row=64)


@pytest.mark.parametrize(
    ("processor", "kept"),
    [
        (None, None),
        (LETTERS, LETTERS),
        (AROUND, None),
        (
            {"type": "Sequence", "processors": [LETTERS, AROUND]},
            {"type": "Sequence", "processors": [LETTERS]},
        ),
        ({"type": "Sequence", "processors": [AROUND]}, None),
    ],
)
def test_nothing_is_put_around_a_text(content: dict[str, Any], processor: Any, kept: Any) -> None:
    eos = content["added_tokens"][0]["content"] if content["added_tokens"] else "<eos>"
    around = json.loads(json.dumps(processor).replace("<eos>", eos))
    plain = Tokenizer.from_str(json.dumps(content)).encode("ab é", add_special_tokens=False).ids
    content |= {
        "post_processor": around,
        "truncation": {"max_length": 2, "strategy": "LongestFirst", "stride": 0, "direction": "Right"},
    }
    found = exported(content)["tokenizer.json"]
    assert found["post_processor"] == kept
    assert Tokenizer.from_str(json.dumps(found)).encode("ab é").ids == plain


def test_its_settings_name_the_end_of_a_document(content: dict[str, Any]) -> None:
    files = exported(content)
    settings = files["tokenizer_config.json"]
    eos = Tokenizer.from_str(json.dumps(content)).id_to_token(256)
    assert (settings["eos_token"], settings["bos_token"], settings["model_max_length"]) == (eos, eos, 64)
    assert files["special_tokens_map.json"] == {"bos_token": eos, "eos_token": eos}
    with pytest.raises(Refused, match="end-of-document id 999"):
        tokenizer_files(json.dumps(content).encode(), eos_id=999, longest_row=64)
