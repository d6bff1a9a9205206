"""The shapes of a line as the engine meets them, traced without a device: what keeps one from being captured,
and how much memory each takes.

One trace serves `nstrain check`, which shows it, and `nstrain tune`, which leaves out what cannot fit.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch

from trainer_core.engine.assemble import SHADOWS, line_device
from trainer_core.engine.capture_check import check_capture
from trainer_core.line.config import RunConfig
from trainer_core.measure.candidates import Candidate, rows_of_updates
from trainer_core.models.base import Model
from trainer_core.models.registry import build

_OF_THE_MODEL = ("micro", "evaluate")
"""Parts whose memory depends on the shape. Norm and update work in place on a real device; on the meta device
they are traced by their reference, which makes tensors on the way."""


@dataclass(frozen=True, kw_only=True)
class TracedShape:
    """What the trace of a shape says."""

    shape: Candidate
    """The shape."""
    problems: tuple[str, ...]
    """What keeps it from being captured, a line each; empty when nothing does."""
    state_bytes: int
    """Flat buffers of the model."""
    activation_bytes: int
    """Largest memory of a micro-batch or of an evaluation beside them."""

    @property
    def peak_bytes(self) -> int:
        """State and activations."""
        return self.state_bytes + self.activation_bytes


def line_shapes(config: RunConfig) -> list[Candidate]:
    """The shapes of run.json, in its order."""
    return [Candidate(length=shape.length, rows=shape.rows, ac=shape.ac) for shape in config.lengths]


def micro_rows(config: RunConfig, shape: Candidate) -> tuple[int, ...]:
    """Rows of the micro-batches that the line's updates are cut into, largest first: also of short last ones.

    An update that is cut short by the end of the schedule may have another short one, which is no larger.
    """
    counts = rows_of_updates(config.spans(), shape.length)
    found = {min(shape.rows, rows) for rows in counts} | {rows % shape.rows for rows in counts}
    return tuple(sorted(found - {0}, reverse=True))


def evaluation_rows(config: RunConfig, shape: Candidate) -> int:
    """Rows of the largest evaluation: a validation reads no more rows of a stratum than there are."""
    return min(shape.rows, config.validation.rows_per_stratum)


def trace(config: RunConfig, shape: Candidate) -> TracedShape:
    """Traces every part of the step in a shape of the line; takes neither a device nor memory.

    Raises Refused when run.json describes no model of its family.
    """
    model = _on_meta(config)

    def model_loss(ids: torch.Tensor, targets: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        return model.loss(ids, targets, shape.ac)

    report = check_capture(
        model,
        model_loss,
        micro=[(rows, shape.length) for rows in micro_rows(config, shape)],
        evaluations=[(evaluation_rows(config, shape), shape.length)],
        ema=config.ema is not None,
        shadow=SHADOWS[config.precision],
        device=line_device().type,
    )
    return TracedShape(
        shape=shape,
        problems=tuple(str(problem) for problem in report.problems),
        state_bytes=report.state_bytes,
        activation_bytes=max(
            part.peak_bytes for part in report.parts if part.part.split(" ")[0] in _OF_THE_MODEL
        ),
    )


def capture_problems(traced: Sequence[TracedShape]) -> list[str]:
    """What keeps shapes from being captured, each line naming its shape."""
    return [f"{shape.shape}: {problem}" for shape in traced for problem in shape.problems]


def _on_meta(config: RunConfig) -> Model:
    with torch.device("meta"):
        return build(config.model.family, config.model.config, config.model.vocab_size, config.seed)
