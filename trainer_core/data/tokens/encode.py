"""Text to token ids, such that a document's text never becomes a control token.

Encoding uses a copy of tokenizer.json made for it, one per source, held in memory, which matches only the
source's own markers (tokenizer_copy.py). Afterwards every id is compared with the control ids: one that came
out all the same stops the line. The end-of-document id is appended here and nowhere else: in a shard it
always ends a document. This file never reads corpora and never trains tokenizers.
"""

from __future__ import annotations

import hashlib
import json
import os
import re
from array import array
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any, Literal

# Read by the library at its first use; documents are spread over processes, one tokenizer each.
os.environ["TOKENIZERS_PARALLELISM"] = "false"

import numpy as np
import tokenizers
from numpy.typing import NDArray
from tokenizers import Tokenizer

from trainer_core.data.sources import TokenizerRecord
from trainer_core.data.text.documents import Chat, Document, document_text
from trainer_core.data.tokens.tokenizer_copy import encode_copy, unknown_token
from trainer_core.errors import Refused
from trainer_core.line.files import canonical_json

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
    native = load_tokenizer(data, str(path))
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


@dataclass(frozen=True, kw_only=True)
class Encoded:
    """Documents behind each other."""

    ids: NDArray[Any]
    """All ids, every document ended by the end-of-document id; uint16 or uint32."""
    lengths: list[int]
    """Ids of each document, its end included."""


