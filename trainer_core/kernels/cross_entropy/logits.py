"""Loss and gradient of a chunk's logits: what stands between its two products where no kernel is launched.

Rows whose target is -100 do not count in the loss; their gradient is not zero, and whoever takes it leaves
them out. The arithmetic is torch's operators one by one, or inside `fused` what torch's compiler makes of it:
two passes over the logits instead of seven.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import cache

import torch
from torch import Tensor

from trainer_core.kernels.cross_entropy.reference import IGNORE_INDEX
from trainer_core.kernels.tensors import wide
from trainer_core.kernels.torch_compile import compiled

_fused = False


@contextmanager
def fused() -> Iterator[None]:
    """Inside, chunks on a CPU take the compiled form."""
    global _fused
    before, _fused = _fused, True
    try:
        yield
    finally:
        _fused = before


def is_fused(t: Tensor) -> bool:
    """Whether a chunk takes the compiled form. A trace on the meta device looks into the other one."""
    return _fused and t.device.type == "cpu"


def loss_of(logits: Tensor, targets: Tensor) -> Tensor:
    """Summed loss in float64 of logits [n, V]."""
    return _compiled()[0](logits, targets) if is_fused(logits) else _softmax(logits, targets)[0]


def loss_and_gradient(logits: Tensor, targets: Tensor) -> tuple[Tensor, Tensor]:
    """Summed loss in float64, and the gradient [n, V] of the logits in their dtype."""
    if is_fused(logits):
        return _compiled()[1](logits, targets)
    loss, probabilities, safe = _softmax(logits, targets)
    probabilities.scatter_add_(1, safe, torch.full_like(probabilities[:, :1], -1))
    return loss, probabilities.to(logits.dtype)


def _softmax(logits: Tensor, targets: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Summed loss, softmax [n, V], targets with -100 as 0 [n, 1].

    The log-sum-exp comes from the largest probability, which is at least 1 / V: no second pass of
    exponentials, and no underflow however unlikely the target.
    """
    logits = wide(logits)
    safe = targets.clamp(min=0)[:, None]
    probabilities = torch.softmax(logits, -1)
    losses = (
        logits.amax(-1, keepdim=True) - logits.gather(1, safe) - probabilities.amax(-1, keepdim=True).log()
    )
    return _counted(losses, targets), probabilities, safe


def _counted(losses: Tensor, targets: Tensor) -> Tensor:
    return torch.where((targets != IGNORE_INDEX)[:, None], losses, 0).sum(dtype=torch.float64)


def _exponentials(logits: Tensor, targets: Tensor) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Summed loss, exponentials below each row's largest logit, their sums, targets; for the compiler."""
    logits = wide(logits)
    safe = targets.clamp(min=0)[:, None]
    tops = logits.amax(-1, keepdim=True)
    exponentials = (logits - tops).exp()
    sums = exponentials.sum(-1, keepdim=True)
    return _counted(sums.log() + tops - logits.gather(1, safe), targets), exponentials, sums, safe


def _loss(logits: Tensor, targets: Tensor) -> Tensor:
    return _exponentials(logits, targets)[0]


def _loss_and_gradient(logits: Tensor, targets: Tensor) -> tuple[Tensor, Tensor]:
    loss, exponentials, sums, safe = _exponentials(logits, targets)
    here = torch.arange(logits.shape[1], device=logits.device) == safe
    return loss, (exponentials / sums - here.to(exponentials.dtype)).to(logits.dtype)


@cache
def _compiled() -> tuple[Callable[..., Tensor], Callable[..., tuple[Tensor, Tensor]]]:
    return compiled(_loss), compiled(_loss_and_gradient)
