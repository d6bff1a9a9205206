"""The encode-only copy of a tokenizer.json: a value made from a value, so that it can be compared and hashed.

In the copy only a source's own markers are matched in text, and vocabulary entries spelled like another
control token are renamed, so that no word of the text can equal them. Never loads a tokenizer.
"""

from __future__ import annotations

import json
from typing import Any

_RENAMED = "\ue000"


def encode_copy(content: dict[str, Any], *, own: dict[str, int], control: set[str]) -> dict[str, Any]:
    """The encode-only copy of a tokenizer.json: only `own` markers (with their ids) are matched in text."""
    copy = json.loads(json.dumps(content))
    copy.update(truncation=None, padding=None, post_processor=None)
    copy["added_tokens"] = [
        {**token, "lstrip": False, "rstrip": False, "single_word": False}
        for token in copy.get("added_tokens") or []
        if token["content"] in own
    ]
    model = copy["model"]
    if "dropout" in model:
        model["dropout"] = None
    # A one-character entry is needed to spell text; should it be a control token, the guard tells.
    renamed = {name for name in control - set(own) if len(name) > 1}
    if isinstance(model["vocab"], list):
        _rename_pieces(model, renamed, own)
    else:
        _rename_entries(model, renamed, own)
    return dict(copy)


def _rename_entries(model: dict[str, Any], renamed: set[str], own: dict[str, int]) -> None:
    """Models with a vocabulary by name (BPE, WordLevel, WordPiece)."""
    vocab = {
        (_RENAMED + name if name in renamed else name): number for name, number in model["vocab"].items()
    }
    model["vocab"] = {**vocab, **own}  # the library takes a marker's id from here, else it counts on
    if model.get("unk_token") in renamed:
        model["unk_token"] = _RENAMED + model["unk_token"]
    if "merges" in model:
        prefix = len(model.get("continuing_subword_prefix") or "")
        model["merges"] = [
            merge for merge in model["merges"] if not renamed & set(_merge_names(merge, prefix))
        ]


def _merge_names(merge: str | list[str], prefix: int) -> tuple[str, str, str]:
    left, right = merge.split(" ") if isinstance(merge, str) else merge
    return left, right, left + right[prefix:]


def _rename_pieces(model: dict[str, Any], renamed: set[str], own: dict[str, int]) -> None:
    """Unigram models: the id of a piece is its place in the list."""
    vocab = [[_RENAMED + name if name in renamed else name, score] for name, score in model["vocab"]]
    present = {name for name, _ in vocab}
    for name, number in sorted(own.items(), key=lambda item: item[1]):
        if name not in present:
            vocab += [[f"{_RENAMED}{place}", 0.0] for place in range(len(vocab), number)]
            vocab.append([name, 0.0])
    model["vocab"] = vocab


def unknown_token(model: dict[str, Any]) -> str | None:
    """The token for what the vocabulary cannot spell: plain text may become it."""
    if isinstance(model["vocab"], list):
        place = model.get("unk_id")
        return None if place is None else str(model["vocab"][place][0])
    unk = model.get("unk_token")
    return str(unk) if unk in model["vocab"] else None
