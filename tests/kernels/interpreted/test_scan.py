"""The kernels of the scan give what the recurrence gives: values, last potentials and every gradient."""

import pytest
import torch
import triton.language as tl
from torch import Tensor

from trainer_core.kernels.scan.layout import CHUNK, Inputs, Shape, has_kernels
from trainer_core.kernels.scan.reference import scan_reference
from trainer_core.kernels.scan.triton import ROWS, backward_triton, forward_triton
from trainer_core.kernels.target import traced_for

Q = 16

CASES = {
    "one token": (1, 1, 2, 4, 1, 3),
    "chunk-1": (2, Q - 1, 1, 16, 1, 16),
    "chunk": (1, Q, 2, 16, 2, 16),
    "chunk+1": (1, Q + 1, 2, 5, 1, 20),
    "odd": (1, 2 * Q + 5, 2, 4, 1, 1),
    "groups": (1, Q + 4, 4, 8, 2, 4),
    "parts of a group": (1, Q + 1, 18, 2, 1, 3),
    "parts of groups": (2, Q - 3, 36, 1, 2, 2),
}
"""B, T, H, P, G, N by name."""


def inputs(shape: tuple[int, ...], scale: float = 1.0) -> list[Tensor]:
    """u, dt, A, b, r, skip, the first potentials, then the gradients of y and of the last potentials."""
    B, T, H, P, G, N = shape
    g = torch.Generator().manual_seed(0)
    u, b, r = (torch.randn(size, generator=g) for size in ((B, T, H, P), (B, T, G, N), (B, T, G, N)))
    dt, A = (torch.randn(B, T, H, generator=g) - 1).exp(), -(2 * torch.randn(H, generator=g) - 1).exp()
    state, d_state = torch.randn(2, B, H, P, N, generator=g)
    skip = torch.linspace(-1, 2, H)
    return [u * scale, dt, A, b, r, skip, state * scale, torch.randn(B, T, H, P, generator=g), d_state]


def reference(held: list[Tensor]) -> list[Tensor]:
    *held, g, g_last = (x.double() for x in held)
    held = [x.requires_grad_() for x in held]
    *inputs, skip, state = held
    y, last = scan_reference(*inputs, state, skip=skip)
    return [y.detach(), last.detach(), *torch.autograd.grad((y, last), held, (g, g_last))]


def ours(held: list[Tensor], chunk: int = Q) -> list[Tensor]:
    *inputs, state, g, g_last = held
    x = Inputs(*inputs)
    s = Shape.of(x, chunk)
    y, last, V = forward_triton(s, x, state, narrow=tl.float32, block=64)
    return [y, last, *backward_triton(s, g, g_last, x, V, narrow=tl.float32, block=64)]


def off(got: Tensor, wanted: Tensor) -> float:
    return ((got.double() - wanted).abs().max() / wanted.abs().max().clamp(min=1e-300)).item()


@pytest.mark.parametrize("case", CASES)
def test_equals_the_recurrence(case: str) -> None:
    held = inputs(CASES[case])
    for i, (got, wanted) in enumerate(zip(ours(held), reference(held), strict=True)):
        assert off(got, wanted) < 3e-6, i


def test_a_chunk_of_several_programs() -> None:
    """As long as on a GPU: the heads of a group are added for a part of its tokens at a time."""
    held = inputs((1, CHUNK + 5, 3, 2, 1, 4))
    assert CHUNK >= 2 * ROWS
    for i, (got, wanted) in enumerate(zip(ours(held, CHUNK), reference(held), strict=True)):
        assert off(got, wanted) < 3e-6, i


@pytest.mark.parametrize("scale", [1e12, 1e-12, 1e-40], ids=["large", "tiny", "denormal"])
def test_of_any_size(scale: float) -> None:
    held = inputs(CASES["chunk+1"], scale)
    bar = 3e-6 if scale > 1e-30 else 1e-3
    for i, (got, wanted) in enumerate(zip(ours(held), reference(held), strict=True)):
        assert off(got, wanted) < bar, i


@pytest.mark.parametrize("rate", [-1e-6, -50.0], ids=["slow", "fast"])
def test_any_decay(rate: float) -> None:
    held = inputs(CASES["groups"])
    held[1], held[2] = torch.ones_like(held[1]), torch.full_like(held[2], rate)
    for i, (got, wanted) in enumerate(zip(ours(held), reference(held), strict=True)):
        assert off(got, wanted) < 3e-6, i


def test_bfloat16_is_rounded_once() -> None:
    """But for what skips the compartments, which torch adds."""
    held = inputs(CASES["odd"])
    held[5].zero_()
    narrow = [x.bfloat16() if i in (0, 3, 4, 7) else x for i, x in enumerate(held)]
    for i, (got, wanted) in enumerate(zip(ours(narrow), reference(narrow), strict=True)):
        assert off(got, wanted) < (2**-8 if got.dtype == torch.bfloat16 else 3e-6), i
    assert torch.equal(ours(narrow)[0], ours([x.float() for x in narrow])[0].bfloat16())


def test_what_there_are_kernels_for() -> None:
    here = Inputs(*inputs(CASES["chunk"])[:6])
    assert not has_kernels(here, 16)
    x = Inputs(*(t.to("meta") for t in here))
    with traced_for("cuda"):
        assert has_kernels(x, 16) and has_kernels(x._replace(u=x.u.bfloat16()), 128)
        assert not has_kernels(x._replace(u=x.u.double()), 16)
        assert not has_kernels(x._replace(dt=x.dt.double()), 16)
        assert not has_kernels(x, 8) and not has_kernels(x, 48)
        assert not has_kernels(x._replace(b=x.b.new_empty(1, 1, 1, 256)), 16)
    s = Shape(B=1, T=1, H=48, P=1, G=2, N=1, Q=16)
    assert (s.heads_together, s.parts) == (12, 2)
