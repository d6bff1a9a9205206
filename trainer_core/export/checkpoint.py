"""A checkpoint of a line opened for reading, beside a line that may train on and remove it meanwhile.

Its file is opened before it is verified and read through that descriptor to the end, so a removal cannot hurt
once it has begun. Takes no lock of the line.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import torch

from trainer_core.engine.layout import Layout
from trainer_core.errors import Refused
from trainer_core.export.flat_file import FlatFile
from trainer_core.host import cores
from trainer_core.line.checkpoints import MANIFEST, STATE, published, read_state, verify
from trainer_core.line.config import load_run
from trainer_core.line.files import sha256_file
from trainer_core.line.paths import LinePaths
from trainer_core.models.base import Model
from trainer_core.models.registry import build

Device = Literal["cpu", "meta"]
"""Where a model is built: with memory, or as shapes alone."""


@dataclass(frozen=True, kw_only=True)
class ModelFacts:
    """What a model is built from."""

    name: str
    """Preset that it was made from."""
    family: str
    """Its family."""
    vocab_size: int
    """Number of token ids."""
    config: Mapping[str, Any]
    """Its configuration, as its family defines it."""

    @classmethod
    def of(cls, value: Mapping[str, Any]) -> ModelFacts:
        """Out of the JSON object that `to_json` makes and run.json holds."""
        return cls(**{key: value[key] for key in ("name", "family", "vocab_size", "config")})

    def to_json(self) -> dict[str, Any]:
        """Plain values."""
        return {
            "name": self.name,
            "family": self.family,
            "vocab_size": self.vocab_size,
            "config": dict(self.config),
        }

    def build(self, device: Device) -> Model:
        """The model with first values, or on the meta device with shapes alone."""
        with torch.device(device):
            return build(self.family, self.config, self.vocab_size, 0)


@dataclass(frozen=True, kw_only=True)
class OpenCheckpoint:
    """A verified checkpoint."""

    path: Path
    """Where it was found."""
    update: int
    """Updates done."""
    tokens: int
    """Tokens trained."""
    state: Mapping[str, Any]
    """Its state.json."""
    digest: str
    """Hex sha256 of its manifest, which has the hashes of all of its files."""
    data: Path
    """The line's data line."""
    model: ModelFacts
    """The line's model at this checkpoint."""
    built: Model
    """That model, with shapes or first values alone."""
    weights: FlatFile
    """Its parameters, or their moving average."""


class _Gone(Exception):
    """The checkpoint was removed while it was being opened."""


@contextmanager
def open_checkpoint(
    paths: LinePaths, *, at: int | None = None, ema: bool = False, device: Device = "meta"
) -> Iterator[OpenCheckpoint]:
    """The checkpoint after update `at`, or the newest, its bytes verified; with `ema` its moving average.

    The model is built on `device`: on the meta device it takes no memory. Raises Refused when there
    is no checkpoint, when it is damaged, and when the line keeps no average.
    """
    data = Path(load_run(paths).data)
    opened = None
    while opened is None:
        path = _chosen(paths, at)
        try:
            opened = _open(path, data, ema=ema, device=device)
        except _Gone:  # a newer one superseded it; of a named one the next look says that it is gone
            continue
    with opened.weights:
        yield opened


def _chosen(paths: LinePaths, at: int | None) -> Path:
    """The folder of a checkpoint, damaged ones among them: no older one stands in for the newest."""
    found = dict(published(paths))
    if not found:
        raise Refused(
            f"{paths.checkpoints}: no complete checkpoint; the line writes its first one as it starts"
        )
    update = max(found) if at is None else at
    if update not in found:
        raise Refused(
            f"{paths.checkpoints}: no checkpoint of update {at}; there are those of "
            f"{', '.join(map(str, found))}"
        )
    return found[update]


def _open(path: Path, data: Path, *, ema: bool, device: Device) -> OpenCheckpoint:
    """Raises _Gone when the checkpoint's folder is no longer there."""
    try:
        return _read(path, data, "ema" if ema else "params", device)
    except (OSError, Refused) as error:
        if not path.exists():
            raise _Gone from error
        raise


def _read(path: Path, data: Path, tensor: str, device: Device) -> OpenCheckpoint:
    _sound(path, STATE)
    state = read_state(path)
    file = f"{tensor}.safetensors"
    if tensor == "ema" and state["run"].get("ema") is None:
        raise Refused(f"{path}: the line keeps no moving average (`ema` in run.json); leave out --ema")
    model = ModelFacts.of(state["run"]["model"])
    built = model.build(device)
    layout = Layout.build(built.param_groups(), built.layer_label)
    if layout.digest != state["layout_digest"]:
        raise Refused(
            f"{path}: made with another parameter layout (digest {state['layout_digest'][:16]}, "
            f"now {layout.digest[:16]}); use the nstrain version {state['versions'].get('nstrain')}"
        )
    try:
        weights = FlatFile(path / file, layout)
    except (OSError, Refused):
        _sound(path, file)
        raise
    try:
        digest = sha256_file(path / MANIFEST)
        _sound(path, file)
    except BaseException:
        weights.close()
        raise
    return OpenCheckpoint(
        path=path,
        update=int(state["update"]),
        tokens=int(state["tokens"]),
        state=state,
        digest=digest,
        data=data,
        model=model,
        built=built,
        weights=weights,
    )


def _sound(path: Path, file: str) -> None:
    """Compares a file of a checkpoint with its hashes. Raises Refused when it is not what was written."""
    if problems := verify(path, threads=cores(), only=(file,)):
        raise Refused(
            [
                *problems,
                f"{path}: damaged; `nstrain verify {path.parents[1]}` says more, --at takes another one",
            ]
        )
