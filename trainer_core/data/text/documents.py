"""What comes out of a corpus file: documents, and the counts of what reading left out or changed.

A document is a plain text, or a chat: parts of which some are tokens of their own, chosen by the rule that
built it and never by what its text says. Never reads files and never tokenizes.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass
from itertools import accumulate
from typing import TypeAlias

from trainer_core.errors import Refused

Raw: TypeAlias = str | bytes
"""A text as a reader found it; bytes where it is not UTF-8."""
Element: TypeAlias = tuple[Raw | None, ...] | None
"""One element of a list column: the fields that were asked for, or None where the element is null."""

_SURROGATE = re.compile("[\ud800-\udfff]")


@dataclass(frozen=True, kw_only=True, slots=True)
class Chat:
    """A document of parts; empty parts are left out, and no two texts stand beside each other."""

    parts: tuple[str, ...]
    """Texts and spellings of tokens, in order."""
    is_token: tuple[bool, ...]
    """Which parts are tokens; the others are plain text, whatever they spell."""

    @property
    def text(self) -> str:
        """The document as people read it: what is hashed, counted and compared."""
        return "".join(self.parts)

    def token_spans(self) -> list[tuple[int, int]]:
        """Where its tokens stand in the text."""
        ends = accumulate(map(len, self.parts))
        return [
            (end - len(part), end)
            for part, end, is_token in zip(self.parts, ends, self.is_token, strict=True)
            if is_token
        ]

    @staticmethod
    def of(pieces: Iterable[tuple[str, bool]]) -> Chat:
        """The chat of (text, is a token) pieces; texts that follow each other become one part."""
        parts: list[str] = []
        flags: list[bool] = []
        texts: list[str] = []

        def close() -> None:
            if text := "".join(texts):
                parts.append(text)
                flags.append(False)
            texts.clear()

        for piece, is_token in pieces:
            if is_token:
                close()
                parts.append(piece)
                flags.append(True)
            else:
                texts.append(piece)
        close()
        return Chat(parts=tuple(parts), is_token=tuple(flags))


Document: TypeAlias = str | Chat
"""A plain text, in which the markers that its source declares are tokens, or a chat."""


def document_text(document: Document) -> str:
    """The text of a document."""
    return document if isinstance(document, str) else document.text


def clean_text(raw: Raw) -> tuple[str, bool]:
    """Text that can be encoded, and whether bytes or lone surrogates had to become U+FFFD for that."""
    text = raw if isinstance(raw, str) else raw.decode("utf-8", "surrogateescape")
    if text.isascii():
        return text, False
    try:
        text.encode("utf-8")
    except UnicodeEncodeError:
        return _SURROGATE.sub("\ufffd", text), True
    return text, False


def is_blank(text: str) -> bool:
    """Whether a text says nothing: it is empty or white space only."""
    return not text or text.isspace()


@dataclass
class ReadCounts:
    """What reading a file left out or changed, in documents unless said; filled while the iterator runs."""

    null: int = 0
    """Null texts and lists, and JSON lines without the column."""
    empty: int = 0
    """Texts that are empty or white space only, and lists without any text."""
    replaced: int = 0
    """Documents in which undecodable bytes or lone surrogates became U+FFFD."""
    null_parts: int = 0
    """Messages without content and null elements of lists, each left out of its document and counted."""

    def to_json(self) -> dict[str, int]:
        """The counts that are not zero."""
        return {key: value for key, value in vars(self).items() if value}


class Damaged(Refused):
    """A file that its own format shows to be cut or damaged: another copy of it may be whole."""
