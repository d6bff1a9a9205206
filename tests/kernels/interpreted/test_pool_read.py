"""The kernels of the pool read equal its twin in values and all gradients, on every shape of work."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from torch import Tensor

from tests.kernels.pools import GRADIENTS, Pool, pool
from trainer_core.kernels.pool_read.reference import pool_read_reference
from trainer_core.kernels.pool_read.triton import EVENTS, FORWARD, QUERIES, backward_triton, forward_triton, inputs

SMALL = {"M": 16, "N": 32}
SHAPES = {
    "one": (1, 1),
    "one query": (1, 40),
    "block-1": (15, 15),
    "block": (32, 32),
    "block+1": (33, 33),
    "several blocks": (70, 70),
    "later segment": (37, 75),
}
"""Queries T and events S by name."""


def _kernels(p: Pool) -> tuple[Tensor, ...]:
    read = inputs(*(x.detach() for x in p.arguments()))
    forward, queries = (replace(tiles, **SMALL) for tiles in (FORWARD, QUERIES))
    out, lse = forward_triton(read, forward)
    return out, *backward_triton(read, p.grad, out, lse, queries, replace(EVENTS, M=32, N=16))


def _twin(p: Pool) -> tuple[Tensor, ...]:
    out = pool_read_reference(*p.arguments())
    return out.detach(), *torch.autograd.grad(out, [p.tensors[name] for name in GRADIENTS], p.grad)


@pytest.mark.parametrize("heads", [(4, 2), (1, 1), (3, 1)], ids=str)
@pytest.mark.parametrize("shape", SHAPES)
def test_equals_the_twin(shape: str, heads: tuple[int, int]) -> None:
    p = pool(*SHAPES[shape], *heads, d=16, rows=2 if heads == (4, 2) else 1, dtype=torch.float32)
    for name, a, b in zip(("out", *GRADIENTS), _kernels(p), _twin(p), strict=True):
        torch.testing.assert_close(a, b, atol=5e-6, rtol=1e-5, msg=lambda m, name=name: f"{name}: {m}")
