"""Where a model to generate with comes from: a checkpoint of a line, or what `nstrain export` wrote."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open
from torch import Tensor

from trainer_core.data.sources import load_data_line
from trainer_core.data.tokens.encode import read_tokenizer
from trainer_core.errors import Refused
from trainer_core.export.checkpoint import open_checkpoint
from trainer_core.export.forms import form_of
from trainer_core.export.record import RECORD, read_export
from trainer_core.line.files import read_json
from trainer_core.line.paths import LinePaths
from trainer_core.models.base import Model


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
    if not (source / RECORD).exists():
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
    model = record.model.build("cpu")
    names = form_of(record.model.family, model).names
    where = _files(folder, names)
    lacking = [name for name in sorted({*where.values(), "tokenizer.json"}) if not (folder / name).exists()]
    if lacking:
        raise Refused([f"{folder / name}: missing; export the line again" for name in lacking])
    try:
        tokenizer = (folder / "tokenizer.json").read_bytes()
        opened = {name: safe_open(folder / name, framework="pt") for name in sorted(set(where.values()))}
        _load(model, lambda name: opened[where[name]].get_tensor(names[name]))  # type: ignore[no-untyped-call]
    except SafetensorError as error:
        raise Refused(f"{folder}: its weights cannot be read ({error}); export the line again") from error
    return Speaker(model=model, tokenizer_json=tokenizer, eos_id=record.eos_id)


def _files(folder: Path, names: Mapping[str, str]) -> dict[str, str]:
    """The file of every parameter."""
    index = folder / "model.safetensors.index.json"
    if not index.exists():
        return dict.fromkeys(names, "model.safetensors")
    places: dict[str, Any] = read_json(index)["weight_map"]
    return {ours: places[theirs] for ours, theirs in names.items()}


@torch.no_grad()
def _load(model: Model, read: Callable[[str], Tensor]) -> None:
    """Fill a model, one parameter at a time."""
    for name, param in model.named_parameters():
        param.copy_(read(name))
