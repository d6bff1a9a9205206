"""The `messages` rule: a row's list of messages becomes one chat, each message by the rule's template.

Role and content are always plain text: a content that spells a marker or `{role}` stays those characters. A
message whose content is null is left out and counted; a row without any content is skipped and counted. Other
keys of a message (names, tool calls) are ignored. Never reads files and never tokenizes.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence

from trainer_core.data.sources import TextRule
from trainer_core.data.text.documents import Chat, Element, ReadCounts, clean_text, is_blank
from trainer_core.errors import Refused

ROLE, CONTENT = "{role}", "{content}"
_PLACES = re.compile(r"(\{role\}|\{content\})")


class Messages:
    """Renders the rows of one file."""

    def __init__(self, rule: TextRule, markers: Sequence[str], where: str) -> None:
        """`markers` are the spellings that are tokens where they are a whole part of the template."""
        self._where, self._column = where, rule.column
        self._template = [(_PLACES.split(part), part in markers) for part in rule.template]
        self._needs_role = any(ROLE in part for part in rule.template)
        self.fields: tuple[str, ...] = ("role", "content") if self._needs_role else ("content",)
        """What is read of a message, in the order in which `document` expects it."""

    def document(self, elements: list[Element] | None, counts: ReadCounts, row: int) -> Chat | None:
        """The chat of a row, or None when it has no content; `row` counts from 1."""
        if elements is None:
            counts.null += 1
            return None
        messages: list[tuple[str, str]] = []
        replaced = spoken = False
        for place, element in enumerate(elements):
            if element is None or element[-1] is None:
                counts.null_parts += 1
                continue
            role, bad_role = self._role(element, row, place)
            content, bad_content = clean_text(element[-1])
            replaced |= bad_role or bad_content
            spoken |= not is_blank(content)
            messages.append((role, content))
        if not spoken:
            counts.empty += 1
            return None
        counts.replaced += replaced
        return Chat.of(self._pieces(messages))

    def _role(self, element: Element, row: int, place: int) -> tuple[str, bool]:
        if not self._needs_role:
            return "", False
        assert element is not None
        if element[0] is None:
            raise Refused(
                f"{self._where}: row {row}: column {self._column!r}: message {place} has no role; "
                f"the template needs one at {ROLE}"
            )
        return clean_text(element[0])

    def _pieces(self, messages: list[tuple[str, str]]) -> Iterator[tuple[str, bool]]:
        for role, content in messages:
            values = {ROLE: role, CONTENT: content}
            for pieces, is_token in self._template:
                for piece in pieces:
                    yield (piece, True) if is_token else (values.get(piece, piece), False)
