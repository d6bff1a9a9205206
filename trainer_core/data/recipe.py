"""recipe.json as people write it: which folders are sources and what share of the tokens each has.

Owns the schema, its strict reading with every problem reported at once, and the exact shares. Never looks
into a folder beyond "does it exist".

Shares are decimals (0.25) or fractions written as text ("1/3"); the shares of a piece must sum to 1 within
1e-9 and are kept as exact integers with their sum as denominator ("0.1" is 1/10, never the nearest binary
number), because the order of samples is integer arithmetic. That order repeats after the sum of the integers;
shares of so many digits that walking it once would take minutes are refused.
"""

from __future__ import annotations

import json
import re
from collections import Counter
from collections.abc import Mapping
from fractions import Fraction
from itertools import pairwise
from math import gcd, isfinite, lcm
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, PlainSerializer, ValidationError

from trainer_core import host
from trainer_core.complaints import validation_problems
from trainer_core.data.order import MAX_PERIOD
from trainer_core.data.sources import Piece, StratumRule, TextRule
from trainer_core.errors import Refused
from trainer_core.line.files import read_json

SUM_TOLERANCE = Fraction(1, 10**9)
NAME_PATTERN = r"^[A-Za-z0-9][A-Za-z0-9_.-]{0,63}$"
RESERVED_NAMES = ("mix", "mean")
SEED_LIMIT = 1 << 63


def _stratum_rule(value: Any) -> StratumRule:
    if value in ("none", "file"):
        return value  # type: ignore[no-any-return]
    level = value.get("level") if isinstance(value, dict) and set(value) == {"level"} else None
    if isinstance(level, int) and not isinstance(level, bool) and level >= 1:
        return level
    raise ValueError('expected "none", "file" or {"level": k} with a directory level k >= 1')


def _text_rule(value: Any) -> TextRule:
    if value == "auto":
        return TextRule(kind="auto")
    if isinstance(value, dict):
        for later in ("messages", "list"):
            if later in value:
                raise ValueError(f"{later!r} rules are not available in this version: use a text column")
        column = value.get("column")
        if set(value) == {"column"} and isinstance(column, str) and column:
            return TextRule(kind="column", column=column)
    raise ValueError('expected "auto" or {"column": "<name>"}')


def _share(value: Any) -> Fraction:
    if isinstance(value, Fraction):
        return value
    if isinstance(value, str):
        if not re.fullmatch(r"[0-9]{1,18}/[0-9]{1,18}", value) or not int(value.split("/")[1]):
            raise ValueError('expected a number, or a fraction such as "1/3"')
        share = Fraction(value)
    elif isinstance(value, bool) or not isinstance(value, int | float) or not isfinite(value):
        raise ValueError('expected a number, or a fraction such as "1/3"')
    else:
        share = Fraction(repr(value))  # repr of a float is its shortest decimal: the text of the file
    if not 0 <= share <= 1:
        raise ValueError("expected a share from 0 to 1")
    return share


def _share_json(share: Fraction) -> float | str:
    """A decimal where that is exact, else the fraction."""
    return float(share) if Fraction(repr(float(share))) == share else str(share)


def _glob(value: Any) -> Any:
    if isinstance(value, str) and (not value or value.startswith("/") or ".." in value.split("/")):
        raise ValueError('expected a pattern inside the folder, such as "**/*.parquet"')
    if isinstance(value, str) and any("**" in part and part != "**" for part in value.split("/")):
        raise ValueError('"**" stands for folders and must be a whole part, as in "**/*.jsonl"')
    return value


def _folder_source(value: Any) -> Any:
    if isinstance(value, dict) and ("repo" in value or "revision" in value):
        raise ValueError(
            '"repo" sources are not available in this version: download the files and name their "folder"'
        )
    return value


class _Strict(BaseModel):
    model_config = ConfigDict(extra="forbid", strict=True, frozen=True, arbitrary_types_allowed=True)


class SourceRecipe(_Strict):
    """One source: files of a folder."""

    folder: Annotated[str, Field(min_length=1)]
    """Folder of the files; relative to recipe.json, to the current folder, or to work_root, in this order."""
    glob: Annotated[str, BeforeValidator(_glob)] = "**/*"
    """Pattern of the files inside the folder."""
    id: Annotated[str, Field(min_length=1)] | None = None
    """Name of the corpus for the held-out decision, instead of the folder's own name."""
    stratum: Annotated[Any, BeforeValidator(_stratum_rule)] = "none"
    """`none`, `file`, or `{"level": k}`: the k-th directory below the folder names the stratum."""
    text: Annotated[TextRule, BeforeValidator(_text_rule), PlainSerializer(TextRule.to_json)] = TextRule()
    """`auto` (the only large string column) or `{"column": "<name>"}`."""
    markers: list[Annotated[str, Field(min_length=1)]] = Field(default_factory=list)
    """Added tokens that this source's text may use as control tokens."""
    heldout: Annotated[float, Field(ge=0, le=0.5)] = 0.01
    """Fraction of the documents kept for validation."""