class Encoder:
    """Encodes the documents of one source. Cheap to make (well under a second); one per process."""

    def __init__(self, tokenizer_json: bytes, *, markers: Sequence[str] = (), eos_id: int) -> None:
        native = load_tokenizer(tokenizer_json, "tokenizer.json")
        self._json = tokenizer_json
        self.eos_id = eos_id
        self.markers = tuple(markers)
        added = {token.content: number for number, token in native.get_added_tokens_decoder().items()}
        self.eos: str = _end_token(native, eos_id, added, self.markers)
        """Spelling of the end-of-document token."""
        self._own = {marker: added[marker] for marker in self.markers}
        content = json.loads(tokenizer_json)
        unk = unknown_token(content["model"])
        control = {*added, self.eos}
        copy = encode_copy(content, own=self._own, control=control)
        encoded = canonical_json(copy)
        self.digest = hashlib.sha256(encoded).hexdigest()
        """Hex sha256 of the encode-only copy."""
        self._tokenizer = load_tokenizer(encoded, "encode-only tokenizer copy")
        moved = {
            m: self._tokenizer.token_to_id(m)
            for m, number in self._own.items()
            if self._tokenizer.token_to_id(m) != number
        }
        assert not moved, f"markers changed their ids in the encode-only copy: {moved}"
        self._control = control
        self._normalized = any(token["normalized"] for token in copy["added_tokens"])
        # Longest first, as the library matches.
        self._spelled = re.compile("|".join(map(re.escape, sorted(self.markers, key=len, reverse=True))))
        unk_id = None if unk is None else native.token_to_id(unk)
        unknown = set() if unk_id is None or unk_id == eos_id else {unk_id}
        self.control_ids = frozenset({*added.values(), eos_id} - {*self._own.values(), *unknown})
        """Ids that must never come out of text."""
        largest = max(native.get_vocab(with_added_tokens=True).values())
        self.dtype = np.dtype(np.uint16 if largest <= LARGEST_UINT16 else np.uint32)
        """Type of the returned ids."""
        self._is_control = np.zeros(largest + 1, dtype=bool)
        self._is_control[list(self.control_ids)] = True

    def encode(
        self, documents: Sequence[Document], *, first_document: int = 0, where: str = ""
    ) -> list[NDArray[Any]]:
        """Ids of every document, each ended by the end-of-document id; else as `encode_flat`."""
        encoded = self.encode_flat(documents, first_document=first_document, where=where)
        return np.split(encoded.ids, np.cumsum(encoded.lengths)[:-1]) if documents else []

    def encode_flat(
        self, documents: Sequence[Document], *, first_document: int = 0, where: str = ""
    ) -> Encoded:
        """The documents' ids behind each other.

        `where` and `first_document` name the documents in the message of the guard, which raises Refused when
        a control id came out. In a plain text the source's markers are tokens. In a chat only its token parts
        are: it is encoded as one text where that gives exactly these tokens, and part by part where one of
        its texts spells a marker. (Both give the same ids, except under tokenizers that set a mark before the
        first word of a text only: there each part has one.)
        """
        lists = self._ids([document_text(document) for document in documents])
        for index, document in enumerate(documents):
            if isinstance(document, Chat) and not self._reads_as(document, lists[index]):
                lists[index] = self._by_parts(document, first_document + index, where)
        # Three times as fast as numpy's own ways to read lists of integers.
        packed = array("I")
        for ids in lists:
            ids.append(self.eos_id)
            packed.fromlist(ids)
        lengths = list(map(len, lists))
        flat = np.frombuffer(packed, dtype=np.uintc).astype(self.dtype)
        control = self._is_control[flat]
        control[np.cumsum(lengths, dtype=np.int64) - 1] = False
        if control.any():
            self._refuse(int(np.argmax(control)), flat, lengths, documents, first_document, where)
        return Encoded(ids=flat, lengths=lengths)

    def default_control_ids(self, documents: Sequence[Document]) -> int:
        """How many control ids the library's default matching would have read out of these texts."""
        texts = [document_text(document) for document in documents]
        encodings = self._native.encode_batch_fast(texts, add_special_tokens=False)
        return sum(1 for encoding in encodings for number in encoding.ids if number in self.control_ids)

    def decode(self, document: NDArray[Any]) -> str:
        """The text of one encoded document, without its end-of-document id."""
        return str(self._tokenizer.decode(document[:-1].tolist(), skip_special_tokens=False))

    @cached_property
    def _native(self) -> Tokenizer:
        native = load_tokenizer(self._json, "tokenizer.json")
        native.no_truncation()
        native.no_padding()
        return native

    @cached_property
    def _plain(self) -> Tokenizer:
        """A copy that matches no marker at all."""
        copy = encode_copy(json.loads(self._json), own={}, control=self._control)
        return load_tokenizer(canonical_json(copy), "encode-only tokenizer copy")

    def _ids(self, texts: Sequence[str]) -> list[list[int]]:
        return [e.ids for e in self._tokenizer.encode_batch_fast(texts, add_special_tokens=False)]

    def _reads_as(self, chat: Chat, ids: list[int]) -> bool:
        """Whether the ids of a chat's joined text have its tokens, at their places, and no others."""
        if not self.markers:
            return True
        if [match.span() for match in self._spelled.finditer(chat.text)] != chat.token_spans():
            return False
        if not self._normalized:
            return True
        # Some markers are matched in normalized text, which the text itself does not show.
        own = set(self._own.values())
        tokens = [self._own[chat.text[start:end]] for start, end in chat.token_spans()]
        return [number for number in ids if number in own] == tokens

    def _by_parts(self, chat: Chat, number: int, where: str) -> list[int]:
        texts = [part for part, is_token in zip(chat.parts, chat.is_token, strict=True) if not is_token]
        plain = iter(self._plain.encode_batch_fast(texts, add_special_tokens=False))
        ids: list[int] = []
        for part, is_token in zip(chat.parts, chat.is_token, strict=True):
            if is_token:
                ids.append(self._own[part])
                continue
            found = next(plain).ids
            if bad := set(self._own.values()).intersection(found):
                raise self._refusal(sorted(bad), part, number, where)
            ids += found
        return ids

    def _refuse(
        self,
        position: int,
        ids: NDArray[Any],
        lengths: Sequence[int],
        documents: Sequence[Document],
        first: int,
        where: str,
    ) -> None:
        ends = np.cumsum(lengths)
        index = int(np.searchsorted(ends, position, side="right"))
        document = ids[ends[index] - lengths[index] : ends[index] - 1]
        bad = sorted(set(document[self._is_control[document]].tolist()))
        raise self._refusal(bad, document_text(documents[index]), first + index, where)

    def _refusal(self, bad: list[int], text: str, number: int, where: str) -> Refused:
        names = [self._tokenizer.id_to_token(i) for i in bad]
        start = next((text.find(name) for name in names if name and name in text), 0)
        excerpt = text[max(0, start - _EXCERPT // 2) : start + _EXCERPT // 2]
        return Refused(
            f"{where + ': ' if where else ''}document {number}: its text was encoded to control ids {bad} "
            f"{names} near {excerpt!r}; if this source may use them, list them as its markers in the recipe"
        )


def _end_token(native: Tokenizer, eos_id: int, added: dict[str, int], markers: Sequence[str]) -> str:
    """Spelling of the end-of-document token. Raises Refused when it or a marker is not to be had."""
    eos = native.id_to_token(eos_id) if 0 <= eos_id < _IDS else None
    problems = [
        f"marker {marker!r} is no added token of the tokenizer; those are {sorted(added)[:20]}"
        for marker in markers
        if marker not in added
    ]
    if eos is None:
        problems.append(_no_eos(eos_id, added))
    elif eos in markers:
        problems.append(f"marker {eos!r} is the end-of-document token (id {eos_id}); it cannot be a marker")
    if problems:
        raise Refused(problems)
    assert eos is not None
    return str(eos)


def _no_eos(eos_id: int, added: dict[str, int]) -> str:
    shown = dict(sorted(added.items(), key=lambda item: item[1])[:20])
    return f"end-of-document id {eos_id} is not in the tokenizer; its added tokens are {shown}"


def _read(path: Path) -> bytes:
    try:
        return path.read_bytes()
    except IsADirectoryError:
        raise Refused(f"{path}: is a folder; name the tokenizer.json in it") from None
    except (FileNotFoundError, NotADirectoryError):
        raise Refused(f"{path}: this tokenizer.json does not exist") from None


def load_tokenizer(data: bytes, name: str) -> Tokenizer:
    """The tokenizer of a tokenizer.json. Raises Refused, with the name given, when there is none in it."""
    try:
        return Tokenizer.from_str(data.decode("utf-8"))
    except Exception as error:  # the library raises bare Exception for every kind of bad file
        raise Refused(f"{name}: not a tokenizer.json that this tokenizers version reads ({error})") from error
