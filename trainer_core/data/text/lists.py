"""The `list` rule: the texts of a row's list, joined, are one document.

Where the join is one of the source's markers, it is that token, and the texts are plain whatever they spell;
where it is text, the joined text is read like a column's. Elements and texts that are null are left out and
counted; a row without any text is skipped and counted. Never reads files and never tokenizes.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from trainer_core.data.sources import TextRule
from trainer_core.data.text.documents import Chat, Document, Element, ReadCounts, clean_text, is_blank


class Lists:
    """Joins the rows of one file."""

    def __init__(self, rule: TextRule, markers: Sequence[str]) -> None:
        """`markers` are the spellings that are tokens where they are the join."""
        self._join = rule.join
        self._join_is_token = rule.join in markers
        self.fields: tuple[str, ...] | None = None if rule.field is None else (rule.field,)
        """What is read of an element; None when the elements are the texts."""

    def document(self, elements: list[Element] | None, counts: ReadCounts, row: int) -> Document | None:
        """The document of a row, or None when it has no text; `row` counts from 1."""
        if elements is None:
            counts.null += 1
            return None
        cleaned = [clean_text(e[0]) for e in elements if e is not None and e[0] is not None]
        counts.null_parts += len(elements) - len(cleaned)
        texts = [text for text, _ in cleaned]
        if all(map(is_blank, texts)):
            counts.empty += 1
            return None
        counts.replaced += any(bad for _, bad in cleaned)
        return Chat.of(self._pieces(texts)) if self._join_is_token else self._join.join(texts)

    def _pieces(self, texts: list[str]) -> Iterator[tuple[str, bool]]:
        for place, text in enumerate(texts):
            if place:
                yield self._join, True
            yield text, False
