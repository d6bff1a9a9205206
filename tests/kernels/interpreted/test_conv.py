"""The kernels of the convolution equal its twin in values and every gradient, over any number of strips."""

import pytest
import torch
from torch import Tensor

from tests.kernels.sizes import SIZES, assert_alike
from trainer_core.kernels.conv.reference import causal_conv_silu_reference
from trainer_core.kernels.conv.triton import BLOCK, conv_backward_triton, conv_triton

STRIP = 4


def _draw(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed))


def _close(got: Tensor, wanted: Tensor) -> None:
    bar = 2.0**-8 if got.dtype == torch.bfloat16 else 2e-5
    size = max(1.0, float(wanted.abs().max()))
    torch.testing.assert_close(got.double(), wanted, atol=1e-5 * size, rtol=bar)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
@pytest.mark.parametrize("with_state", [False, True])
@pytest.mark.parametrize(
    ("B", "T", "C"),
    [
        *((1, 1, 1), (2, 2, 5), (1, 3, 16), (2, 4, 16), (1, 5, 33), (2, 11, 20), (1, 9, 1030)),
        *((1, 2, BLOCK + more) for more in (-1, 0, 1)),
    ],
)
def test_values_and_gradients(B: int, T: int, C: int, with_state: bool, dtype: torch.dtype) -> None:
    x, taps = _draw(B, T, C + 24).to(dtype)[..., 16 : 16 + C], _draw(C, 4, seed=1)
    state = _draw(B, 3, C, seed=2).to(dtype) if with_state else None
    grad = _draw(B, T, C, seed=3).to(dtype)
    leaves = [t.double().detach().requires_grad_() for t in (x, taps, state) if t is not None]
    wanted, _ = causal_conv_silu_reference(*leaves)
    wanted.backward(grad.double())
    out = conv_triton(x, taps, state)
    assert out.dtype == dtype
    _close(out, wanted.detach())
    d_x, d_taps, d_state = conv_backward_triton(grad, x, taps, state, strip=STRIP)
    assert (d_x.dtype, d_taps.dtype, d_state.shape[1]) == (dtype, torch.float32, 3 if with_state else 0)
    for got, leaf in zip((d_x, d_taps, d_state), leaves, strict=False):
        assert leaf.grad is not None
        _close(got, leaf.grad)


@pytest.mark.parametrize("size", SIZES)
def test_values_of_any_size(size: str) -> None:
    x, taps, state = (
        _draw(2, 9, 20) * SIZES[size],
        _draw(20, 4, seed=1),
        _draw(2, 3, 20, seed=2) * SIZES[size],
    )
    grad = _draw(2, 9, 20, seed=3)
    leaves = [t.double().requires_grad_() for t in (x, taps, state)]
    twin, _ = causal_conv_silu_reference(*leaves)
    found = conv_triton(x, taps, state), *conv_backward_triton(grad, x, taps, state, strip=STRIP)
    for got, wanted in zip(found, (twin, *torch.autograd.grad(twin, leaves, grad.double())), strict=True):
        assert_alike(got, wanted.detach(), 1e-5)


def test_extremes_stay_finite() -> None:
    x = torch.tensor([[[1e-38, 1e-44, 3e18, -3e18, 90.0, -90.0, 0.0, -0.0]]]).repeat(1, 5, 1)
    out = conv_triton(x, torch.ones(8, 4), None)
    found = conv_backward_triton(torch.ones(1, 5, 8), x, torch.ones(8, 4), None, strip=STRIP)
    assert all(t.isfinite().all() for t in (out, *found))
