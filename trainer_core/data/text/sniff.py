"""What `auto` makes of a file: its only large column of plain texts, or a refusal that names the rule.

Looks at the first rows only, as Python values. Never reads documents. A column counts as large when it holds
a tenth or more of the characters of these rows; lists of texts and of messages count too, so that a short id
beside a long chat is never taken for the text.
"""

from __future__ import annotations

import json
from collections.abc import Collection, Iterable, Mapping
from pathlib import Path
from typing import Any

from trainer_core.data.sources import TextRule
from trainer_core.errors import Refused

SNIFFED_ROWS = 1000
SNIFFED_CHARACTERS = 16 << 20
_LARGE_PART = 0.1
_CHAT = '["<|im_start|>", "{role}\\n{content}", "<|im_end|>", "\\n"]'


def sniff(path: Path, rows: Iterable[Mapping[str, Any]], doubled: Collection[str] = ()) -> TextRule | None:
    """The rule of a file whose first rows are these; None if they hold no text. Raises Refused.

    `doubled` are names that several columns have, whose values come as one list: none of them is chosen.
    """
    sizes: dict[str, int] = {}
    forms: dict[str, str] = {}
    for index, row in enumerate(rows):
        if index == SNIFFED_ROWS or sum(sizes.values()) > SNIFFED_CHARACTERS:
            break
        for name, value in row.items():
            if isinstance(value, str | bytes | list):
                sizes[name] = sizes.get(name, 0) + _characters(value)
                if name not in forms and (form := _list_form(name, value)):
                    forms[name] = form
    total = sum(sizes.values())
    large = [name for name, size in sizes.items() if size >= _LARGE_PART * total]
    if not total:
        return None
    if twice := [name for name in large if name in doubled]:
        raise Refused(
            f"{path}: column {twice[0]!r} is there several times, and its texts are large; write the file "
            'again with a name for each column, or name another one: "text": {"column": "<name>"}'
        )
    nested = [forms[name] for name in large if name in forms]
    if len(large) == 1 and not nested:
        return TextRule(kind="column", column=large[0])
    plain = ['"text": {"column": "<name>"}'] if len(nested) < len(large) else []
    raise Refused(
        f"{path}: the text column is not plain: columns of texts and their characters in the first rows are "
        f"{sizes}; name one in the recipe: {', or '.join(plain + nested)}"
    )


def _characters(value: Any) -> int:
    if isinstance(value, str | bytes):
        return len(value)
    if isinstance(value, list):
        return sum(map(_characters, value))
    return sum(map(_characters, value.values())) if isinstance(value, dict) else 0


def _list_form(name: str, value: Any) -> str | None:
    """The rule to write for a column of lists, judged by one value; None for plain texts and empty lists."""
    if isinstance(value, str | bytes):
        value = _as_list(value)
    first = next((element for element in value or () if element is not None), None)
    if isinstance(first, dict) and {"role", "content"} <= set(first):
        return f'"text": {{"messages": {json.dumps(name)}, "template": {_CHAT}}}'
    field = None
    if isinstance(first, dict):
        field = max(first, key=lambda key: _characters(first[key]) if isinstance(first[key], str) else -1)
    elif not isinstance(first, str):
        return None
    return f'"text": {{"list": {json.dumps(name)}, "field": {json.dumps(field)}, "join": "\\n"}}'


def _as_list(value: str | bytes) -> list[Any] | None:
    """A list that stands in a text as JSON; only lists of objects, for "[...]" begins many plain texts."""
    if value[:1] not in ("[", b"["):
        return None
    try:
        parsed = json.loads(value)
    except (ValueError, RecursionError):
        return None
    return parsed if isinstance(parsed, list) and all(isinstance(e, dict) for e in parsed) else None
