"""Small inputs that tests make for themselves: text files in every format, and hand-made tokenizers."""

import gzip
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
from tokenizers import pre_tokenizers

PLAIN, EOS, BOS, THINK, PARAM, INCLUDE, SLASH, START, END = range(9)
CONTROLS = [
    "<unk>",
    "</s>",
    "<s>",
    "<think>",
    "<param",
    "<functional>",
    "/think",
    "<|im_start|>",
    "<|im_end|>",
]
"""The added tokens of `byte_tokenizer`, by id; the shapes that occur in code and markup."""
BYTE_LEVEL = {"trim_offsets": True, "use_regex": True}
MARKERS = ("<|im_start|>", "<|im_end|>")


def json_lines(texts: Sequence[Any], column: str = "text") -> bytes:
    return "".join(json.dumps({column: text}) + "\n" for text in texts).encode()


def zstd(data: bytes) -> bytes:
    sink = pa.BufferOutputStream()
    with pa.CompressedOutputStream(sink, "zstd") as stream:
        stream.write(data)
    return bytes(sink.getvalue().to_pybytes())


def write(path: Path, texts: Sequence[Any], column: str = "text") -> Path:
    """Texts as the file's suffix says."""
    path.parent.mkdir(parents=True, exist_ok=True)
    data = json_lines(texts, column)
    if path.name.endswith(".parquet"):
        pq.write_table(pa.table({column: pa.array(texts, pa.string())}), path)
    elif path.name.endswith(".gz"):
        path.write_bytes(gzip.compress(data))
    elif path.name.endswith(".zst"):
        path.write_bytes(zstd(data))
    elif path.name.endswith(".txt"):
        path.write_bytes("".join(texts).encode())
    else:
        path.write_bytes(data)
    return path


def added(token: str, number: int, *, special: bool = True) -> dict[str, Any]:
    flags = {"single_word": False, "lstrip": True, "rstrip": True, "normalized": False}
    return {"id": number, "content": token, "special": special, **flags}


def byte_tokenizer(*, ignore_merges: bool = False, merged: Sequence[str] = ()) -> dict[str, Any]:
    """Byte-level BPE: nine control tokens, one id per byte, and the words in `merged` by merges."""
    vocab = {token: number for number, token in enumerate(CONTROLS)}
    for letter in sorted(pre_tokenizers.ByteLevel.alphabet()):
        vocab[letter] = len(vocab)
    merges = []
    for word in merged:
        for end in range(2, len(word) + 1):
            merges.append([word[: end - 1], word[end - 1]])
            vocab.setdefault(word[:end], len(vocab))
    return {
        "version": "1.0",
        "truncation": {"direction": "Right", "max_length": 8, "strategy": "LongestFirst", "stride": 0},
        "padding": None,
        "added_tokens": [added(t, i, special=i < 3) for i, t in enumerate(CONTROLS)],
        "normalizer": None,
        "pre_tokenizer": {
            "type": "ByteLevel",
            "add_prefix_space": False,
            "trim_offsets": True,
            "use_regex": True,
        },
        "post_processor": None,
        "decoder": {"type": "ByteLevel", "add_prefix_space": True, **BYTE_LEVEL},
        "model": {
            "type": "BPE",
            "dropout": 0.5,
            "unk_token": None,
            "continuing_subword_prefix": None,
            "end_of_word_suffix": None,
            "fuse_unk": False,
            "byte_fallback": False,
            "ignore_merges": ignore_merges,
            "vocab": vocab,
            "merges": merges,
        },
    }


def word_tokenizer(vocab: dict[str, int]) -> dict[str, Any]:
    """Words between spaces; ids may have gaps; `<unk>` for the rest."""
    return {
        "version": "1.0",
        "truncation": None,
        "padding": None,
        "added_tokens": [added(token, vocab[token]) for token in ("<unk>", "</s>")],
        "normalizer": None,
        "pre_tokenizer": {"type": "WhitespaceSplit"},
        "post_processor": None,
        "decoder": None,
        "model": {"type": "WordLevel", "vocab": vocab, "unk_token": "<unk>"},
    }


def metaspace_tokenizer(scheme: str) -> dict[str, Any]:
    """A Unigram model over single characters with the Metaspace pre-tokenizer."""
    pieces = [[token, 0.0] for token in CONTROLS]
    pieces += [[letter, -3.0] for letter in "▁abcdefghijklmnopqrstuvwxyz<>/|_#"]
    return {
        "version": "1.0",
        "truncation": None,
        "padding": None,
        "added_tokens": [added(token, number) for number, token in enumerate(CONTROLS)],
        "normalizer": None,
        "pre_tokenizer": {"type": "Metaspace", "replacement": "▁", "prepend_scheme": scheme, "split": True},
        "post_processor": None,
        "decoder": {"type": "Metaspace", "replacement": "▁", "prepend_scheme": scheme, "split": True},
        "model": {"type": "Unigram", "unk_id": 0, "vocab": pieces, "byte_fallback": False},
    }


def dump(tokenizer: dict[str, Any]) -> bytes:
    return json.dumps(tokenizer).encode()


def write_recipe(path: Path, sources: dict[str, Any], shares: dict[str, Any] | None = None) -> Path:
    """A recipe of one piece; equal shares unless given."""
    chosen = shares or {name: 1 / len(sources) for name in sources}
    recipe = {"sources": sources, "pieces": [{"from_cycle": 0, "shares": chosen}]}
    path.write_text(json.dumps(recipe))
    return path
