"""The tokenizer of a data line as transformers reads it: ids are those that documents were encoded to.

In training nothing is put before or behind a text but the end-of-document id, so neither does the exported
tokenizer. That id also stands before every document, and is named as its beginning for that.
"""

from __future__ import annotations

import json
from typing import Any

from trainer_core.data.tokens.encode import Encoder
from trainer_core.data.tokens.tokenizer_copy import unknown_token

_ADDS_NOTHING = ("ByteLevel",)
"""Post-processors that put no token around a text."""


def tokenizer_files(tokenizer_json: bytes, *, eos_id: int, longest_row: int) -> dict[str, Any]:
    """JSON content by file name. Raises Refused when the tokenizer has no such end-of-document id."""
    eos = Encoder(tokenizer_json, eos_id=eos_id).eos
    content = json.loads(tokenizer_json)
    content.update(truncation=None, padding=None, post_processor=_harmless(content.get("post_processor")))
    special = {"bos_token": eos, "eos_token": eos}
    if unknown := unknown_token(content["model"]):
        special["unk_token"] = unknown
    return {
        "tokenizer.json": content,
        "tokenizer_config.json": {
            "tokenizer_class": "PreTrainedTokenizerFast",
            "clean_up_tokenization_spaces": False,
            "model_max_length": longest_row,
            **special,
        },
        "special_tokens_map.json": special,
    }


def _harmless(processor: Any) -> Any:
    """A post-processor without its parts that put tokens around a text."""
    if not isinstance(processor, dict):
        return None
    if processor.get("type") == "Sequence":
        kept = [part for part in processor["processors"] if part.get("type") in _ADDS_NOTHING]
        return {**processor, "processors": kept} if kept else None
    return processor if processor.get("type") in _ADDS_NOTHING else None
