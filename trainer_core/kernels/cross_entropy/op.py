"""Cross-entropy of a linear head, summed, over chunks of tokens: the logits of one chunk exist at a time.

While gradients are on, each chunk's gradients are made right after its loss from the same logits (one product
less than recomputing them); the backward pass only scales them. Losses are summed in float64. Products are of
the dtype of the inputs, everything between them and the sum of the head's gradient is float32 at least. On a
GPU kernels stand between the products, and the gradient of the logits takes their place.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from trainer_core.kernels.cross_entropy.logits import loss_and_gradient, loss_of
from trainer_core.kernels.cross_entropy.reference import IGNORE_INDEX
from trainer_core.kernels.register import differentiate, operator
from trainer_core.kernels.target import target
from trainer_core.kernels.tensors import wide_dtype
from trainer_core.kernels.wide_gradient import wide_gradient

CHUNK, NARROW_CHUNK = 256, 512
"""Tokens whose logits exist at the same time; more where products must be widened before they are summed."""

LAUNCHED_CHUNKS = {torch.float32: 1024, torch.bfloat16: 4096}
"""The same where kernels are launched, which hold the logits once and in the dtype of the inputs."""


def launches(hidden: Tensor) -> bool:
    """Whether there are kernels for such logits on their device."""
    return target(hidden) == "cuda" and hidden.dtype in LAUNCHED_CHUNKS


def _chunks(hidden: Tensor) -> Iterator[slice]:
    size = CHUNK if hidden.dtype == wide_dtype(hidden) else NARROW_CHUNK
    size = LAUNCHED_CHUNKS[hidden.dtype] if launches(hidden) else size
    for start in range(0, hidden.shape[0], size):
        yield slice(start, start + size)


def _fake_losses(logits: Tensor, targets: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    one, two, three = (targets.new_empty(targets.shape, dtype=torch.float32) for _ in range(3))
    return one, two, three


@operator("cross_entropy_losses", fake=_fake_losses)
def _losses(logits: Tensor, targets: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Losses [n] of logits [n, V], and of each row the largest and the sum of exponentials below it."""
    from trainer_core.kernels.cross_entropy.triton import losses_triton

    return losses_triton(logits, targets)


def _fake_gradient(logits: Tensor, targets: Tensor, tops: Tensor, sums: Tensor) -> None:
    return None


@operator("cross_entropy_gradient", fake=_fake_gradient, mutates=("logits",))
def _into_gradient(logits: Tensor, targets: Tensor, tops: Tensor, sums: Tensor) -> None:
    """Logits [n, V] become the gradient of the sum of their losses."""
    from trainer_core.kernels.cross_entropy.triton import gradient_triton

    gradient_triton(logits, targets, tops, sums)


def _fake_loss(hidden: Tensor, weight: Tensor, targets: Tensor) -> Tensor:
    return hidden.new_empty((), dtype=wide_dtype(hidden))


@operator("linear_cross_entropy", fake=_fake_loss, composed=True)
def loss_alone(hidden: Tensor, weight: Tensor, targets: Tensor) -> Tensor:
    """Summed loss, for evaluation."""
    total = torch.zeros((), dtype=torch.float64, device=hidden.device)
    for part in _chunks(hidden):
        if launches(hidden):
            total += _losses(hidden[part] @ weight.t(), targets[part])[0].sum(dtype=torch.float64)
        else:
            total += loss_of(hidden[part] @ weight.t(), targets[part])
    return total.to(wide_dtype(hidden))


