"""One optimizer update in three recorded parts: micro-batch, norm, update; and forward-only evaluation.

Owns the static inputs, the scalar block and the accumulators that the parts read and write. Every number
that changes from update to update lives in the scalar block on the device, so a replay sees new values. The
loss and gradient of an update are sums over all its targets divided by their number, however it is split.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass
from functools import partial

import numpy as np
import torch
from torch import Tensor

from trainer_core.engine.backends.protocol import GraphBackend
from trainer_core.engine.flat import FlatState
from trainer_core.kernels import adamw, grad_norm
from trainer_core.kernels.cross_entropy import IGNORE_INDEX

Rows = np.ndarray[tuple[int, int], np.dtype[np.int64]] | Tensor
"""Token ids [R, L + 1], int64, on the host: each row holds its inputs and, one further, its targets.

IGNORE_INDEX as a target does not count; as an input it is read as token 0.
"""

ModelLoss = Callable[[Tensor, Tensor], tuple[Tensor, Tensor]]
"""Inputs and targets [R, L] to the loss summed over the targets, and their number."""

_LOSS_SCALE, _CLIP, _BETA1, _BETA2, _EPS, _GROUPS = range(6)


@dataclass(frozen=True, kw_only=True)
class UpdateScalars:
    """The numbers of one update that the schedule and the configuration give."""

    lr: float
    """Learning rate before a group's factor."""
    weight_decay: float
    """Decoupled weight decay of the groups that decay."""
    clip: float = 1.0
    """Largest gradient norm; inf = no clipping."""
    beta1: float = 0.9
    """Decay of the first moment."""
    beta2: float = 0.95
    """Decay of the second moment."""
    eps: float = 1e-8
    """Added to the root of the second moment."""


@dataclass(frozen=True, kw_only=True)
class UpdateResult:
    """What happened in one update, as plain numbers."""

    loss: float
    """Mean cross-entropy over the update's targets, in nats, before the update."""
    num_targets: int
    """Targets of the update."""
    grad_norm: float
    """Global gradient norm before clipping; not finite when the update was skipped."""
    norms: dict[str, float]
    """Gradient norm by layer label."""
    skipped: bool
    """Whether the update was skipped: weights and moments are then bit-untouched."""


def num_targets(rows: Rows) -> int:
    """Targets of rows that count."""
    targets = rows[:, 1:]
    return int((targets != IGNORE_INDEX).sum())


