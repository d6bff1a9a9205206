"""Lists that stand in one row as JSON: chats and texts of JSON lines, or of a string column that holds JSON.

Gives each element as the fields that were asked for and ignores its other keys. Never renders anything.
Whatever is no such list is refused with its place and what was found there.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

from trainer_core.data.text.documents import Element, Raw
from trainer_core.errors import Refused

_SHOWN = 20


class JsonElements:
    """Reads the lists of one column of one file, and remembers whether its fields ever occurred."""

    def __init__(self, where: str, column: str, fields: Sequence[str] | None) -> None:
        """`fields` are the keys wanted of each element; None when the elements are the texts themselves."""
        self._where, self._column, self._fields = where, column, fields
        self._num_elements = 0
        self._missing = set(fields or ())
        self._seen: dict[str, None] = {}

    def read(self, value: Any, row: int) -> list[Element] | None:
        """The elements of a row's value, a list or a text that holds one; `row` counts from 1."""
        if isinstance(value, str | bytes):
            value = self._parsed(value, row)
        if value is None:
            return None
        if not isinstance(value, list):
            raise self._refused(row, f"expected a list, found {_kind(value)}")
        return [self._element(element, row, place) for place, element in enumerate(value)]

    def finish(self) -> None:
        """Refuse a file in which no element has a field: its texts have another name."""
        if self._num_elements and self._missing:
            raise Refused(
                f"{self._where}: column {self._column!r}: no element has {sorted(self._missing)}; "
                f"they have {list(self._seen)[:_SHOWN]}"
            )

    def _parsed(self, value: Raw, row: int) -> Any:
        text = value if isinstance(value, str) else value.decode("utf-8", "surrogateescape")
        if not text or text.isspace():
            return None
        try:
            return json.loads(text)
        except RecursionError:
            raise self._refused(row, "its JSON is nested too deeply") from None
        except ValueError as error:
            raise self._refused(row, f"expected a list as JSON, found {text[:40]!r} ({error})") from None

    def _element(self, element: Any, row: int, place: int) -> Element:
        if element is None:
            return None
        if self._fields is None:
            return (self._text(element, row, f"element {place}"),)
        if not isinstance(element, dict):
            raise self._refused(
                row, f"element {place}: expected an object with {list(self._fields)}, found {_kind(element)}"
            )
        self._num_elements += 1
        if self._missing:
            self._missing.difference_update(element)
            self._seen.update(dict.fromkeys(element))
        return tuple(
            self._text(element.get(field), row, f"element {place}: {field!r}") for field in self._fields
        )

    def _text(self, value: Any, row: int, place: str) -> str | None:
        if value is None or isinstance(value, str):
            return value
        raise self._refused(row, f"{place}: expected a string, found {_kind(value)}")

    def _refused(self, row: int, problem: str) -> Refused:
        return Refused(f"{self._where}: row {row}: column {self._column!r}: {problem}")


def _kind(value: Any) -> str:
    names = {dict: "an object", list: "a list", str: "a string", bool: "a boolean", type(None): "null"}
    return names.get(type(value), "a number")
