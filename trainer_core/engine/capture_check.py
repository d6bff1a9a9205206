"""Whether a model can be trained with captured graphs, and with how much memory, asked without a GPU."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass

import torch

from trainer_core.engine.backends.guard import Problem
from trainer_core.engine.backends.meta_check import MetaCheck, PartReport
from trainer_core.engine.flat import Trainable, flat_state
from trainer_core.engine.parts import ModelLoss, Shape
from trainer_core.engine.step import Step
from trainer_core.kernels.adamw import AdamWUpdate


@dataclass(frozen=True, kw_only=True)
class CaptureReport:
    """The parts of a step together."""

    parts: tuple[PartReport, ...]
    """Each part, in the order of capture."""
    state_bytes: int
    """Flat buffers, which every part shares."""

    @property
    def problems(self) -> tuple[Problem, ...]:
        """Everything that keeps the step from being captured."""
        return tuple(problem for part in self.parts for problem in part.problems)

    @property
    def peak_bytes(self) -> int:
        """State, and the pool: graphs share it, so it holds what the largest part needs."""
        return self.state_bytes + max(part.peak_bytes for part in self.parts)

    @property
    def num_ops(self) -> int:
        """Operators of all parts."""
        return sum(part.num_ops for part in self.parts)

    @property
    def fingerprint(self) -> str:
        """Digest of all parts: equal digests do the same operations on the same shapes."""
        return hashlib.sha256("".join(part.fingerprint for part in self.parts).encode()).hexdigest()


def check_capture(
    model: Trainable,
    model_loss: ModelLoss,
    *,
    micro: Sequence[Shape],
    evaluations: Sequence[Shape] = (),
    optimizer: AdamWUpdate | None = None,
    ema: bool = False,
    shadow: torch.dtype | None = None,
    device: str = "cpu",
) -> CaptureReport:
    """Traces every part of the step of a model that was built under torch.device("meta").

    Shapes are (rows, row length); `model_loss` is what a Step over the model would get, `ema` and `shadow`
    what its flat state has, `device` the kind of device that it would train on.
    """
    dtype = next(iter(model.parameters())).dtype  # type: ignore[attr-defined]
    state = flat_state(model, "meta", dtype, ema=ema, shadow=shadow)
    backend = MetaCheck(state, device)
    step = Step(model_loss=model_loss, state=state, backend=backend, optimizer=optimizer)
    step.prepare(micro, evaluations)
    return CaptureReport(
        parts=tuple(backend.reports.values()),
        state_bytes=sum(buffer.nbytes for buffer in state.buffers()),
    )