class Step:
    """Updates and evaluations of one model on one flat state."""

    def __init__(
        self,
        *,
        model_loss: ModelLoss,
        state: FlatState,
        backend: GraphBackend,
        optimizer: adamw.AdamWUpdate | None = None,
    ) -> None:
        self._model_loss = model_loss
        self._state = state
        self._backend = backend
        self._optimizer = optimizer or adamw.choose(state.device)
        self._handles: dict[Hashable, Hashable] = {}
        self._inputs: dict[tuple[int, int], Tensor] = {}
        num_groups, num_labels = len(state.layout.groups), len(state.layout.labels)
        self._scalars = self._static(_GROUPS + 2 * num_groups)
        self._loss_sum, self._eval_sum = self._static(1), self._static(1)
        self._grad_norm = grad_norm.choose(state.layout.norm_segments, state.device)
        self._norm_state = grad_norm.NormState(
            max_norm=self._scalars[_CLIP],
            betas=self._scalars[_BETA1 : _BETA2 + 1],
            norms=self._static(1 + num_labels),
            ok=torch.ones(1, device=state.device, dtype=torch.bool),
            clip=self._static(1),
            products=state.beta_products,
            counters=state.counters,
        )

    def update(self, micro_batches: Sequence[Rows], scalars: UpdateScalars) -> UpdateResult:
        """Trains on the micro-batches of one update, in their order."""
        count = sum(num_targets(rows) for rows in micro_batches)
        assert count > 0, "an update without a target"
        self._write_scalars(scalars, count)
        self._loss_sum.zero_()
        for rows in micro_batches:
            shape = self._load(rows)
            self._run(("micro", *shape), partial(self._micro, shape))
        self._state.assert_bound()
        self._run("norm", self._norm)
        self._run("update", self._update)
        return self._result(count)

    @torch.no_grad()
    def evaluate(self, rows: Rows) -> tuple[float, int]:
        """Loss summed over the targets of rows, and their number; touches no training state."""
        shape = self._load(rows)
        self._run(("evaluate", *shape), partial(self._evaluate, shape))
        return float(self._eval_sum), num_targets(rows)

    def release(self) -> None:
        """Forgets every recorded part and static input; the next call records anew."""
        self._backend.release()
        self._handles.clear()
        self._inputs.clear()

    def _static(self, size: int) -> Tensor:
        return torch.zeros(size, device=self._state.device, dtype=torch.float64)

    def _run(self, key: Hashable, part: Callable[[], None]) -> None:
        if key not in self._handles:
            self._handles[key] = self._backend.capture(key, part)
        self._backend.replay(self._handles[key])

    def _load(self, rows: Rows) -> tuple[int, int]:
        """Copies rows into the static input of their shape."""
        if isinstance(rows, np.ndarray) and not rows.flags.writeable:
            rows = rows.copy()  # torch warns about read-only arrays, and a data reader may hand one out
        tensor = torch.as_tensor(rows)
        assert tensor.ndim == 2 and tensor.dtype == torch.int64, (tensor.shape, tensor.dtype)
        shape = (int(tensor.shape[0]), int(tensor.shape[1]))
        if shape not in self._inputs:
            self._inputs[shape] = torch.empty(shape, dtype=torch.int64, device=self._state.device)
        self._inputs[shape].copy_(tensor)
        return shape

    def _write_scalars(self, s: UpdateScalars, count: int) -> None:
        values = [1 / count, s.clip, s.beta1, s.beta2, s.eps]
        for group in self._state.layout.groups:
            values += [s.lr * group.lr_mult, s.weight_decay if group.decay else 0.0]
        self._scalars.copy_(torch.tensor(values, dtype=torch.float64))

    def _forward(self, shape: tuple[int, int]) -> Tensor:
        ids = self._inputs[shape]
        loss, _ = self._model_loss(ids[:, :-1].clamp(min=0), ids[:, 1:])
        return loss

    def _micro(self, shape: tuple[int, int]) -> None:
        loss = self._forward(shape)
        (loss * self._scalars[_LOSS_SCALE]).backward()  # type: ignore[no-untyped-call]
        self._loss_sum += loss.detach()

    def _evaluate(self, shape: tuple[int, int]) -> None:
        self._eval_sum.copy_(self._forward(shape).reshape(1))

    @torch.no_grad()
    def _norm(self) -> None:
        self._grad_norm(self._state.G, self._norm_state)

    @torch.no_grad()
    def _update(self) -> None:
        state, block = self._state, self._scalars
        for i, group in enumerate(state.layout.groups):
            part = slice(group.start, group.end)
            buffers = adamw.Buffers(P=state.P[part], G=state.G[part], M=state.M[part], V=state.V[part])
            coefficients = adamw.Coefficients(
                lr=block[_GROUPS + 2 * i],
                weight_decay=block[_GROUPS + 2 * i + 1],
                beta1=block[_BETA1],
                beta2=block[_BETA2],
                eps=block[_EPS],
                clip=self._norm_state.clip[0],
                products=state.beta_products,
                applied=state.counters[0],
                ok=self._norm_state.ok[0],
            )
            self._optimizer(buffers, coefficients)

    def _result(self, count: int) -> UpdateResult:
        total, *labels = self._norm_state.norms.tolist()
        return UpdateResult(
            loss=float(self._loss_sum) / count,
            num_targets=count,
            grad_norm=total,
            norms=dict(zip(self._state.layout.labels, labels, strict=True)),
            skipped=not bool(self._norm_state.ok),
        )
