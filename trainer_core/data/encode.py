"""Text to token ids, such that a document's text never becomes a control token.

Encoding uses a copy of tokenizer.json made for it, one per source, held in memory: its added tokens are only
the source's own markers, and vocabulary entries spelled like another control token are renamed, so that no
word of the text can equal them. Afterwards every id is compared with the control ids: one that came out all
the same stops the line. The end-of-document id is appended here and nowhere else: in a shard it always ends a
document. This file never reads corpora and never trains tokenizers.
"""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any, Literal

# Read by the library at its first use; documents are spread over processes, one tokenizer each.
os.environ["TOKENIZERS_PARALLELISM"] = "false"

import numpy as np
import tokenizers
from tokenizers import Tokenizer

from trainer_core.data.sources import TokenizerRecord
from trainer_core.errors import Refused
from trainer_core.line.files import canonical_json

_RENAMED = "\ue000"
_EXCERPT = 80
_IDS = 1 << 32
LARGEST_UINT16 = 0xFFFF


@dataclass(frozen=True, kw_only=True)
class TokenizerFacts:
    """What `data init` pins of a tokenizer file."""

    sha256: str
    """Hex digest of the file's bytes."""
    library_version: str
    """Version of the tokenizers package."""
    vocab_size: int
    """Entries, added tokens included."""
    largest_id: int
    """Largest id in use; ids may have gaps."""
    added: dict[str, int]
    """Added tokens with their ids."""

    @property
    def token_dtype(self) -> Literal["uint16", "uint32"]:
        """Width that holds the largest id."""
        return "uint16" if self.largest_id <= LARGEST_UINT16 else "uint32"


def tokenizer_facts(path: Path) -> TokenizerFacts:
    """Read the facts of a tokenizer.json. Raises Refused when it cannot be loaded."""
    data = _read(path)
    native = _load(data, str(path))
    ids = native.get_vocab(with_added_tokens=True)
    return TokenizerFacts(
        sha256=hashlib.sha256(data).hexdigest(),
        library_version=tokenizers.__version__,
        vocab_size=len(ids),
        largest_id=max(ids.values()),
        added={token.content: number for number, token in native.get_added_tokens_decoder().items()},
    )


def read_tokenizer(record: TokenizerRecord) -> bytes:
    """The bytes of the pinned tokenizer. Raises Refused when the file is gone or is not the pinned one."""
    data = _read(Path(record.path))
    found = hashlib.sha256(data).hexdigest()
    if found != record.sha256:
        raise Refused(
            f"{record.path}: sha256 is {found}, the data line was made with {record.sha256}; "
            "put the recorded file back, or make a new data line for this tokenizer"
        )
    return data


def check_library(record: TokenizerRecord) -> None:
    """Raise Refused when another tokenizers version is installed: it may cut text into other tokens."""
    if tokenizers.__version__ != record.library_version:
        raise Refused(
            f"tokenizers {tokenizers.__version__} is installed, the data line was made with "
            f"{record.library_version}; run `pip install tokenizers=={record.library_version}`, or make a "
            "new data line with the installed version"
        )