def _fake_gradients(hidden: Tensor, weight: Tensor, targets: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    wide = wide_dtype(hidden)
    return hidden.new_empty((), dtype=wide), torch.empty_like(hidden), torch.empty_like(weight, dtype=wide)


def _gradient_of_logits(hidden: Tensor, weight: Tensor, targets: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Of a chunk: the loss, the gradient of its logits [n, V] in the dtype of hidden, hidden where it counts.

    With kernels a row that does not count has a gradient of zeros, otherwise a hidden vector of zeros.
    """
    logits = hidden @ weight.t()
    if launches(hidden):
        losses, tops, sums = _losses(logits, targets)
        _into_gradient(logits, targets, tops, sums)
        return losses.sum(dtype=torch.float64), logits, hidden
    return *loss_and_gradient(logits, targets), hidden * (targets != IGNORE_INDEX)[:, None]


def _add_chunk(hidden: Tensor, weight: Tensor, targets: Tensor, d_hidden: Tensor, d_weight: Tensor) -> Tensor:
    """The loss of a chunk; puts its gradients into d_hidden and adds them to d_weight."""
    loss, d_logits, counted = _gradient_of_logits(hidden, weight, targets)
    if launches(hidden):
        torch.mm(d_logits, weight, out=d_hidden)
    else:
        d_hidden.copy_((d_logits @ weight) * (targets != IGNORE_INDEX)[:, None])
    if d_logits.dtype == d_weight.dtype:
        d_weight.addmm_(d_logits.t(), counted)
    else:
        d_weight += d_logits.t() @ counted
    return loss


@operator("linear_cross_entropy_train", fake=_fake_gradients, composed=True)
def loss_and_gradients(hidden: Tensor, weight: Tensor, targets: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Summed loss and its gradients of hidden and weight, for training."""
    wide = wide_dtype(hidden)
    total = torch.zeros((), dtype=torch.float64, device=hidden.device)
    d_hidden = torch.empty_like(hidden)
    d_weight = torch.zeros_like(weight, dtype=wide)
    for part in _chunks(hidden):
        total += _add_chunk(hidden[part], weight, targets[part], d_hidden[part], d_weight)
    return total.to(wide), d_hidden, d_weight


def _setup(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, Tensor, Tensor]) -> None:
    _, d_hidden, d_weight = output
    ctx.mark_non_differentiable(d_hidden, d_weight)
    ctx.set_materialize_grads(False)
    ctx.weight_dtype = inputs[1].dtype
    ctx.save_for_backward(d_hidden, d_weight)


def _backward(ctx: Any, grad: Tensor | None, *_: Any) -> tuple[Tensor | None, ...]:
    if grad is None:
        return None, None, None
    d_hidden, d_weight = ctx.saved_tensors
    return d_hidden * grad.to(d_hidden.dtype), (d_weight * grad).to(ctx.weight_dtype), None


differentiate("linear_cross_entropy_train", _backward, setup=_setup)


class _IntoWide(torch.autograd.Function):
    """The gradient of the weight goes straight into its float32 buffer."""

    @staticmethod
    def forward(ctx: Any, hidden: Tensor, weight: Tensor, targets: Tensor, wide: Tensor) -> Tensor:
        total, d_hidden, d_weight = loss_and_gradients(hidden, weight, targets)
        ctx.save_for_backward(d_hidden, d_weight)
        ctx.wide = wide
        result: Tensor = total
        return result

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        d_hidden, d_weight = ctx.saved_tensors
        ctx.wide.addcmul_(d_weight, grad.to(d_weight.dtype))
        return d_hidden * grad.to(d_hidden.dtype), None, None, None


def linear_cross_entropy(hidden: Tensor, weight: Tensor, targets: Tensor) -> Tensor:
    """Summed cross-entropy of hidden [n, d] against weight [V, d] at targets [n]; -100 is left out."""
    targets = targets.contiguous()
    if torch.is_grad_enabled() and (hidden.requires_grad or weight.requires_grad):
        wide = wide_gradient(weight)
        loss: Tensor = (
            loss_and_gradients(hidden, weight, targets)[0]
            if wide is None
            else _IntoWide.apply(hidden, weight, targets, wide)  # type: ignore[no-untyped-call]
        )
        return loss
    plain: Tensor = loss_alone(hidden, weight, targets)
    return plain
