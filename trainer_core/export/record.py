"""nstrain.json of an exported folder: which checkpoint it is, and what nstrain needs to use it again."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from trainer_core.errors import Refused
from trainer_core.export.checkpoint import ModelFacts
from trainer_core.line.files import read_json

RECORD = "nstrain.json"
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
    path = folder / RECORD
    value = read_json(path)
    if value.pop("format", None) != FORMAT:
        raise Refused(f"{path}: expected the format {FORMAT!r}; export the line again")
    try:
        return ExportRecord(**{**value, "model": ModelFacts.of(value["model"])})
    except (TypeError, KeyError) as error:
        raise Refused(f"{path}: damaged or edited by hand ({error}); export the line again") from error
