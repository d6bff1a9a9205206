"""Which documents are held out for validation, decided by their text alone.

A text is held out if the hash of its UTF-8 bytes, keyed by the source's identity, falls into the fraction.
All copies inside a source share one decision, whatever their row, file, cycle, line or the source's nickname.
The same text in two sources is decided by each source's own key. Texts are compared as read: a copy that
differs in a final newline, in CR LF or in its Unicode normal form is another text.
"""

from __future__ import annotations

import hashlib

PARTS = 1_000_000
_LONGEST_KEY = 64


def is_held_out(text: str, *, identity: str, fraction: float) -> bool:
    """Whether a document of the source `identity` is kept for validation; fractions count in millionths."""
    key = identity.encode("utf-8")
    if len(key) > _LONGEST_KEY:
        key = hashlib.blake2b(key).digest()
    digest = hashlib.blake2b(text.encode("utf-8"), digest_size=8, key=key).digest()
    return int.from_bytes(digest, "big") % PARTS < round(fraction * PARTS)
