"""Which documents are held out for validation, decided by their text alone.

A text is held out if the hash of its UTF-8 bytes, keyed by the source's identity, falls into the fraction.
All copies inside a source share one decision, whatever their row, file, cycle, line or the source's nickname.
The same text in two sources is decided by each source's own key. Texts are compared as read: a copy that
differs in a final newline, in CR LF or in its Unicode normal form is another text.
"""

from __future__ import annotations

import hashlib

from trainer_core.data.text.documents import Document, document_text

PARTS = 1_000_000
_LONGEST_KEY = 64


class Holdout:
    """The held-out decision of one source."""

    def __init__(self, *, identity: str, fraction: float) -> None:
        """Fractions count in millionths."""
        key = identity.encode("utf-8")
        if len(key) > _LONGEST_KEY:
            key = hashlib.blake2b(key).digest()
        self._keyed = hashlib.blake2b(digest_size=8, key=key)
        self._limit = round(fraction * PARTS)

    def holds(self, text: bytes) -> bool:
        """Whether a document with these UTF-8 bytes is kept for validation."""
        hasher = self._keyed.copy()
        hasher.update(text)
        return int.from_bytes(hasher.digest(), "big") % PARTS < self._limit


def is_held_out(document: Document, *, identity: str, fraction: float) -> bool:
    """Whether a document of the source `identity` is kept for validation; a chat is decided by its text."""
    return Holdout(identity=identity, fraction=fraction).holds(document_text(document).encode("utf-8"))
