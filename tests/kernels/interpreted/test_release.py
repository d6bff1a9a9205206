"""The kernels of the release equal its twins in values and in every gradient, over any number of strips."""

from collections.abc import Callable, Sequence

import pytest
import torch
from torch import Tensor

from tests.kernels.sizes import SIZES, assert_alike
from trainer_core.kernels.release.launch import (
    gate_backward_triton,
    gate_triton,
    release_backward_triton,
    release_triton,
    strips,
    tile,
)
from trainer_core.kernels.release.reference import (
    norm_release_gate_reference,
    release_product_reference,
    release_reference,
)
from trainer_core.kernels.release.triton import COLUMNS, ELEMENTS, STRIPS

SHAPES = [(1, 1), (7, 48), (9, 33), (300, 16), (5, 1030), *((2, COLUMNS + more) for more in (-1, 0, 1))]
DTYPES = [torch.float32, torch.bfloat16]


def _draw(*shape: int, seed: int = 0, scale: float = 1.0) -> Tensor:
    return scale * torch.randn(shape, generator=torch.Generator().manual_seed(seed))


def _theta(C: int, seed: int = 9) -> Tensor:
    theta = _draw(C, seed=seed, scale=0.5)
    theta[0] = 2.5
    return theta


def _slice(n: int, C: int, dtype: torch.dtype, seed: int) -> Tensor:
    """Rows that lie further apart than they are long."""
    return _draw(n, C + 24, seed=seed).to(dtype)[:, 16 : 16 + C]


def _exact(twin: Callable[..., Tensor], inputs: Sequence[Tensor], grad: Tensor) -> list[Tensor]:
    """The result in float64, then the gradients of all inputs."""
    leaves = [t.double().detach().requires_grad_() for t in inputs]
    out = twin(*leaves)
    return [out.detach(), *torch.autograd.grad(out, leaves, grad.double())]


def _close(got: Tensor, wanted: Tensor) -> None:
    """Within the rounding of a result, and of float32 inside, at the size of the largest element."""
    bar = 2.0**-8 if got.dtype == torch.bfloat16 else 2e-5
    size = max(float(wanted.abs().max()), 1e-3)
    torch.testing.assert_close(got.double(), wanted, atol=max(bar * size / 16, 1e-5 * size), rtol=bar)


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize(
    ("two_sided", "binary"), [(False, False), (True, False), (False, True), (True, True)]
)
@pytest.mark.parametrize("shape", SHAPES)
def test_release(shape: tuple[int, int], two_sided: bool, binary: bool, dtype: torch.dtype) -> None:
    (n, C), kind = shape, {"two_sided": two_sided, "binary": binary}
    x, theta, grad = _slice(n, C, dtype, 0), _theta(C), _draw(n, C, seed=1).to(dtype)
    wanted, d_x, d_theta = _exact(lambda *a: release_reference(*a, **kind), (x, theta), grad)
    out = release_triton(x, theta, None, None, **kind)
    assert out.dtype == dtype and out.is_contiguous()
    _close(out, wanted)
    got_x, got_t = release_backward_triton(grad, x, theta, None, None, **kind, most=2)
    _close(got_x, d_x)
    _close(got_t * theta.sign(), d_theta)


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("binary", [False, True])
@pytest.mark.parametrize("shape", SHAPES)
def test_product(shape: tuple[int, int], binary: bool, dtype: torch.dtype) -> None:
    n, C = shape
    g, u = (_slice(n, C, dtype, seed) for seed in range(2))
    thetas, grad = (_theta(C), _theta(C, 8)), _draw(n, C, seed=3).to(dtype)
    twin = _exact(lambda *a: release_product_reference(*a, binary=binary), (g, u, *thetas), grad)
    kind = {"two_sided": False, "binary": binary}
    _close(release_triton(g, thetas[0], u, thetas[1], **kind), twin[0])
    d_g, d_t_g, d_u, d_t_u = release_backward_triton(grad, g, thetas[0], u, thetas[1], **kind, most=2)
    ours = (d_g, d_u, d_t_g * thetas[0].sign(), d_t_u * thetas[1].sign())
    for got, wanted in zip(ours, twin[1:], strict=True):
        _close(got, wanted)


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("binary", [False, True])
@pytest.mark.parametrize("shape", SHAPES)
def test_norm_release_gate(shape: tuple[int, int], binary: bool, dtype: torch.dtype) -> None:
    n, C = shape
    s, z = _slice(n, C, dtype, 0), _slice(n, C, dtype, 1)
    gain, theta, grad = 1 + _draw(C, seed=2, scale=0.2), _theta(C), _draw(n, C, seed=3).to(dtype)
    twin = _exact(lambda *a: norm_release_gate_reference(*a, 1e-5, binary=binary), (s, gain, theta, z), grad)
    out, scale = gate_triton(s, gain, theta, z, 1e-5, binary=binary)
    _close(out, twin[0])
    d_s, d_gain, d_t, d_z = gate_backward_triton(grad, s, gain, theta, z, scale, binary=binary, most=2)
    for got, wanted in zip((d_s, d_gain, d_t * theta.sign(), d_z), twin[1:], strict=True):
        _close(got, wanted)


