"""recipe.json as people write it: which files are sources and what share of the tokens each has.

Owns the schema, its strict reading with every problem reported at once, and its JSON form. Never looks into a
folder beyond "does it exist", and asks no hub.

Shares are decimals (0.25) or fractions written as text ("1/3"); the shares of a piece must sum to 1 within
1e-9 and are kept as exact integers with their sum as denominator ("0.1" is 1/10, never the nearest binary
number), because the order of samples is integer arithmetic.
"""

from __future__ import annotations

import json
from fractions import Fraction
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, PlainSerializer, ValidationError

import trainer_core
from trainer_core import host
from trainer_core.complaints import validation_problems
from trainer_core.data.recipe import values
from trainer_core.data.recipe.checks import (
    identity_of,
    identity_problems,
    integer_shares,
    piece_problems,
    source_problems,
)
from trainer_core.data.sources import Piece, TextRule
from trainer_core.errors import Refused
from trainer_core.line.files import read_json

__all__ = [
    "Recipe",
    "SourceRecipe",
    "dump_recipe",
    "integer_shares",
    "load_recipe",
    "read_recipe",
    "resolve_folder",
]

NAME_PATTERN = r"^[A-Za-z0-9][A-Za-z0-9_.-]{0,63}$"
SEED_LIMIT = 1 << 63
MIN_AGE_HOURS = 24.0
DEFAULT_RECIPE = Path(trainer_core.__file__).resolve().parents[1] / "examples" / "minicpm-2b" / "recipe.json"
"""The open MiniCPM corpora; what `data init` takes when no recipe is named."""


class _Strict(BaseModel):
    model_config = ConfigDict(extra="forbid", strict=True, frozen=True, arbitrary_types_allowed=True)


class SourceRecipe(_Strict):
    """One source: files of a folder, or of a dataset repository on the hub."""

    folder: Annotated[str, Field(min_length=1)] | None = None
    """Folder of the files; relative to recipe.json, to the current folder, or to work_root, in this order."""
    repo: Annotated[str, BeforeValidator(values.repository)] | None = None
    """Dataset repository, "owner/name", instead of a folder."""
    revision: Annotated[str, Field(min_length=1)] | None = None
    """Branch, tag or commit of the repository; `main` when left out. Its commit is pinned by `data init`."""
    min_age_hours: Annotated[float, Field(ge=0)] | None = None
    """Least age of the revision's last commit (no half-uploaded corpus is pinned); 24 when left out."""
    glob: Annotated[str, BeforeValidator(values.glob)] = "**/*"
    """Pattern of the files inside the folder or repository."""
    id: Annotated[str, Field(min_length=1)] | None = None
    """Name of the corpus for the held-out decision; else the folder's name, or repository and pattern."""
    stratum: Annotated[Any, BeforeValidator(values.stratum_rule)] = "none"
    """`none`, `file`, or `{"level": k}`: the k-th directory below the folder names the stratum."""
    text: Annotated[TextRule, BeforeValidator(values.text_rule), PlainSerializer(TextRule.to_json)] = (
        TextRule()
    )
    """Where a document's text is: `auto`, `column`, `messages` or `list`."""
    markers: list[Annotated[str, Field(min_length=1)]] = Field(default_factory=list)
    """Added tokens that this source's text may use as control tokens."""
    heldout: Annotated[float, Field(ge=0, le=0.5)] = 0.01
    """Fraction of the documents kept for validation."""

    @property
    def identity(self) -> str:
        """Key of the held-out decision; never the nickname."""
        return identity_of(self.id, self.repo, self.glob, self.folder)

    @property
    def youngest(self) -> float:
        """Least age of the repository's last commit in hours."""
        return MIN_AGE_HOURS if self.min_age_hours is None else self.min_age_hours


class PieceRecipe(_Strict):
    """Shares from one cycle on."""

    from_cycle: Annotated[int, Field(ge=0, lt=SEED_LIMIT)] = 0
    """First cycle with these shares."""
    shares: dict[str, Annotated[Fraction, BeforeValidator(values.share), PlainSerializer(values.share_json)]]
    """Share of the tokens per source, 0.25 or "1/4"; a source that is not named has none."""


class Recipe(_Strict):
    """recipe.json."""

    format: Literal["recipe/1"] = "recipe/1"
    """Format of the file."""
    sources: Annotated[
        dict[Annotated[str, Field(pattern=NAME_PATTERN)], SourceRecipe],
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
    found = source_problems(sources) + piece_problems(raw, list(sources))
    folders: dict[str, Path] = {}
    for name, source in sources.items():
        folder = source.get("folder") if isinstance(source, dict) else None
        if isinstance(folder, str) and folder:
            found += _find_folder(name, folder, path, folders)
    found += identity_problems(sources, folders)
    problems += [f"{path}: {problem}" for problem in found]
    if problems or recipe is None:
        raise Refused(problems)
    absolute = {
        name: source.model_copy(update={"folder": str(folders[name])}) if source.folder else source
        for name, source in recipe.sources.items()
    }
    return recipe.model_copy(update={"sources": absolute})


def read_recipe(path: Path) -> Recipe:
    """Read a recipe on record, whose folders need not be there. Raises Refused with its problems."""
    raw = read_json(path)
    try:
        recipe = Recipe.model_validate(raw)
    except ValidationError as error:
        raise Refused(validation_problems(error, path)) from None
    found = source_problems(raw["sources"]) + piece_problems(raw, list(raw["sources"]))
    if found:
        raise Refused([f"{path}: {problem}" for problem in found])
    return recipe


def _find_folder(name: str, folder: str, path: Path, folders: dict[str, Path]) -> list[str]:
    """Note a source's absolute folder, or say why it is none."""
    try:
        folders[name] = resolve_folder(folder, path)
        if folders[name].is_dir():
            return []
    except (OSError, ValueError, RuntimeError) as error:  # too long, NUL, a loop of links, no such user
        return [f"sources.{name}.folder: {folder!r} cannot be a folder ({error})"]
    return [
        f"sources.{name}.folder: {folder!r} is not a folder (looked at {folders[name]}); "
        "relative folders are looked up beside the recipe, then from the current folder and work_root"
    ]


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
