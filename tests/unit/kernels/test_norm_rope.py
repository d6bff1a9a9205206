"""RMSNorm and the rotation equal their twins in values and gradients."""

import pytest
import torch

from trainer_core.kernels.norm import rms_norm
from trainer_core.kernels.norm.reference import rms_norm_reference
from trainer_core.kernels.rope import rotate
from trainer_core.kernels.rope.reference import rotate_reference
from trainer_core.models.blocks import rope_tables


@pytest.mark.parametrize("shape", [(1, 4), (3, 5, 16), (2, 3, 4, 33)])
@pytest.mark.parametrize("scale", [1e-3, 1.0, 1e3])
def test_norm_equals_the_twin(shape: tuple[int, ...], scale: float) -> None:
    g = torch.Generator().manual_seed(1)
    for dtype, bar in ((torch.float64, 1e-12), (torch.float32, 3e-5)):
        x = (scale * torch.randn(shape, generator=g)).to(dtype).requires_grad_()
        weight = torch.randn(shape[-1], generator=g).to(dtype).requires_grad_()
        grad = torch.randn(shape, generator=g).to(dtype)
        out, twin = rms_norm(x, weight, 1e-5), rms_norm_reference(x, weight, 1e-5)
        torch.testing.assert_close(out, twin, atol=bar, rtol=bar)
        grads = torch.autograd.grad(out, (x, weight), grad)
        for got, expected in zip(grads, torch.autograd.grad(twin, (x, weight), grad), strict=True):
            size = float(expected.abs().max())
            torch.testing.assert_close(got, expected, atol=bar * max(size, 1e-6), rtol=bar)


def test_norm_gradcheck() -> None:
    x = torch.randn(3, 5, dtype=torch.float64, requires_grad=True)
    weight = torch.randn(5, dtype=torch.float64, requires_grad=True)
    assert torch.autograd.gradcheck(lambda a, b: rms_norm(a, b, 1e-5), (x, weight))


def test_norm_of_zeros_has_a_finite_gradient() -> None:
    x, weight = torch.zeros(2, 8, requires_grad=True), torch.ones(8, requires_grad=True)
    rms_norm(x, weight, 1e-5).sum().backward()
    assert x.grad is not None and x.grad.isfinite().all()


@pytest.mark.parametrize("T", [1, 9])
def test_rotation_equals_the_twin(T: int) -> None:
    cos, sin = (t[:T] for t in rope_tables(16, 8, 10_000.0, torch.float64))
    x = torch.randn(2, T, 3, 8, dtype=torch.float64).transpose(1, 2).requires_grad_()
    grad = torch.randn_like(x)
    out, twin = rotate(x, cos, sin), rotate_reference(x, cos, sin)
    torch.testing.assert_close(out, twin, atol=1e-15, rtol=1e-15)
    torch.testing.assert_close(
        torch.autograd.grad(out, x, grad), torch.autograd.grad(twin, x, grad), atol=1e-14, rtol=1e-14
    )
    assert out.is_contiguous()


def test_scores_depend_on_distance_alone() -> None:
    cos, sin = rope_tables(32, 8, 10_000.0, torch.float64)
    q, k = torch.randn(8, dtype=torch.float64), torch.randn(8, dtype=torch.float64)
    scores = rotate(q.expand(32, 8), cos, sin) @ rotate(k.expand(32, 8), cos, sin).T
    torch.testing.assert_close(scores[5, 2], scores[25, 22], atol=1e-12, rtol=0)
    assert abs(scores[5, 2] - scores[5, 3]) > 1e-6