@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize("binary", [False, True])
def test_values_of_any_size(binary: bool, size: str) -> None:
    """Thresholds are of the size of what is compared with them."""
    scale, kind = SIZES[size], {"two_sided": False, "binary": binary}
    x, u, theta, theta_u = _draw(5, 40, scale=scale), _draw(5, 40, seed=1), _theta(40) * scale, _theta(40, 8)
    grad = _draw(5, 40, seed=2)
    twin = _exact(lambda *a: release_product_reference(*a, binary=binary), (x, u, theta, theta_u), grad)
    d_x, d_t, d_u, d_t_u = release_backward_triton(grad, x, theta, u, theta_u, **kind)
    ours = release_triton(x, theta, u, theta_u, **kind), d_x, d_u, d_t * theta.sign(), d_t_u * theta_u.sign()
    for i, (got, wanted) in enumerate(zip(ours, twin, strict=True)):
        assert_alike(got, wanted, 1e-5, f"product {i}")

    gain, theta = 1 + _draw(40, seed=3, scale=0.2), _theta(40) * min(1.0, scale / 1e-5**0.5)
    twin = _exact(lambda *a: norm_release_gate_reference(*a, 1e-5, binary=binary), (x, gain, theta, u), grad)
    out, scales = gate_triton(x, gain, theta, u, 1e-5, binary=binary)
    d_s, d_gain, d_t, d_z = gate_backward_triton(grad, x, gain, theta, u, scales, binary=binary)
    for i, (got, wanted) in enumerate(zip((out, d_s, d_gain, d_t * theta.sign(), d_z), twin, strict=True)):
        assert_alike(got, wanted, 2e-5, f"gate {i}")


def test_extremes_stay_finite() -> None:
    s = torch.tensor([[1e-38, -1e-38, 1e-44, 3e18, -3e18, 0.0, 90.0, -90.0], [0.0] * 8])
    theta, ones = torch.tensor([0.0, 0.1, 0.0, 1e10, -1.0, 0.0, 50.0, 0.1]), torch.ones(8)
    for binary in (False, True):
        out, scale = gate_triton(s, ones, theta, -s, 1e-5, binary=binary)
        found = gate_backward_triton(torch.ones(2, 8), s, ones, theta, -s, scale, binary=binary)
        assert all(t.isfinite().all() for t in (out, scale, *found))


@pytest.mark.parametrize("binary", [False, True])
def test_what_is_not_a_number_stays_visible(binary: bool) -> None:
    x, theta = torch.tensor([[torch.nan, 1.0]]), torch.full((2,), 0.25)
    for two_sided in (False, True):
        kind = {"two_sided": two_sided, "binary": binary}
        assert release_triton(x, theta, None, None, **kind).isnan().tolist() == [[True, False]]
        assert release_triton(x, theta, x + 1, theta, **kind).isnan().tolist() == [[True, False]]
    assert gate_triton(x, theta, theta, torch.ones(1, 2), 1e-5, binary=binary)[0].isnan().all()


def test_tiles_and_strips_cover_every_row_once() -> None:
    for n in (1, 3, 511, 513, 32_768):
        for C in (1, 48, 3584, 4096):
            for columns in (None, 1024):
                rows, block = tile(n, C, columns)
                number, per_strip = strips(n, rows, STRIPS)
                assert per_strip % rows == 0 and number <= STRIPS
                assert (number - 1) * per_strip < n <= number * per_strip
                assert rows * block <= max(ELEMENTS, block)
