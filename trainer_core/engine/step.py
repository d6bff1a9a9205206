"""One optimizer update in three recorded parts: micro-batch, norm, update; and forward-only evaluation.

Owns the order in which parts are recorded and replayed and what passes between host and device; the parts
themselves are in `parts`. The loss and gradient of an update are sums over all its targets divided by their
number, however it is split. What happened may be read at once, or late so that the host never waits.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Hashable, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from trainer_core.engine.backends.protocol import GraphBackend, Part
from trainer_core.engine.collective import Collective, SingleProcess, shard
from trainer_core.engine.flat import FlatState
from trainer_core.engine.lanes import LaneSums, cut, owned, tree_sum
from trainer_core.engine.parts import ModelLoss, Shape, StepParts
from trainer_core.engine.transfer import Download, Upload
from trainer_core.kernels import adamw
from trainer_core.kernels.cross_entropy import IGNORE_INDEX

Rows = np.ndarray[tuple[int, int], np.dtype[np.int64]] | Tensor
"""Token ids [R, L + 1], int64, on the host: each row holds its inputs and, one further, its targets.

IGNORE_INDEX as a target does not count; as an input it is read as token 0.
"""

UNREAD = 4
"""Updates whose results may wait to be read."""


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
    ema_weight: float = 1.0
    """Weight of the new parameters in their moving average, where there is one; 1 makes it equal to them."""


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
    skipped_run: int
    """Skipped updates in a row up to this one; 0 when it applied."""


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
        collective: Collective | None = None,
        lanes: int = 1,
        seed: int = 0,
    ) -> None:
        self._state = state
        state.dropout_counter[0] = seed
        self._backend = backend
        self._collective = collective or SingleProcess()
        self._num_lanes = len(owned(lanes, self._collective.world, self._collective.rank))
        self._owned = shard(state.layout.total, self._collective)
        self._parts = StepParts(
            model_loss=model_loss,
            state=state,
            optimizer=optimizer or adamw.choose(state.device),
            owned=self._owned,
        )
        self._recorded: set[Hashable] = set()
        self._uploads: dict[Shape, Upload] = {}
        self._scalars = Upload(backend, self._parts.scalars)
        self._results = Download(backend, self._parts.report, UNREAD)
        self._counts: deque[int] = deque()

    @property
    def backend(self) -> GraphBackend:
        """What it asks the device through: copies of the state go through it too, to be in order."""
        return self._backend

    def prepare(self, micro: Sequence[Shape], evaluations: Sequence[Shape] = ()) -> None:
        """Records every part for micro-batches and evaluations of (rows, row length), if it is not yet."""
        with self._backend.active():
            self._record_training({(rows, length + 1) for rows, length in micro})
            shapes = {(rows, length + 1) for rows, length in evaluations}
            self._record_evaluations(shapes)
            if self._state.E is not None:
                self._record_evaluations(shapes, average=True)

    def update(self, micro_batches: Sequence[Rows], scalars: UpdateScalars) -> UpdateResult:
        """Trains on the micro-batches of one update, in their order, and waits for what happened."""
        self.submit(micro_batches, scalars)
        (result,) = self.results()
        return result

    def submit(self, micro_batches: Sequence[Rows], scalars: UpdateScalars) -> None:
        """Asks the device for one update; `results` tells later what happened in it."""
        count = self._collective.sum_counts(sum(num_targets(rows) for rows in micro_batches))
        assert count > 0, "an update without a target"
        with self._backend.active():
            self._record_training({_shape(rows) for rows in micro_batches})
            self._scalars.write(self._block(scalars, count))
            self._accumulate(micro_batches)
            self._state.assert_bound()
            self._take_norm()
            self._backend.replay("update")
            for weights in (self._state.P, self._state.W):
                if weights is not None:
                    self._collective.all_gather(weights)
            self._results.push()
        self._counts.append(count)

    def results(self, lag: int = 0) -> list[UpdateResult]:
        """What happened in the updates that were not read yet, oldest first, but the newest `lag` of them."""
        return [self._read() for _ in range(len(self._results) - lag)]

    def evaluate(self, rows: Rows, *, average: bool = False) -> tuple[float, int]:
        """Loss summed over the targets of rows, and their number; touches no training state.

        With `average` it is the loss of the moving average of the parameters.
        """
        with self._backend.active():
            shape = _shape(rows)
            self._record_evaluations({shape}, average=average)
            self._load(rows)
            self._backend.replay(("average" if average else "evaluate", *shape))
            return float(self._parts.eval_sum), num_targets(rows)

    def release(self) -> None:
        """Forgets every recorded part and static input; the next call records anew."""
        self._backend.release()
        self._recorded.clear()
        self._uploads.clear()
        self._parts.forget_inputs()

    def _record_training(self, shapes: set[Shape]) -> None:
        """Largest first: what it frees in the pool serves the smaller ones."""
        parts = [self._parts.micro(shape) for shape in _largest_first(shapes)]
        alone = self._collective.world == 1
        parts += [self._parts.norm()] if alone else [self._parts.squares(), self._parts.finish()]
        self._record([*parts, self._parts.update()])

    def _record_evaluations(self, shapes: set[Shape], *, average: bool = False) -> None:
        part = self._parts.evaluate_average if average else self._parts.evaluate
        self._record([part(shape) for shape in _largest_first(shapes)])

    def _record(self, parts: Sequence[Part]) -> None:
        for part in parts:
            if part.key not in self._recorded:
                self._backend.capture(part)
                self._recorded.add(part.key)

    def _accumulate(self, micro_batches: Sequence[Rows]) -> None:
        """Gradients into G and the loss into the report, lane by lane."""
        self._parts.begin(self._collective.rank * len(micro_batches))
        sums = LaneSums((self._state.G, self._parts.loss_sum))
        for lane, members in enumerate(cut(micro_batches, self._num_lanes), start=1):
            for rows in members:
                self._load(rows)
                self._backend.replay(("micro", *_shape(rows)))
            sums.end_lane(last=lane == self._num_lanes)

    def _take_norm(self) -> None:
        if self._collective.world == 1:
            self._backend.replay("norm")
            return
        self._exchange()
        self._backend.replay("squares")
        self._collective.all_gather(self._parts.blocks)
        self._backend.replay("finish")

    @torch.no_grad()
    def _exchange(self) -> None:
        """The update's gradient into the own shard of G, zero elsewhere; its loss into the report."""
        G, world = self._state.G, self._collective.world
        self._collective.all_to_all_sum(G)
        G[: self._owned[0]].zero_()
        G[self._owned[1] :].zero_()
        losses = self._parts.loss_sum.repeat(world)
        self._collective.all_gather(losses)
        self._parts.loss_sum.copy_(tree_sum(losses))

    def _load(self, rows: Rows) -> None:
        """Copies rows into the static input of their shape."""
        if isinstance(rows, np.ndarray) and not rows.flags.writeable:
            rows = rows.copy()  # torch warns about read-only arrays, and a data reader may hand one out
        shape = _shape(rows)
        if shape not in self._uploads:
            self._uploads[shape] = Upload(self._backend, self._parts.input(shape))
        self._uploads[shape].write(torch.as_tensor(rows))

    def _block(self, s: UpdateScalars, count: int) -> Tensor:
        """The scalar block of `parts`, in its order."""
        values = [1 / count, s.clip, s.beta1, s.beta2, s.eps, s.ema_weight]
        for group in self._state.layout.groups:
            values += [s.lr * group.lr_mult, s.weight_decay if group.decay else 0.0]
        return torch.tensor(values, dtype=torch.float64)

    def _read(self) -> UpdateResult:
        total, *labels, loss, ok, run = self._results.pop()
        count = self._counts.popleft()
        return UpdateResult(
            loss=loss / count,
            num_targets=count,
            grad_norm=total,
            norms=dict(zip(self._state.layout.labels, labels, strict=True)),
            skipped=not ok,
            skipped_run=int(run),
        )


def _shape(rows: Rows) -> Shape:
    assert rows.ndim == 2 and str(rows.dtype).endswith("int64"), (rows.shape, rows.dtype)
    return int(rows.shape[0]), int(rows.shape[1])


def _largest_first(shapes: set[Shape]) -> list[Shape]:
    return sorted(shapes, key=lambda shape: (shape[0] * shape[1], shape), reverse=True)
