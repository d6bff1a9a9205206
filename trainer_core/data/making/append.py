"""`data append`: shares from a later cycle on, with new sources if need be. What is past never changes.

The recipe handed in is the whole recipe, grown at its end: its pieces begin with those that the data line
has, and every source of the line stands in it as it was. New sources are pinned and measured as `data init`
does. data.json is replaced last, by one rename: until then the line is what it was, and an interrupted append
is run again.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from trainer_core.data.heldout import validation
from trainer_core.data.heldout.streams import record_path
from trainer_core.data.hub.waiting import Patience
from trainer_core.data.making.calibration import calibration_to_json, load_calibration
from trainer_core.data.making.init_report import InitReport
from trainer_core.data.making.initialize import clear_unfinished, pin_sources, start_pinning
from trainer_core.data.plan.state_file import current_state
from trainer_core.data.recipe.schema import (
    Recipe,
    SourceRecipe,
    dump_recipe,
    integer_shares,
    load_recipe,
)
from trainer_core.data.sources import DataLine, Piece, SourceSpec, load_data_line
from trainer_core.data.tokens.encode import Encoder, check_library, read_tokenizer, tokenizer_facts
from trainer_core.errors import Refused
from trainer_core.host import load_host
from trainer_core.line.files import write_json
from trainer_core.line.lock import FileLock
from trainer_core.line.paths import DataPaths


@dataclass(frozen=True, kw_only=True)
class Appended:
    """What an append added."""

    sources: tuple[str, ...]
    """New sources."""
    pieces: tuple[Piece, ...]
    """New pieces."""
    report: InitReport
    """The data line as it is now."""

    def to_json(self) -> dict[str, Any]:
        """For `--json`."""
        return {
            "sources": list(self.sources),
            "pieces": [{"from_cycle": piece.from_cycle, "shares": piece.shares} for piece in self.pieces],
            "line": self.report.to_json(),
        }

    def __str__(self) -> str:
        if not self.pieces:
            return f"{self.report.work}: the data line has all of this recipe already; nothing is changed"
        starts = ", ".join(str(piece.from_cycle) for piece in self.pieces)
        new = f", new sources {', '.join(self.sources)}" if self.sources else ""
        return f"appended: shares from cycle {starts} on{new}\n{self.report}"


def append_recipe(
    work: Path,
    recipe: Path,
    *,
    progress: Callable[[str], None] = lambda message: None,
    patience: Patience = Patience(),  # noqa: B008 (frozen)
) -> Appended:
    """Grow a data line by a recipe. Raises Refused with every edit of what it has, old and new."""
    paths = DataPaths(Path(work))
    with FileLock.acquire_waiting(paths.lock, role="append"):
        line = load_data_line(paths.root)
        chosen = load_recipe(recipe)
        tokenizer = _tokenizer(line)
        planned = current_state(paths, line=line).next_cycle
        problems = [f"{recipe}: {problem}" for problem in edits(line, chosen, planned)]
        problems += _changed_folders(line)
        if problems:
            raise Refused(problems)
        new = {name: source for name, source in chosen.sources.items() if name not in _names(line)}
        calibration = load_calibration(paths.root)
        pinning = start_pinning(
            paths,
            tokenizer,
            tokenizer_facts(Path(line.tokenizer.path)).added,
            eos_id=line.eos_id,
            seed=line.seed,
            known=list(calibration.values()),
            progress=progress,
            patience=patience,
        )
        pinned = pin_sources(pinning, new, known=line.sources)
        calibration |= {source.spec.name: source.calibration for source in pinned}
        grown = replace(
            line,
            sources=(*line.sources, *(source.spec for source in pinned)),
            pieces=_pieces(line, chosen),
        )
        added = grown.pieces[len(line.pieces) :]
        if added:
            _write(paths, grown, chosen, recipe, calibration_to_json(calibration))
        # What lies beside it was downloaded ahead for the line's next cycle.
        clear_unfinished(paths, *(paths.incoming / name for name in new))
        report = InitReport(
            work=str(paths.root),
            line=grown,
            eos=Encoder(tokenizer, eos_id=line.eos_id).eos,
            calibration=calibration,
            taken_over={source.spec.name: source.taken_over for source in pinned},
            workers=load_host().limits.tokenize,
        )
        return Appended(sources=tuple(new), pieces=added, report=report)


def edits(line: DataLine, recipe: Recipe, planned: int) -> list[str]:
    """What a recipe would change of a data line of which `planned` cycles are planned, old and new."""
    problems = []
    if recipe.seed != line.seed:
        problems.append(f"seed: is {recipe.seed}, the data line was made with {line.seed}; {_KEEP}")
    for spec in line.sources:
        source = recipe.sources.get(spec.name)
        if source is None:
            problems.append(
                f"sources.{spec.name}: is missing; the data line has it: put it back, a share of 0 ends it"
            )
        else:
            problems += [
                f"sources.{spec.name}.{key}: is {new!r}, the data line has {old!r}; {_KEEP_SOURCE}"
                for key, old, new in _differences(spec, source)
            ]
    return problems + _piece_edits(line, recipe, planned)


_KEEP = "put it back, or make another data line"
_KEEP_SOURCE = "put it back, or add a source of another name"


def _piece_edits(line: DataLine, recipe: Recipe, planned: int) -> list[str]:
    problems = []
    pieces = _pieces(line, recipe)
    for index, old in enumerate(line.pieces):
        new = pieces[index] if index < len(pieces) else None
        if new != old:
            shown = "missing" if new is None else _said(new)
            problems.append(
                f"pieces.{index}: is {shown}, the data line has {_said(old)}; "
                "put it back, and append a piece with the new shares"
            )
    for index, piece in enumerate(pieces[len(line.pieces) :], start=len(line.pieces)):
        if piece.from_cycle < planned:
            problems.append(
                f"pieces.{index}.from_cycle: is {piece.from_cycle}, and cycles up to {planned - 1} are "
                f"planned; begin at cycle {planned} or later"
            )
    return problems


def _differences(spec: SourceSpec, source: SourceRecipe) -> list[tuple[str, Any, Any]]:
    """(key, old, new) of what a source must keep; `auto` means the text rule that was found."""
    text = spec.text if source.text.kind == "auto" else source.text
    revision = (source.revision or "main") if source.repo else None
    pairs: list[tuple[str, Any, Any]] = [
        ("folder", spec.folder, source.folder),
        ("repo", spec.repo, source.repo),
        ("revision", spec.revision, revision),
        ("glob", spec.glob, source.glob),
        ("stratum", spec.stratum_rule, source.stratum),
        ("text", spec.text.to_json(), text.to_json()),
        ("markers", list(spec.markers), list(source.markers)),
        ("heldout", spec.heldout, source.heldout),
        ("id", spec.identity, source.identity),
    ]
    return [(key, old, new) for key, old, new in pairs if old != new]


def _pieces(line: DataLine, recipe: Recipe) -> tuple[Piece, ...]:
    """The recipe's pieces with the data line's sources first, in their order, and new ones after them."""
    names = [*_names(line), *(name for name in recipe.sources if name not in _names(line))]
    return tuple(
        Piece(from_cycle=piece.from_cycle, shares=integer_shares(piece.shares, names))
        for piece in recipe.pieces
    )


def _names(line: DataLine) -> list[str]:
    return [spec.name for spec in line.sources]


def _said(piece: Piece) -> str:
    shares = ", ".join(f"{name} {share}/{piece.denominator}" for name, share in piece.shares.items())
    return f"from cycle {piece.from_cycle} on {shares}"


def _tokenizer(line: DataLine) -> bytes:
    check_library(line.tokenizer)
    return read_tokenizer(line.tokenizer)


def _changed_folders(line: DataLine) -> list[str]:
    """Pinned files of folders that are gone or have another size; hashes are compared when they are read."""
    problems = []
    for spec in line.sources:
        for file in spec.files if spec.folder is not None else ():
            path = Path(str(spec.folder)) / file.path
            size = path.stat().st_size if path.is_file() else None
            if size != file.size:
                found = "is gone" if size is None else f"has {size} bytes"
                problems.append(f"{path}: {found}, {file.size} were pinned; put the pinned file back")
    return problems


def _write(
    paths: DataPaths, grown: DataLine, recipe: Recipe, given: Path, calibration: dict[str, Any]
) -> None:
    """The records in the order in which a kill between any two leaves the line as it was; data.json last."""
    write_json(paths.calibration, calibration)
    if record_path(paths).exists():
        validation.extend_heldout(paths, grown)
    if given.resolve() != paths.recipe.resolve():
        write_json(paths.recipe, dump_recipe(recipe))
    write_json(paths.data, grown.to_json())
