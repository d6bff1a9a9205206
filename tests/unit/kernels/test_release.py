"""The release and its products equal their twins in values and gradients; thresholds may be anything."""

import itertools
import math
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor

from trainer_core.kernels.release import fired, norm_release_gate, release, release_product
from trainer_core.kernels.release.reference import (
    norm_release_gate_reference,
    release_product_reference,
    release_reference,
)

KINDS = [(False, False), (True, False), (False, True), (True, True)]


def _draw(*shape: int, seed: int = 0, dtype: torch.dtype = torch.float64, scale: float = 1.0) -> Tensor:
    values = torch.randn(shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)
    return (scale * values).to(dtype)


def _thetas(width: int, dtype: torch.dtype = torch.float64) -> Tensor:
    """Small, negative, large and zero ones."""
    theta = _draw(width, seed=90, scale=0.5)
    theta[0], theta[-1] = 0.0, 3.0
    return theta.to(dtype)


def _compare(
    ours: Callable[..., Tensor], twin: Callable[..., Tensor], inputs: list[Tensor], bar: float
) -> None:
    """Values and the gradients of every input, relative to the largest."""
    leaves = [t.clone().requires_grad_() for t in inputs]
    got, wanted = ours(*leaves), twin(*leaves)
    grad = _draw(*got.shape, seed=91, dtype=got.dtype)
    pairs = [(got, wanted)]
    pairs += zip(
        torch.autograd.grad(got, leaves, grad), torch.autograd.grad(wanted, leaves, grad), strict=True
    )
    for one, other in pairs:
        assert one.dtype == other.dtype and one.shape == other.shape
        size = max(float(other.detach().abs().max()), 1e-3)
        torch.testing.assert_close(one, other, atol=bar * size, rtol=bar)


BARS = [(torch.float64, 1e-12), (torch.float32, 2e-5)]


@pytest.mark.parametrize(("dtype", "bar"), BARS)
@pytest.mark.parametrize(("two_sided", "binary"), KINDS)
@pytest.mark.parametrize("shape", [(1, 1), (3, 7, 16), (65, 33)])
def test_release_equals_the_twin(
    shape: tuple[int, ...], two_sided: bool, binary: bool, dtype: torch.dtype, bar: float
) -> None:
    def of(function: Callable[..., Tensor]) -> Callable[..., Tensor]:
        return lambda x, theta: function(x, theta, two_sided=two_sided, binary=binary)

    inputs = [_draw(*shape, dtype=dtype), _thetas(shape[-1], dtype)]
    _compare(of(release), of(release_reference), inputs, bar)


@pytest.mark.parametrize(("dtype", "bar"), BARS)
@pytest.mark.parametrize("binary", [False, True])
@pytest.mark.parametrize("shape", [(1, 4), (3, 7, 16), (65, 33)])
@pytest.mark.parametrize("scale", [1e-4, 1.0, 1e3])
def test_norm_release_gate_equals_the_twin(
    shape: tuple[int, ...], scale: float, binary: bool, dtype: torch.dtype, bar: float
) -> None:
    inputs = [
        _draw(*shape, dtype=dtype, scale=scale),
        1 + _draw(shape[-1], seed=1, dtype=dtype, scale=0.3),
        _thetas(shape[-1], dtype),
        _draw(*shape, seed=2, dtype=dtype, scale=2.0),
    ]
    _compare(
        lambda *a: norm_release_gate(*a, 1e-5, binary=binary),
        lambda *a: norm_release_gate_reference(*a, 1e-5, binary=binary),
        inputs,
        bar,
    )


@pytest.mark.parametrize(("dtype", "bar"), BARS)
@pytest.mark.parametrize("binary", [False, True])
@pytest.mark.parametrize("shape", [(1, 1), (3, 7, 16), (65, 33)])
def test_release_product_equals_the_twin(
    shape: tuple[int, ...], binary: bool, dtype: torch.dtype, bar: float
) -> None:
    inputs = [_draw(*shape, seed=i, dtype=dtype) for i in range(2)]
    inputs += [_thetas(shape[-1], dtype), _thetas(shape[-1], dtype).flip(0)]
    _compare(
        lambda *a: release_product(*a, binary=binary),
        lambda *a: release_product_reference(*a, binary=binary),
        inputs,
        bar,
    )


def _calls() -> dict[str, tuple[Callable[..., Tensor], list[Tensor]]]:
    """Every operator with inputs of 33 rows, z and g being slices of something wider."""
    x, z = _draw(3, 11, 16), _draw(3, 11, 40, seed=1)[..., 8:24]
    gain, theta = 1 + 0.1 * _draw(16, seed=2), _thetas(16)
    return {
        "release": (lambda a, t: release(a, t), [z, theta]),
        "two-sided": (lambda a, t: release(a, t, two_sided=True), [z, theta]),
        "binary": (lambda a, t: release(a, t, binary=True), [z, theta]),
        "gate": (lambda *a: norm_release_gate(*a, 1e-5), [x, gain, theta, z]),
        "binary gate": (lambda *a: norm_release_gate(*a, 1e-5, binary=True), [x, gain, theta, z]),
        "product": (release_product, [z, x, theta, theta.flip(0)]),
        "binary product": (lambda *a: release_product(*a, binary=True), [z, x, theta, theta.flip(0)]),
    }


def _gradients(function: Callable[..., Tensor], inputs: list[Tensor]) -> tuple[Tensor, ...]:
    leaves = [t.detach().requires_grad_() for t in inputs]
    out = function(*leaves)
    grad = _draw(*out.shape, seed=3, dtype=torch.bfloat16).to(out.dtype)
    return (out.detach(), *torch.autograd.grad(out, leaves, grad))


