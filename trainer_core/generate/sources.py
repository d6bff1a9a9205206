"""Where a model to generate with comes from: a checkpoint of a line, or what `nstrain export` wrote."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from safetensors import safe_open
from torch import Tensor

from trainer_core.data.sources import load_data_line
from trainer_core.data.tokens.encode import read_tokenizer
from trainer_core.errors import Refused
from trainer_core.export.checkpoint import open_checkpoint
from trainer_core.export.forms import form_of
from trainer_core.export.record import changed_files, read_export
from trainer_core.line.no_line import require_line
from trainer_core.line.paths import EXPORT_RECORD, LinePaths
from trainer_core.models.base import Model

TOKENIZER = "tokenizer.json"
INDEX = "model.safetensors.index.json"


@dataclass(frozen=True, kw_only=True)
class Speaker:
    """A model with its tokenizer."""

    model: Model
    """The model on the CPU, with trained weights."""
    tokenizer_json: bytes
    """Content of its tokenizer.json."""
    eos_id: int
    """End-of-document id."""


def load_speaker(source: Path, *, at: int | None = None, ema: bool = False) -> Speaker:
    """The model of a line, or of an exported folder, which is one checkpoint and takes neither option.

    Raises Refused when there is none, or when it is damaged.
    """
    if not (source / EXPORT_RECORD).exists():
        require_line(source, exported_too=True)
        return _of_line(LinePaths(source), at=at, ema=ema)
    if ema or at is not None:
        raise Refused(f"{source}: an exported folder is one checkpoint; --ema and --at are for lines")
    return _of_export(source)


def _of_line(paths: LinePaths, *, at: int | None, ema: bool) -> Speaker:
    with open_checkpoint(paths, at=at, ema=ema, device="cpu") as checkpoint:
        data = load_data_line(checkpoint.data)
        tokenizer = read_tokenizer(data.tokenizer)
        model = checkpoint.built
        _load(model, checkpoint.weights.read)
    return Speaker(model=model, tokenizer_json=tokenizer, eos_id=data.eos_id)


def _of_export(folder: Path) -> Speaker:
    record = read_export(folder)
    files = [name for name in record.files if name.endswith(".safetensors")]
    used = [name for name in record.files if name in (*files, TOKENIZER, INDEX)]
    if TOKENIZER not in used:
        raise Refused(f"{folder / EXPORT_RECORD}: names no {TOKENIZER}; export the line again")
    if problems := changed_files(folder, record, used):
        raise Refused(problems)
    opened: list[Any] = [safe_open(folder / name, framework="pt") for name in files]
    where = {name: file for file in opened for name in file.keys()}  # noqa: SIM118 (no mapping)
    shapes = record.model.build("meta")
    names = form_of(record.model.family, shapes).names
    expected = {names[ours]: list(param.shape) for ours, param in shapes.named_parameters()}
    if {name: file.get_slice(name).get_shape() for name, file in where.items()} != expected:
        raise Refused(
            f"{folder}: holds not the weights of the model in {EXPORT_RECORD}; export the line again"
        )
    model = record.model.build("cpu")
    _load(model, lambda name: where[names[name]].get_tensor(names[name]))
    return Speaker(model=model, tokenizer_json=(folder / TOKENIZER).read_bytes(), eos_id=record.eos_id)


@torch.no_grad()
def _load(model: Model, read: Callable[[str], Tensor]) -> None:
    """Fill a model, one parameter at a time."""
    for name, param in model.named_parameters():
        param.copy_(read(name))
