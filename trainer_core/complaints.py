"""Turns pydantic's errors into problems that name file, key, value and expectation."""

from __future__ import annotations

from pathlib import Path

from pydantic import ValidationError

_SAID = {"missing": "this key is required", "extra_forbidden": "unknown key"}


def validation_problems(error: ValidationError, where: Path | str) -> list[str]:
    """All problems of a pydantic error, a line each."""
    problems = []
    for item in error.errors():
        key = ".".join(str(part) for part in item["loc"]) or "(whole file)"
        if item["type"] in _SAID:
            problems.append(f"{where}: {key}: {_SAID[item['type']]}")
        else:
            message = item["msg"].removeprefix("Value error, ")
            problems.append(f"{where}: {key}: {message}, found {item['input']!r}")
    return problems