class Encoder:
    """Encodes the documents of one source. Cheap to make (well under a second); one per process."""

    def __init__(self, tokenizer_json: bytes, *, markers: Sequence[str] = (), eos_id: int) -> None:
        native = _load(tokenizer_json, "tokenizer.json")
        self._json = tokenizer_json
        self.eos_id = eos_id
        self.markers = tuple(markers)
        added = {token.content: number for number, token in native.get_added_tokens_decoder().items()}
        eos = native.id_to_token(eos_id) if 0 <= eos_id < _IDS else None
        problems = [
            f"marker {marker!r} is no added token of the tokenizer; those are {sorted(added)[:20]}"
            for marker in markers
            if marker not in added
        ]
        if eos is None:
            problems.append(_no_eos(eos_id, added))
        elif eos in markers:
            problems.append(
                f"marker {eos!r} is the end-of-document token (id {eos_id}); it cannot be a marker"
            )
        if problems:
            raise Refused(problems)
        assert eos is not None
        self.eos: str = eos
        """Spelling of the end-of-document token."""
        content = json.loads(tokenizer_json)
        unk = _unknown_token(content["model"])
        copy = encode_copy(content, own={marker: added[marker] for marker in markers}, control={*added, eos})
        encoded = canonical_json(copy)
        self.digest = hashlib.sha256(encoded).hexdigest()
        """Hex sha256 of the encode-only copy."""
        self._tokenizer = _load(encoded, "encode-only tokenizer copy")
        moved = {
            m: self._tokenizer.token_to_id(m) for m in markers if self._tokenizer.token_to_id(m) != added[m]
        }
        assert not moved, f"markers changed their ids in the encode-only copy: {moved}"
        allowed = {added[marker] for marker in markers}
        unk_id = None if unk is None else native.token_to_id(unk)
        if unk_id is not None and unk_id != eos_id:
            allowed.add(unk_id)
        self.control_ids = frozenset({*added.values(), eos_id} - allowed)
        """Ids that must never come out of text."""
        largest = max(native.get_vocab(with_added_tokens=True).values())
        self.dtype = np.dtype(np.uint16 if largest <= LARGEST_UINT16 else np.uint32)
        """Type of the returned ids."""
        self._is_control = np.zeros(largest + 1, dtype=bool)
        self._is_control[list(self.control_ids)] = True

    def encode(self, texts: Sequence[str], *, first_document: int = 0, where: str = "") -> list[np.ndarray]:
        """Ids of every text, each ended by the end-of-document id.

        `where` and `first_document` name the texts in the message of the guard, which raises Refused when a
        control id came out.
        """
        documents = []
        encodings = self._tokenizer.encode_batch_fast(list(texts), add_special_tokens=False)
        for index, encoding in enumerate(encodings):
            ids = encoding.ids
            ids.append(self.eos_id)
            document = np.array(ids, dtype=self.dtype)
            if self._is_control[document[:-1]].any():
                self._refuse(document, texts[index], first_document + index, where)
            documents.append(document)
        return documents

    def default_control_ids(self, texts: Sequence[str]) -> int:
        """How many control ids the library's default matching would have read out of these texts."""
        encodings = self._native.encode_batch_fast(list(texts), add_special_tokens=False)
        return sum(1 for encoding in encodings for number in encoding.ids if number in self.control_ids)

    def decode(self, document: np.ndarray) -> str:
        """The text of one encoded document, without its end-of-document id."""
        return str(self._tokenizer.decode(document[:-1].tolist(), skip_special_tokens=False))

    @cached_property
    def _native(self) -> Tokenizer:
        native = _load(self._json, "tokenizer.json")
        native.no_truncation()
        native.no_padding()
        return native

    def _refuse(self, document: np.ndarray, text: str, number: int, where: str) -> None:
        bad = sorted({int(i) for i in document[:-1] if self._is_control[i]})
        names = [self._tokenizer.id_to_token(i) for i in bad]
        start = next((text.find(name) for name in names if name and name in text), 0)
        excerpt = text[max(0, start - _EXCERPT // 2) : start + _EXCERPT // 2]
        raise Refused(
            f"{where + ': ' if where else ''}document {number}: its text was encoded to control ids {bad} "
            f"{names} near {excerpt!r}; if this source may use them, list them as its markers in the recipe"
        )


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


def _unknown_token(model: dict[str, Any]) -> str | None:
    """The token for what the vocabulary cannot spell: plain text may become it."""
    if isinstance(model["vocab"], list):
        place = model.get("unk_id")
        return None if place is None else str(model["vocab"][place][0])
    unk = model.get("unk_token")
    return str(unk) if unk in model["vocab"] else None


def _no_eos(eos_id: int, added: dict[str, int]) -> str:
    shown = dict(sorted(added.items(), key=lambda item: item[1])[:20])
    return f"end-of-document id {eos_id} is not in the tokenizer; its added tokens are {shown}"


def _read(path: Path) -> bytes:
    try:
        return path.read_bytes()
    except (FileNotFoundError, IsADirectoryError, NotADirectoryError):
        raise Refused(f"{path}: this tokenizer.json does not exist") from None


def _load(data: bytes, name: str) -> Tokenizer:
    try:
        return Tokenizer.from_str(data.decode("utf-8"))
    except Exception as error:  # the library raises bare Exception for every kind of bad file
        raise Refused(f"{name}: not a tokenizer.json that this tokenizers version reads ({error})") from error
