"""What no single key of a recipe shows: one place per source, sums of shares, names that must not meet.

Works on the raw JSON, so that these problems are told together with those of the schema. Never opens a file.
The order of samples repeats after the sum of the integer shares; shares of so many digits that walking it
once would take minutes are refused.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from fractions import Fraction
from itertools import pairwise
from math import gcd, lcm
from pathlib import Path
from typing import Any

from trainer_core.data.plan.order import MAX_PERIOD
from trainer_core.data.recipe.values import marker_problems, share, text_rule

SUM_TOLERANCE = Fraction(1, 10**9)
RESERVED_NAMES = ("mix", "mean")


def integer_shares(shares: Mapping[str, Fraction], names: list[str]) -> dict[str, int]:
    """The smallest integers in the same proportion, for the names that have a share."""
    denominator = lcm(*(share.denominator for share in shares.values()))
    counts = {name: int(shares.get(name, Fraction(0)) * denominator) for name in names}
    divisor = gcd(*counts.values())
    return {name: count // divisor for name, count in counts.items() if count}


def source_problems(sources: Mapping[str, Any]) -> list[str]:
    """Names that are taken, and sources with no place or two, or with markers inside other text."""
    problems = []
    for name, source in sources.items():
        if name in RESERVED_NAMES:
            problems.append(f"sources.{name}: this name is taken by a validation average; choose another")
        if name.endswith(".json"):
            problems.append(
                f"sources.{name}: a name that ends in .json may be one of our files; choose another"
            )
        if not isinstance(source, dict):
            continue
        places = [key for key in ("folder", "repo") if source.get(key) is not None]
        if len(places) != 1:
            found = "both" if places else "neither"
            problems.append(f'sources.{name}: expected one of "folder" and "repo", found {found}')
        if places == ["folder"]:
            problems += [
                f'sources.{name}.{key}: belongs to a "repo" source; remove it'
                for key in ("revision", "min_age_hours")
                if source.get(key) is not None
            ]
        problems += _marker_problems(name, source)
    return problems


def identity_of(id: str | None, repo: str | None, glob: str, folder: str | Path | None) -> str:
    """Key of a source's held-out decision: its id, else repository and pattern, else the folder's name."""
    return id or (f"{repo}/{glob}" if repo else Path(folder or "").name)


def identity_problems(sources: Mapping[str, Any], folders: Mapping[str, Path]) -> list[str]:
    """Sources that would share one held-out decision by accident; `folders` are the absolute ones."""
    names: dict[str, list[str]] = {}
    for name, source in sources.items():
        if not isinstance(source, dict) or (source.get("repo") is None) == (name not in folders):
            continue
        given, repo, glob = source.get("id"), source.get("repo"), source.get("glob", "**/*")
        if all(key is None or isinstance(key, str) for key in (given, repo, glob)):
            names.setdefault(identity_of(given, repo, glob, folders.get(name)), []).append(name)
    return [
        f"sources.{same[-1]}: has the identity {identity!r}, as {', '.join(same[:-1])}; it decides which "
        'text is held out: give each an "id" of its own, or make them one source'
        for identity, same in names.items()
        if len(same) > 1
    ]


def _marker_problems(name: str, source: Mapping[str, Any]) -> list[str]:
    try:
        rule = text_rule(source.get("text", "auto"))
    except ValueError:
        return []
    markers = source.get("markers", [])
    if not isinstance(markers, list) or not all(isinstance(marker, str) and marker for marker in markers):
        return []
    twice = sorted({marker for marker in markers if markers.count(marker) > 1})
    return [f"sources.{name}.markers: {marker!r} stands twice" for marker in twice] + [
        f"sources.{name}.text: {problem}" for problem in marker_problems(rule, dict.fromkeys(markers))
    ]


def piece_problems(raw: dict[str, Any], names: list[str]) -> list[str]:
    """What one field alone cannot show: sums, unknown names, order of pieces, sources without any share."""
    pieces = raw.get("pieces")
    if not isinstance(pieces, list) or not all(isinstance(piece, dict) for piece in pieces):
        return []
    problems: list[str] = []
    shared: Counter[str] = Counter()
    starts = [piece.get("from_cycle", 0) for piece in pieces]
    if all(isinstance(start, int) for start in starts):
        if starts and starts[0] != 0:
            problems.append(f"pieces.0.from_cycle: expected 0 for the first piece, found {starts[0]}")
        if any(later <= earlier for earlier, later in pairwise(starts)):
            problems.append(f"pieces: from_cycle must rise from piece to piece, found {starts}")
    readable = True
    for index, piece in enumerate(pieces):
        shares = piece.get("shares")
        if not isinstance(shares, dict):
            readable = False
            continue
        for name in shares:
            if name not in names:
                problems.append(f"pieces.{index}.shares.{name}: no such source; the sources are {names}")
        try:
            exact = {name: share(value) for name, value in shares.items()}
        except ValueError:
            readable = False
            continue
        total = sum(exact.values(), Fraction(0))
        if abs(total - 1) > SUM_TOLERANCE:
            problems.append(
                f"pieces.{index}.shares: sum to {float(total):.12g}, expected 1 (within 1e-9); "
                "scale the numbers so that they sum to 1"
            )
        elif (period := sum(integer_shares(exact, list(exact)).values())) > MAX_PERIOD:
            problems.append(
                f"pieces.{index}.shares: their order repeats only after {period:,} rows, more than "
                f'{MAX_PERIOD:,}; write at most 7 digits after the point, or fractions such as "1/3"'
            )
        shared.update(name for name, value in exact.items() if value)
    if readable and pieces:
        problems += [
            f"sources.{name}: has no share in any piece; give it one or remove it"
            for name in names
            if not shared[name]
        ]
    return problems