@pytest.mark.parametrize("name", _calls())
def test_slices_and_repeats_give_the_same_bits(name: str) -> None:
    function, inputs = _calls()[name]
    first, second = _gradients(function, inputs), _gradients(function, [t.contiguous() for t in inputs])
    assert all(torch.equal(one, other) for one, other in zip(first, second, strict=True))
    with torch.no_grad():
        torch.testing.assert_close(function(*inputs), first[0], atol=1e-14, rtol=1e-14)


@pytest.mark.parametrize("name", _calls())
def test_bfloat16_activations_are_rounded_once(name: str) -> None:
    """Thresholds and gains stay in float32, as they do in training."""
    function, inputs = _calls()[name]
    narrow = [t.to(torch.bfloat16 if t.dim() == 3 else torch.float32) for t in inputs]
    for got, wanted, of in zip(
        _gradients(function, narrow),
        _gradients(function, [t.double() for t in narrow]),
        [narrow[0], *narrow],
        strict=True,
    ):
        assert got.dtype == of.dtype
        bar = 2.0**-8 + 1e-5 if got.dtype == torch.bfloat16 else 2.0**-7
        torch.testing.assert_close(got.double(), wanted, atol=bar * float(wanted.abs().max()) / 8, rtol=bar)


@pytest.mark.parametrize("name", _calls())
def test_they_trace_on_meta_tensors(name: str) -> None:
    function, inputs = _calls()[name]
    leaves = [t.to("meta").requires_grad_() for t in inputs]
    out = function(*leaves)
    out.backward(torch.empty_like(out))
    assert [leaf.grad.shape for leaf in leaves if leaf.grad is not None] == [t.shape for t in inputs]


@pytest.mark.parametrize("two_sided", [False, True])
def test_fired_is_where_something_is_released(two_sided: bool) -> None:
    x, theta = _draw(50, 8), _thetas(8)
    for binary in (False, True):
        released = release(x, theta, two_sided=two_sided, binary=binary)
        assert torch.equal(fired(x, theta, two_sided=two_sided), released != 0)
    assert fired(x, theta).dtype == torch.bool


def test_a_threshold_itself_releases_nothing() -> None:
    theta = torch.tensor([0.5, -0.5, 0.0])
    for binary in (False, True):
        assert not release(theta.abs(), theta, binary=binary).any()
        assert not release(-theta.abs(), theta, two_sided=True, binary=binary).any()


def _surrogate(x: float, theta: float) -> tuple[float, float]:
    """Gradients of x and theta by the formula, in plain arithmetic."""
    t = abs(theta)
    a = 4.0 if t <= 1 else 4.0 / t
    s = 1 / (1 + math.exp(-a * (x - t)))
    slope = (1 + t) * a * s * (1 - s)
    return slope, math.copysign(1.0, theta) * ((x > t) - slope)


@pytest.mark.parametrize("theta", [0.1, -0.7, 1.0, 2.5, -6.0])
@pytest.mark.parametrize("x", [-1.0, 0.3, 2.6, 7.0])
def test_the_surrogate_by_hand(x: float, theta: float) -> None:
    leaves = [torch.tensor([v], dtype=torch.float64, requires_grad=True) for v in (x, theta)]
    release(*leaves, binary=True).backward()
    got: list[Any] = [leaf.grad for leaf in leaves]
    assert [float(g) for g in got] == pytest.approx(_surrogate(x, theta), abs=1e-14)


def test_extremes_stay_finite() -> None:
    wide = torch.tensor([[1e-38, -1e-38, 1e-44, 3e18, -3e18, 0.0, 90.0, -90.0]])
    theta = torch.tensor([0.0, 0.1, 0.0, 1e10, -1.0, 0.0, 50.0, 0.1])
    for binary in (False, True):
        leaves = [wide.clone(), torch.ones(8), theta, -wide]
        results = _gradients(lambda *a, b=binary: norm_release_gate(*a, 1e-5, binary=b), leaves)
        assert all(result.isfinite().all() for result in results)
        assert not norm_release_gate(torch.zeros(2, 8), torch.ones(8), theta, wide.repeat(2, 1), 1e-5).any()


@pytest.mark.parametrize("binary", [False, True])
def test_what_is_not_a_number_stays_visible(binary: bool) -> None:
    """A step is 0 at NaN, so a binary release made a broken layer one that adds nothing."""
    x, theta = torch.tensor([[torch.nan, 1.0]]), torch.full((2,), 0.25)
    for of, two_sided in itertools.product((release, release_reference), (False, True)):
        assert of(x, theta, two_sided=two_sided, binary=binary).isnan().tolist() == [[True, False]]
    for product in (release_product, release_product_reference):
        assert product(x, x + 1, theta, theta, binary=binary).isnan().tolist() == [[True, False]]
    for gate in (norm_release_gate, norm_release_gate_reference):
        assert gate(x, theta, theta, torch.ones(1, 2), 1e-5, binary=binary).isnan().all()


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=str)
def test_any_distance_to_the_threshold_is_one(dtype: torch.dtype) -> None:
    least = torch.finfo(dtype).smallest_normal
    x = torch.tensor([[least / 4, -least / 4, 0.0, -0.0, 0.5, -0.5, torch.inf, -torch.inf]], dtype=dtype)
    released = release(x, torch.zeros(8, dtype=dtype), two_sided=True, binary=True)
    assert torch.equal(released, torch.tensor([[1.0, -1, 0, 0, 1, -1, 1, -1]], dtype=dtype))
    assert torch.equal(release(x, torch.zeros(8, dtype=dtype), binary=True), released.clamp(min=0))
