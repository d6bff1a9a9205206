"""The scan by chunks equals the recurrence in values, states and gradients, and is exactly causal."""

import pytest
import torch
from torch import Tensor

from trainer_core.kernels.scan import scan
from trainer_core.kernels.scan.reference import scan_reference

SHAPES = {
    "one token": (2, 1, 4, 3, 2, 5),
    "a short row": (1, 7, 2, 8, 1, 3),
    "one chunk": (2, 16, 4, 3, 4, 5),
    "one token more": (1, 17, 2, 4, 1, 4),
    "many chunks": (2, 85, 6, 4, 2, 3),
    "one compartment": (2, 37, 4, 4, 1, 1),
    "one channel": (1, 33, 2, 1, 1, 4),
    "nothing but one": (1, 1, 1, 1, 1, 1),
}
"""B, T, H, P, G, N by name."""


def inputs(shape: tuple[int, ...], *, state: bool = True, seed: int = 0) -> list[Tensor]:
    """u, dt, A, b, r and the first potentials, in float64, with e-fold lengths from 1 to 1000."""
    B, T, H, P, G, N = shape
    g = torch.Generator().manual_seed(seed)

    def normal(*size: int) -> Tensor:
        return torch.randn(size, generator=g, dtype=torch.float64)

    dt, A = (normal(B, T, H) - 2).exp(), -(2 * normal(H) - 1).exp()
    held = [normal(B, T, H, P), dt, A, normal(B, T, G, N), normal(B, T, G, N), normal(B, H, P, N)]
    return held if state else held[:-1]


def run(fn, held: list[Tensor], **options: int) -> list[Tensor]:
    """y, the last potentials and every gradient, for gradients of both results that are the same each time."""
    held = [x.detach().requires_grad_() for x in held]
    out = fn(*held, **options)
    g = torch.Generator().manual_seed(7)
    weights = [torch.randn(x.shape, generator=g, dtype=torch.float64).to(x.dtype) for x in out]
    return [x.detach() for x in out] + list(torch.autograd.grad(out, held, weights))


def off(got: Tensor, wanted: Tensor) -> float:
    """The largest error relative to the largest value."""
    return ((got.double() - wanted.double()).abs().max() / wanted.abs().max().double()).item()


@pytest.mark.parametrize("chunk", [None, 4, 32])
@pytest.mark.parametrize("state", [True, False], ids=["from a state", "from rest"])
@pytest.mark.parametrize("shape", SHAPES)
def test_equals_the_recurrence(shape: str, state: bool, chunk: int | None) -> None:
    held = inputs(SHAPES[shape], state=state)
    for i, (got, wanted) in enumerate(
        zip(run(scan, held, chunk=chunk), run(scan_reference, held), strict=True)
    ):
        assert off(got, wanted) < (1e-13 if i < 2 else 1e-12), i