class PieceRecipe(_Strict):
    """Shares from one cycle on."""

    from_cycle: Annotated[int, Field(ge=0)] = 0
    """First cycle with these shares."""
    shares: dict[str, Annotated[Fraction, BeforeValidator(_share), PlainSerializer(_share_json)]]
    """Share of the tokens per source, 0.25 or "1/4"; a source that is not named has none."""


class Recipe(_Strict):
    """recipe.json."""

    format: Literal["recipe/1"] = "recipe/1"
    """Format of the file."""
    sources: Annotated[
        dict[
            Annotated[str, Field(pattern=NAME_PATTERN)],
            Annotated[SourceRecipe, BeforeValidator(_folder_source)],
        ],
        Field(min_length=1),
    ]
    """Sources by nickname."""
    pieces: Annotated[list[PieceRecipe], Field(min_length=1)]
    """Shares by rising first cycle, the first at 0."""
    seed: Annotated[int, Field(ge=0, lt=SEED_LIMIT)] = 0
    """Seed of the line's permutations."""
    max_epochs: Literal[1] = 1
    """Passes over a source; 1 is the only value of this version."""

    def integer_pieces(self) -> tuple[Piece, ...]:
        """The pieces with exact integer shares, sources in the recipe's order."""
        return tuple(
            Piece(from_cycle=piece.from_cycle, shares=integer_shares(piece.shares, list(self.sources)))
            for piece in self.pieces
        )


def integer_shares(shares: Mapping[str, Fraction], names: list[str]) -> dict[str, int]:
    """The smallest integers in the same proportion, for the names that have a share."""
    denominator = lcm(*(share.denominator for share in shares.values()))
    counts = {name: int(shares.get(name, Fraction(0)) * denominator) for name in names}
    divisor = gcd(*counts.values())
    return {name: count // divisor for name, count in counts.items() if count}


def load_recipe(path: Path) -> Recipe:
    """Read a recipe; folders come back absolute. Raises Refused with every problem of the file."""
    raw = read_json(path)
    _refuse_broken_text(raw, path)
    recipe, problems = None, []
    try:
        recipe = Recipe.model_validate(raw)
    except ValidationError as error:
        problems = validation_problems(error, path)
    sources = raw.get("sources") if isinstance(raw.get("sources"), dict) else {}
    assert isinstance(sources, dict)
    problems += [f"{path}: {problem}" for problem in _piece_problems(raw, list(sources))]
    folders: dict[str, Path] = {}
    for name, source in sources.items():
        folder = source.get("folder") if isinstance(source, dict) else None
        if not isinstance(folder, str) or not folder:
            continue
        try:
            folders[name] = resolve_folder(folder, path)
            found = folders[name].is_dir()
        except (OSError, ValueError, RuntimeError) as error:  # too long, NUL, a loop of links, no such user
            problems.append(f"{path}: sources.{name}.folder: {folder!r} cannot be a folder ({error})")
            continue
        if not found:
            problems.append(
                f"{path}: sources.{name}.folder: {folder!r} is not a folder (looked at {folders[name]}); "
                "relative folders are looked up beside the recipe, then from the current folder and work_root"
            )
    for name in sorted(set(sources) & set(RESERVED_NAMES)):
        problems.append(f"{path}: sources.{name}: this name is taken by a validation average; choose another")
    if problems or recipe is None:
        raise Refused(problems)
    absolute = {
        name: source.model_copy(update={"folder": str(folders[name])})
        for name, source in recipe.sources.items()
    }
    return recipe.model_copy(update={"sources": absolute})


def _refuse_broken_text(raw: dict[str, Any], path: Path) -> None:
    """Half a surrogate pair, which JSON can escape, is no text: it could be neither hashed nor written."""
    try:
        json.dumps(raw, ensure_ascii=False).encode("utf-8")
    except UnicodeEncodeError as error:
        raise Refused(
            f"{path}: {error.object[error.start : error.end]!r} is half a character; write it whole"
        ) from None


def resolve_folder(folder: str, recipe_path: Path) -> Path:
    """Absolute path of a source's folder."""
    beside = recipe_path.resolve().parent / Path(folder).expanduser()
    return (beside if beside.is_dir() else host.resolve(folder)).resolve()


def dump_recipe(recipe: Recipe) -> dict[str, Any]:
    """The recipe as JSON; written into the data line with its absolute folders."""
    value = recipe.model_dump(mode="json", exclude_none=True)
    for source in value["sources"].values():
        if isinstance(source["stratum"], int):
            source["stratum"] = {"level": source["stratum"]}
    return dict(json.loads(json.dumps(value)))


def _piece_problems(raw: dict[str, Any], names: list[str]) -> list[str]:
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
            exact = {name: _share(value) for name, value in shares.items()}
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
