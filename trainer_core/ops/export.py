"""`nstrain export`: a checkpoint of a line as a folder in the Hugging Face layout. Needs no transformers."""

from __future__ import annotations

from dataclasses import dataclass
from importlib.metadata import version
from pathlib import Path
from typing import Any

from trainer_core.data.sources import load_data_line
from trainer_core.data.tokens.encode import read_tokenizer
from trainer_core.errors import Refused
from trainer_core.export.checkpoint import OpenCheckpoint, open_checkpoint
from trainer_core.export.folder import Folder, new_folder, refuse_taken
from trainer_core.export.forms import Form, form_of
from trainer_core.export.record import ExportRecord
from trainer_core.export.tokenizer_files import tokenizer_files
from trainer_core.export.weights import SHARD_BYTES, Tensor32, write_weights
from trainer_core.line.paths import EXPORT_RECORD, LinePaths


@dataclass(frozen=True, kw_only=True)
class Exported:
    """What was written."""

    out: Path
    """The folder."""
    record: ExportRecord
    """What it is, as nstrain.json in it says."""
    files: int
    """Files in it."""
    bytes: int
    """Their size."""


def export_line(
    line: Path, out: Path, *, at: int | None = None, ema: bool = False, shard_bytes: int = SHARD_BYTES
) -> Exported:
    """Export the checkpoint after update `at`, or the newest; with `ema` its moving average.

    The line may train on meanwhile. `out` appears whole or not at all. Raises Refused and DiskFull.
    """
    refuse_taken(out)
    paths = LinePaths(line)
    with open_checkpoint(paths, at=at, ema=ema) as checkpoint:
        _refuse_among(out, paths.checkpoints, checkpoint.data)
        form = form_of(checkpoint.model.family, checkpoint.built)
        data = load_data_line(checkpoint.data)
        tokenizer = tokenizer_files(
            read_tokenizer(data.tokenizer), eos_id=data.eos_id, longest_row=form.longest_row
        )
        with new_folder(out) as folder:
            write_weights(folder, checkpoint.weights, _tensors(checkpoint, form), limit=shard_bytes)
            for name, text in form.code.items():
                folder.write(name, [text.encode("utf-8")])
            written = {**_settings(form, checkpoint, data.eos_id), **tokenizer}
            for name, value in written.items():
                folder.write_json(name, value)
            record = _record(paths, checkpoint, folder, data.eos_id, ema=ema)
            folder.write_json(EXPORT_RECORD, record.to_json())
            sizes = [int(file["bytes"]) for file in folder.files.values()]
    return Exported(out=out, record=record, files=len(sizes), bytes=sum(sizes))


def _refuse_among(out: Path, *folders: Path) -> None:
    """Refuse a place among files that nstrain itself looks through, renames and removes."""
    place = out.resolve()
    for folder in map(Path.resolve, folders):
        if folder == place or folder in place.parents:
            raise Refused(f"{out}: {folder} is for nstrain's own files; name a folder elsewhere")


def _tensors(checkpoint: OpenCheckpoint, form: Form) -> list[Tensor32]:
    shapes = {name: tuple(param.shape) for name, param in checkpoint.built.named_parameters()}
    return [Tensor32(name=theirs, source=ours, shape=shapes[ours]) for ours, theirs in form.names.items()]


def _settings(form: Form, checkpoint: OpenCheckpoint, eos_id: int) -> dict[str, Any]:
    """config.json and generation_config.json."""
    ends = {"bos_token_id": eos_id, "eos_token_id": eos_id}
    return {
        "config.json": {
            **form.config,
            **ends,
            "dtype": "float32",
            "tie_word_embeddings": True,
            "vocab_size": checkpoint.model.vocab_size,
        },
        "generation_config.json": {**ends, "pad_token_id": eos_id},
    }


def _record(
    paths: LinePaths, checkpoint: OpenCheckpoint, folder: Folder, eos_id: int, *, ema: bool
) -> ExportRecord:
    return ExportRecord(
        line=paths.name,
        update=checkpoint.update,
        tokens=checkpoint.tokens,
        ema=ema,
        checkpoint=checkpoint.digest,
        model=checkpoint.model,
        eos_id=eos_id,
        nstrain=version("nstrain"),
        files=dict(folder.files),
    )
