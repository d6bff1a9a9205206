"""Dropout as an operator: a fake for meta tensors, a backward pass that hashes again and keeps no mask."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from trainer_core.kernels.dropout.reference import dropout_reference
from trainer_core.kernels.register import differentiate, operator


def _fake(x: Tensor, counter: Tensor, site: int, p: float) -> Tensor:
    return torch.empty_like(x, memory_format=torch.contiguous_format)


@operator("dropout", fake=_fake)
def _dropout(x: Tensor, counter: Tensor, site: int, p: float) -> Tensor:
    if x.device.type == "cuda" and x.dtype in (torch.float32, torch.bfloat16):
        from trainer_core.kernels.dropout.triton import dropout_triton

        return dropout_triton(x.contiguous(), counter, site, p)
    return dropout_reference(x.contiguous(), counter, site, p)


def _setup(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
    _, counter, ctx.site, ctx.p = inputs
    ctx.save_for_backward(counter)


def _backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
    """The operator is linear in x and its own transpose."""
    (counter,) = ctx.saved_tensors
    return _dropout(grad, counter, ctx.site, ctx.p), None, None, None


differentiate("dropout", _backward, setup=_setup)


def dropout(x: Tensor, counter: Tensor, site: int, p: float) -> Tensor:
    """Each element with probability p zero, otherwise x / (1 - p).

    `counter` holds seed, update and micro-batch on the device of x, int64 [3], and must not change between
    a forward pass and its backward pass. `site` tells apart the places of a model that drop.
    """
    assert 0 <= p < 1 and site >= 0, (p, site)
    assert counter.dtype == torch.int64 and counter.shape == (3,), (counter.dtype, counter.shape)
    assert x.numel() < 1 << 31, "elements are counted in 31 bits"
    if p == 0:
        return x
    out: Tensor = _dropout(x, counter, site, p)
    return out
