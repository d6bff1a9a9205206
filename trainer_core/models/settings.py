"""Checks the configuration of a model against the dataclass of its family. Imports no torch."""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import MISSING, Field, fields
from difflib import get_close_matches
from typing import Any

LARGEST = 1 << 24
"""The largest size; far more than any device has memory for."""

LEAST, MOST = 2.0**-126, 2.0**127
"""Between them every number is one in float32, too."""


def config_problems(
    cls: type,
    config: Mapping[str, Any],
    *,
    family: str,
    choices: Mapping[str, Sequence[str]] | None = None,
    shares: Sequence[str] = (),
    misfits: Callable[[Mapping[str, Any]], Sequence[str]],
) -> list[str]:
    """Every problem of a configuration, each naming its key.

    Integers and floats are positive, `shares` are 0 or more and below 1, strings are among their `choices`.
    `misfits` is asked for what does not fit together among the settings that have no problem of their own.
    """
    sound: dict[str, Any] = {}
    known = {field.name: field for field in fields(cls)}
    found = [
        f"model.config.{key} is not a setting of {family}{_meant(key, known)}"
        for key in config.keys() - known.keys()
    ]
    for key, field in known.items():
        value = config.get(key)
        if value is None:
            if field.default is MISSING:
                found.append(f"model.config.{key} is missing")
            elif key in config:
                found.append(f"model.config.{key} is null; leave it out for {field.default!r}")
            else:
                sound[key] = field.default
        elif choices and key in choices:
            if value not in choices[key]:
                found.append(f"model.config.{key} is {value!r}; expected {' or '.join(choices[key])}")
        elif wanted := _unlike(value, field, share=key in shares):
            found.append(f"model.config.{key} is {value!r}; expected {wanted}")
        else:
            sound[key] = value
    return sorted([*found, *misfits(sound)])


def no_multiple(sound: Mapping[str, Any], key: str, of: str, times: int = 1) -> list[str]:
    """What to say of a size that is no multiple of so many times another; both may be missing."""
    if key not in sound or of not in sound or sound[key] % (times * sound[of]) == 0:
        return []
    other = f"{'twice ' if times == 2 else ''}model.config.{of}, {times * sound[of]}"
    return [f"model.config.{key} {sound[key]} must be a multiple of {other}"]


def _meant(key: str, known: Collection[str]) -> str:
    """The setting that a key is most like."""
    near = get_close_matches(key, known, n=1, cutoff=0.75)
    return f"; did you mean {near[0]}?" if near else ""


def _unlike(value: Any, field: Field[Any], *, share: bool) -> str | None:
    """What a value was expected to be; None when it is."""
    if field.type == "bool":
        return None if isinstance(value, bool) else "true or false"
    number = isinstance(value, int | float) and not isinstance(value, bool)
    if share:
        return None if number and 0 <= value < 1 else "a number from 0 to below 1"
    if field.type == "int":
        if not (number and isinstance(value, int) and value > 0):
            return "a positive integer"
        return None if value <= LARGEST else f"at most {LARGEST:,}"
    if not (number and 0 < value < math.inf):
        return "a positive number"
    return None if LEAST <= value <= MOST else "a positive number that float32 has"
