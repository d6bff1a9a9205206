"""A line with a checkpoint that nobody trained: every parameter is a random number, and says which it is."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import torch

from tests.tools.real_line import Size, make_real_line
from trainer_core.engine.flat import FlatState, flat_state
from trainer_core.line.config import load_run
from trainer_core.line.paths import LinePaths
from trainer_core.models.base import Model
from trainer_core.models.registry import build
from trainer_core.train.checkpoint import write_checkpoint


def written_line(
    root: Path, model: str, *updates: int, ema: bool = False, settings: Sequence[str] = ()
) -> tuple[LinePaths, Model]:
    """A line of this model with a checkpoint at each update, and the model as the last one has it."""
    root.mkdir(parents=True, exist_ok=True)
    average = ('ema={"horizon_tokens":960,"from_tokens":0}',) if ema else ()
    paths = make_real_line(root, size=Size(model=model), settings=(*average, *settings))
    run = load_run(paths)
    trained = build(run.model.family, run.model.config, run.model.vocab_size, 0)
    state = flat_state(trained, ema=ema)
    for update in updates:
        scramble(state, update)
        write(paths, state, update)
    return paths, trained


@torch.no_grad()
def scramble(state: FlatState, seed: int) -> None:
    """New parameters near their first values, and an average that is not they."""
    generator = torch.Generator().manual_seed(seed)
    for slot in state.layout.slots:
        part = state.P[slot.offset : slot.offset + slot.numel]
        part.add_(torch.randn(part.shape, generator=generator), alpha=0.05)
    if state.E is not None:
        state.E.copy_(state.P).mul_(0.5)


def write(paths: LinePaths, state: FlatState, update: int) -> Path:
    """A checkpoint of the state, as the trainer writes it."""
    run = load_run(paths).dump()
    record = {
        "format": "checkpoint-state/1",
        "update": update,
        "tokens": 96 * update,
        "position": {"cycle": 0, "part": 0, "row": 0},
        "kept": None,
        "layout_digest": state.layout.digest,
        "run": run,
        "versions": {"nstrain": "0"},
    }
    tensors = {name: [tensor] for name, tensor in state.state_tensors().items()}
    return write_checkpoint(paths, update, tensors, record)
