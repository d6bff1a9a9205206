"""The recordable parts of a step, as closures over static tensors: micro-batch, norm, update, evaluation.

Owns the static tensors that they read and write. Every number that changes from update to update is in the
scalar block on the device, so a replay sees new values; what a replay leaves for the host is in the report.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterator
from contextlib import contextmanager
from functools import partial

import torch
from torch import Tensor

from trainer_core.engine.backends.protocol import Part
from trainer_core.engine.flat import FlatState
from trainer_core.kernels import adamw, grad_norm

Shape = tuple[int, int]
"""Rows of a micro-batch and ids of a row, one more than its targets."""

ModelLoss = Callable[[Tensor, Tensor], tuple[Tensor, Tensor]]
"""Inputs and targets [R, L] to the loss summed over the targets, and their number."""

LOSS_SCALE, CLIP, BETA1, BETA2, EPS, EMA, GROUPS = range(7)
"""Places in the scalar block; from GROUPS on rate and decay of each group."""


class StepParts:
    """Parts over one state; `owned` is the range of the flat buffers that this process updates."""

    def __init__(
        self,
        *,
        model_loss: ModelLoss,
        state: FlatState,
        optimizer: adamw.AdamWUpdate,
        owned: tuple[int, int],
    ) -> None:
        self._model_loss = model_loss
        self._state = state
        self._optimizer = optimizer
        self._owned = owned
        num_labels = len(state.layout.labels)
        self.scalars = self._static(GROUPS + 2 * len(state.layout.groups))
        self.report = self._static(1 + num_labels + 3)
        """Norms (global, by label), loss sum, whether the update applied, skipped updates in a row."""
        self.loss_sum = self.report[1 + num_labels :][:1]
        self.eval_sum = self._static(1)
        self.blocks = self._static(state.layout.total // grad_norm.BLOCK)
        """Sums of squares of the norm's blocks, which ranks exchange."""
        self._inputs: dict[Shape, Tensor] = {}
        self._grad_norm = grad_norm.choose(state.layout.norm_segments, state.device)
        self._norm_state = grad_norm.NormState(
            max_norm=self.scalars[CLIP],
            betas=self.scalars[BETA1 : BETA2 + 1],
            norms=self.report[: 1 + num_labels],
            ok=torch.ones(1, device=state.device, dtype=torch.bool),
            clip=self._static(1),
            products=state.beta_products,
            counters=state.counters,
        )

    def input(self, shape: Shape) -> Tensor:
        """The static ids of a shape."""
        if shape not in self._inputs:
            self._inputs[shape] = torch.zeros(shape, dtype=torch.int64, device=self._state.device)
        return self._inputs[shape]

    def forget_inputs(self) -> None:
        """Frees the static ids."""
        self._inputs.clear()

    def begin(self, first: int) -> None:
        """Before an update's micro-batches, numbered from `first`; a skipped update has a number too."""
        self.loss_sum.zero_()
        counter, counters = self._state.dropout_counter, self._state.counters
        torch.add(counters[:1], counters[1:2], out=counter[1:2])
        counter[2:].fill_(first)

    def micro(self, shape: Shape) -> Part:
        """Forward and backward of a micro-batch: adds to G and to the loss sum."""
        constants = (self.input(shape), self.scalars, *self._weights())
        return self._part(("micro", *shape), partial(self._micro, shape), *constants)

    def evaluate(self, shape: Shape) -> Part:
        """Forward alone, into `eval_sum`."""
        constants = (self.input(shape), *self._weights(), self._state.G)
        return self._part(("evaluate", *shape), partial(self._evaluate, shape), *constants)

    def evaluate_average(self, shape: Shape) -> Part:
        """`evaluate` with the moving average in place of the parameters."""
        assert self._state.E is not None
        constants = (self.input(shape), *self._weights(), self._state.E, self._state.G)
        return self._part(("average", *shape), partial(self._evaluate_average, shape), *constants)

    def norm(self) -> Part:
        """Norms, clip, judgement and counters from G."""
        return self._part("norm", self._norm, self.scalars, self._state.P, self._state.G)

    def squares(self) -> Part:
        """First half of `norm` where G is shared: the blocks of the own range."""
        return self._part("squares", self._squares, self.scalars, self._state.P, self._state.G)

    def finish(self) -> Part:
        """Second half, from the blocks of all."""
        return self._part("finish", self._finish, self.scalars, self.blocks, self._state.P, self._state.G)

    def update(self) -> Part:
        """AdamW over the own range; zeroes G there."""
        return self._part("update", self._update, self.scalars)

    def _weights(self) -> tuple[Tensor, ...]:
        """What a forward pass may only read."""
        return (self._state.P,) if self._state.W is None else (self._state.P, self._state.W)

    def _static(self, size: int) -> Tensor:
        return torch.zeros(size, device=self._state.device, dtype=torch.float64)

    def _part(self, key: Hashable, run: Callable[[], None], *constants: Tensor) -> Part:
        return Part(key=key, run=run, constants=constants, rehearsal=self._rehearsal)

    @contextmanager
    def _rehearsal(self) -> Iterator[None]:
        """Between updates G is zero and an update that is not ok moves nothing: the rest is put back."""
        norm = self._norm_state
        results = (self.report, self.eval_sum, self.blocks, norm.ok, norm.clip)
        changed = (*results, norm.products, norm.counters, self._state.dropout_counter)
        kept = [tensor.clone() for tensor in changed]
        norm.ok.fill_(False)
        try:
            yield
        finally:
            for tensor, old in zip(changed, kept, strict=True):
                tensor.copy_(old)
            self._state.G.zero_()

    def _forward(self, shape: Shape) -> Tensor:
        ids = self._inputs[shape]
        loss, _ = self._model_loss(ids[:, :-1].clamp(min=0), ids[:, 1:])
        return loss

    def _micro(self, shape: Shape) -> None:
        loss = self._forward(shape)
        (loss * self.scalars[LOSS_SCALE]).backward()  # type: ignore[no-untyped-call]
        self.loss_sum += loss.detach()
        self._state.dropout_counter[2:] += 1

    @torch.no_grad()
    def _evaluate(self, shape: Shape) -> None:
        self.eval_sum.copy_(self._forward(shape).reshape(1))

    def _evaluate_average(self, shape: Shape) -> None:
        with self._state.averaged():
            self._evaluate(shape)

    @torch.no_grad()
    def _norm(self) -> None:
        self._squares()
        self._finish()

    @torch.no_grad()
    def _squares(self) -> None:
        start, end = (edge // grad_norm.BLOCK for edge in self._owned)
        self._grad_norm.squares(self._state.G[slice(*self._owned)], self.blocks[start:end])

    @torch.no_grad()
    def _finish(self) -> None:
        self._grad_norm.finish(self.blocks, self._norm_state)
        self.report[-2:-1].copy_(self._norm_state.ok)
        self.report[-1].copy_(self._norm_state.counters[2])

    @torch.no_grad()
    def _update(self) -> None:
        state, block, norm = self._state, self.scalars, self._norm_state
        for i, group in enumerate(state.layout.groups):
            part = slice(max(group.start, self._owned[0]), min(group.end, self._owned[1]))
            if part.start >= part.stop:
                continue
            buffers = adamw.Buffers(
                P=state.P[part],
                G=state.G[part],
                M=state.M[part],
                V=state.V[part],
                E=None if state.E is None else state.E[part],
                W=None if state.W is None else state.W[part],
            )
            coefficients = adamw.Coefficients(
                lr=block[GROUPS + 2 * i],
                weight_decay=block[GROUPS + 2 * i + 1],
                beta1=block[BETA1],
                beta2=block[BETA2],
                eps=block[EPS],
                clip=norm.clip[0],
                products=state.beta_products,
                applied=state.counters[0],
                ok=norm.ok[0],
                ema_weight=None if state.E is None else block[EMA],
            )
            self._optimizer(buffers, coefficients)
