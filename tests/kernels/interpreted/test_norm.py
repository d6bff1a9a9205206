"""The kernels of RMSNorm equal the twin in values and in every gradient, over any number of strips."""

import pytest
import torch
from torch import Tensor

from tests.kernels.sizes import SIZES, assert_alike
from trainer_core.kernels.norm import op, rms_norm
from trainer_core.kernels.norm.reference import rms_norm_reference
from trainer_core.kernels.norm.triton import (
    ELEMENTS,
    STRIPS,
    norm_backward_triton,
    norm_triton,
    strips,
    tile,
)

SHAPES = [(1, 1), (1, 64), (7, 48), (9, 33), (127, 32), (128, 32), (129, 32), (3, 1030), (2, 8192)]
DTYPES = [torch.float32, torch.bfloat16]
EPS = 1e-5


def _draw(*shape: int, seed: int, scale: float = 1.0) -> Tensor:
    return scale * torch.randn(shape, generator=torch.Generator().manual_seed(seed))


def _close(got: Tensor, wanted: Tensor) -> None:
    """Within the rounding of a result, and of float32 inside, at the size of the largest element."""
    bar = 2.0**-8 if got.dtype == torch.bfloat16 else 2e-5
    size = max(float(wanted.abs().max()), 1e-3)
    torch.testing.assert_close(got.double(), wanted, atol=max(bar / 16, 2e-6) * size, rtol=bar)


@pytest.mark.parametrize("narrow_weight", [False, True])
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("shape", SHAPES)
def test_values_and_gradients(
    shape: tuple[int, int], dtype: torch.dtype, narrow_weight: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Rows that lie further apart than they are long, as a gradient may."""
    monkeypatch.setattr(op, "launches", lambda *_: True)
    n, C = shape
    x = _draw(n, C + 24, seed=0).to(dtype)[:, 16 : 16 + C].detach().requires_grad_()
    weight = (1 + _draw(C, seed=1, scale=0.3)).to(dtype if narrow_weight else torch.float32).requires_grad_()
    grad = _draw(n, C + 8, seed=2).to(dtype)[:, 8:]
    exact = [t.detach().double().requires_grad_() for t in (x, weight)]
    out, twin = rms_norm(x, weight, EPS), rms_norm_reference(*exact, EPS)
    assert out.dtype == dtype and out.is_contiguous()
    _close(out.detach(), twin.detach())
    grads = torch.autograd.grad(out, (x, weight), grad)
    wanted = torch.autograd.grad(twin, exact, grad.double())
    if C > 1:
        _close(grads[0], wanted[0])
    _close(grads[1], wanted[1])


@pytest.mark.parametrize("most", [1, 2, 3, 100])
def test_any_number_of_strips(most: int) -> None:
    x, weight, grad = _draw(300, 40, seed=0), _draw(40, seed=1), _draw(300, 40, seed=2)
    _, scales = norm_triton(x, weight, EPS)
    exact = [t.double().requires_grad_() for t in (x, weight)]
    twin = rms_norm_reference(*exact, EPS)
    found = norm_backward_triton(grad, x, weight, scales, most=most)
    for got, wanted in zip(found, torch.autograd.grad(twin, exact, grad.double()), strict=True):
        _close(got, wanted)


def test_more_axes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(op, "launches", lambda *_: True)
    x = _draw(2, 3, 5, 16, seed=0).transpose(1, 2).requires_grad_()
    weight = torch.ones(16, requires_grad=True)
    out = rms_norm(x, weight, EPS)
    torch.testing.assert_close(out, rms_norm_reference(x, weight, EPS))
    got, wanted = (
        torch.autograd.grad(o.square().sum(), x)[0] for o in (out, rms_norm_reference(x, weight, EPS))
    )
    torch.testing.assert_close(got, wanted, atol=1e-5, rtol=1e-5)


@pytest.mark.parametrize("size", SIZES)
def test_values_of_any_size(size: str) -> None:
    x, weight, grad = _draw(5, 40, seed=0, scale=SIZES[size]), _draw(40, seed=1), _draw(5, 40, seed=2)
    exact = [t.double().requires_grad_() for t in (x, weight)]
    twin = rms_norm_reference(*exact, EPS)
    out, scales = norm_triton(x, weight, EPS)
    found = out, *norm_backward_triton(grad, x, weight, scales)
    for got, wanted in zip(found, (twin, *torch.autograd.grad(twin, exact, grad.double())), strict=True):
        assert_alike(got, wanted.detach(), 1e-5)


def test_extremes() -> None:
    """Zeros, subnormals and the largest have finite gradients; NaN stays in its row."""
    x = torch.tensor([[0.0] * 4, [1e-40, -1e-40, 0, 0], [9e18, -1e18, 0, 1], [1.0, torch.nan, 2, 3]])
    weight = torch.tensor([1.0, 2, 0, -1])
    out, scales = norm_triton(x, weight, EPS)
    d_x, _ = norm_backward_triton(torch.ones(4, 4), x, weight, scales)
    assert out[:3].isfinite().all() and d_x[:3].isfinite().all()
    assert out[3].isnan().all() and d_x[3].isnan().all()


def test_tiles_and_strips_cover_every_row_once() -> None:
    for n in (1, 3, 511, 513, 32_768):
        for C in (1, 48, 2048, 4097, 8192):
            rows, block, warps = tile(n, C)
            number, per_strip = strips(n, rows, STRIPS)
            assert per_strip % rows == 0 and number <= STRIPS and block >= C
            assert (number - 1) * per_strip < n <= number * per_strip
            assert rows * block <= max(ELEMENTS, block) <= 512 * warps
