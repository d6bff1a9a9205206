"""Single values of recipe.json: each parser takes what JSON gives and returns the typed value or ValueError.

Never compares two keys with each other (recipe_checks.py) and never opens a file.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from fractions import Fraction
from math import isfinite
from typing import Any

from trainer_core.data.sources import StratumRule, TextRule

TEXT_FORMS = (
    '"auto", {"column": "<name>"}, {"messages": "<name>", "template": ["<part>", ...]} or '
    '{"list": "<name>", "field": "<name>", "join": "<text>"}'
)
_PLACEHOLDER = re.compile(r"\{(\w*)\}")
_PLACEHOLDERS = ("role", "content")


def stratum_rule(value: Any) -> StratumRule:
    """`none`, `file`, or a directory level."""
    if value in ("none", "file"):
        return value  # type: ignore[no-any-return]
    level = value.get("level") if isinstance(value, dict) and set(value) == {"level"} else None
    if isinstance(level, int) and not isinstance(level, bool) and level >= 1:
        return level
    raise ValueError('expected "none", "file" or {"level": k} with a directory level k >= 1')


def text_rule(value: Any) -> TextRule:
    """A text rule in one of its four forms."""
    if value == "auto":
        return TextRule(kind="auto")
    if isinstance(value, dict):
        if "messages" in value:
            return _messages(value)
        if "list" in value:
            return _list(value)
        if set(value) == {"column"} and _is_name(value["column"]):
            return TextRule(kind="column", column=value["column"])
    raise ValueError(f"expected {TEXT_FORMS}")


def marker_problems(rule: TextRule, markers: Iterable[str]) -> list[str]:
    """Parts of a rule in which a declared marker stands beside other characters: it would be no marker."""
    parts = (*rule.template, rule.join) if rule.kind in ("messages", "list") else ()
    return [
        f"{part!r} holds the marker {marker!r} and other characters; "
        + (
            "give the marker a part of its own"
            if rule.kind == "messages"
            else "a join is one marker alone, or plain text"
        )
        for part in parts
        for marker in markers
        if marker in part and marker != part
    ]


def share(value: Any) -> Fraction:
    """A share of the tokens, exactly as it is written."""
    if isinstance(value, Fraction):
        return value
    if isinstance(value, str):
        if not re.fullmatch(r"[0-9]{1,18}/[0-9]{1,18}", value) or not int(value.split("/")[1]):
            raise ValueError('expected a number, or a fraction such as "1/3"')
        exact = Fraction(value)
    elif isinstance(value, bool) or not isinstance(value, int | float) or not isfinite(value):
        raise ValueError('expected a number, or a fraction such as "1/3"')
    else:
        exact = Fraction(repr(value))  # repr of a float is its shortest decimal: the text of the file
    if not 0 <= exact <= 1:
        raise ValueError("expected a share from 0 to 1")
    return exact


def share_json(exact: Fraction) -> float | str:
    """A decimal where that is exact, else the fraction."""
    return float(exact) if Fraction(repr(float(exact))) == exact else str(exact)


def glob(value: Any) -> Any:
    """A pattern of paths; types are left to the schema."""
    if isinstance(value, str) and (not value or value.startswith("/") or ".." in value.split("/")):
        raise ValueError('expected a pattern inside the folder, such as "**/*.parquet"')
    if isinstance(value, str) and any("**" in part and part != "**" for part in value.split("/")):
        raise ValueError('"**" stands for folders and must be a whole part, as in "**/*.jsonl"')
    if isinstance(value, str) and any(part in ("", ".") for part in value.split("/")):
        raise ValueError('expected folders and a file name with one "/" between them, as in "data/*.parquet"')
    return value


def repository(value: Any) -> Any:
    """A dataset repository's name; types are left to the schema."""
    if isinstance(value, str) and not re.fullmatch(r"[\w.-]+/[\w.-]+", value, flags=re.ASCII):
        raise ValueError('expected a dataset repository, "owner/name"')
    return value


def _messages(value: dict[str, Any]) -> TextRule:
    template = value.get("template")
    if (
        set(value) != {"messages", "template"}
        or not _is_name(value["messages"])
        or not isinstance(template, list)
        or not all(_is_name(part) for part in template)
    ):
        raise ValueError('expected {"messages": "<column>", "template": ["<part of one message>", ...]}')
    if not any("{content}" in part for part in template):
        raise ValueError("no part of the template holds {content}")
    unknown = sorted({f"{{{name}}}" for part in template for name in _PLACEHOLDER.findall(part)})
    unknown = [name for name in unknown if name[1:-1] not in _PLACEHOLDERS]
    if unknown:
        raise ValueError(f"the template knows {{role}} and {{content}}, not {', '.join(unknown)}")
    return TextRule(kind="messages", column=value["messages"], template=tuple(template))


def _list(value: dict[str, Any]) -> TextRule:
    field, join = value.get("field"), value.get("join", "\n")
    if (
        not set(value) <= {"list", "field", "join"}
        or not _is_name(value["list"])
        or not (field is None or _is_name(field))
        or not isinstance(join, str)
    ):
        raise ValueError(
            'expected {"list": "<column>", "field": "<text of an element>" or null, "join": "<text between>"}'
        )
    return TextRule(kind="list", column=value["list"], field=field, join=join)


def _is_name(value: Any) -> bool:
    return isinstance(value, str) and bool(value)
