"""nstrain.json of an exported folder: which checkpoint it is, and what nstrain needs to use it again."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from trainer_core.errors import Refused
from trainer_core.export.checkpoint import ModelFacts
from trainer_core.line.files import read_json, sha256_file
from trainer_core.line.paths import EXPORT_RECORD

FORMAT = "export/1"


@dataclass(frozen=True, kw_only=True)
class ExportRecord:
    """What a folder was exported from."""

    line: str
    """Name of the line."""
    update: int
    """Updates done at the checkpoint."""
    tokens: int
    """Tokens trained."""
    ema: bool
    """Whether the weights are the moving average."""
    checkpoint: str
    """Hex sha256 of the checkpoint's manifest."""
    model: ModelFacts
    """What the model is built from."""
    eos_id: int
    """End-of-document id of the line's data."""
    nstrain: str
    """Version that exported."""
    files: Mapping[str, Mapping[str, Any]]
    """Size and sha256 of every other file of the folder."""

    def to_json(self) -> dict[str, Any]:
        """The content of nstrain.json."""
        return {"format": FORMAT, **vars(self), "model": self.model.to_json()}


def read_export(folder: Path) -> ExportRecord:
    """The record of an exported folder. Raises Refused when it is damaged or of another version."""
    path = folder / EXPORT_RECORD
    value = read_json(path)
    if value.pop("format", None) != FORMAT:
        raise Refused(f"{path}: expected the format {FORMAT!r}; export the line again")
    try:
        record = ExportRecord(**{**value, "model": ModelFacts.of(value["model"])})
        problems = _problems(record)
    except (TypeError, KeyError, AttributeError) as error:
        problems = [str(error)]
    if problems:
        raise Refused(
            f"{path}: damaged or edited by hand ({', '.join(problems)}); export the line again"
        ) from None
    return record


def _problems(record: ExportRecord) -> list[str]:
    """What of a record `nstrain export` would not have written, of that which is used again."""
    model, end = record.model, record.eos_id
    kinds = {
        "model.name": (model.name, str),
        "model.family": (model.family, str),
        "model.config": (model.config, dict),
        "model.vocab_size": (model.vocab_size, int),
        "eos_id": (end, int),
        **{f"files.{name}.bytes": (file["bytes"], int) for name, file in record.files.items()},
        **{f"files.{name}.sha256": (file["sha256"], str) for name, file in record.files.items()},
    }
    found = [f"{key} is {value!r}" for key, (value, kind) in kinds.items() if type(value) is not kind]
    if not found and not 0 <= end < model.vocab_size:
        found.append(f"eos_id {end} is none of {model.vocab_size} tokens")
    return found


def changed_files(folder: Path, record: ExportRecord, names: Sequence[str]) -> list[str]:
    """What is wrong with files of these names that were exported: missing, or of other bytes."""
    found = []
    for name in names:
        path, was = folder / name, record.files[name]
        if not path.exists():
            found.append(f"{path}: missing; export the line again")
        elif not path.is_file() or path.stat().st_size != was["bytes"] or sha256_file(path) != was["sha256"]:
            found.append(f"{path}: not the bytes that were exported; export the line again")
    return found
