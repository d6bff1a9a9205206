"""Ids to text as they come. One character may be spelled by several tokens: it appears when it is whole."""

from __future__ import annotations

from collections.abc import Callable, Sequence

_BROKEN = "\ufffd"
"""Stands for bytes that are no character, such as the first ones of a character whose last are missing."""


class Speller:
    """Makes text of ids; the pieces joined are the text of all ids.

    The ids whose text appeared last are decoded with the next ones: whether a token begins with a space may
    depend on whether there is one before it.
    """

    def __init__(self, decode: Callable[[Sequence[int]], str], before: Sequence[int] = ()) -> None:
        """`decode` makes text of ids; the text of `before` has appeared already."""
        self._decode = decode
        self._ids = list(before)
        self._shown = len(self._ids)

    def add(self, token: int) -> str:
        """The text that is whole now and was not before."""
        self._ids.append(token)
        text = self._new()
        if not text or text.endswith(_BROKEN):
            return ""
        self._ids = self._ids[self._shown :]
        self._shown = len(self._ids)
        return text

    def rest(self) -> str:
        """What is left at the end, broken characters included."""
        text = self._new()
        self._shown = len(self._ids)
        return text

    def _new(self) -> str:
        shown = self._decode(self._ids[: self._shown])
        return self._decode(self._ids)[len(shown) :]
