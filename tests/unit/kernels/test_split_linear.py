"""A linear map in parts: values and gradients of one product that is cut afterwards."""

import pytest
import torch
from torch.nn import functional as F

from trainer_core.kernels.split_linear import split_linear


def leaves(dtype: torch.dtype, *shape: int) -> tuple[torch.Tensor, torch.Tensor]:
    generator = torch.Generator().manual_seed(0)
    return (
        torch.randn(*shape, 6, generator=generator, dtype=torch.float64).to(dtype).requires_grad_(),
        torch.randn(12, 6, generator=generator, dtype=torch.float64).to(dtype).requires_grad_(),
    )


def pulled(parts: tuple[torch.Tensor, ...], used: int) -> torch.Tensor:
    """A scalar that depends on the first parts in different ways."""
    return sum(((i + 1) * part.square()).sum() for i, part in enumerate(parts[:used]))


@pytest.mark.parametrize("sizes", [(5, 4, 3), (12,), (1, 11)])
@pytest.mark.parametrize("shape", [(2, 7), (5,), (1, 1), (0, 3)])
def test_parts_are_slices_of_the_whole_product(sizes: tuple[int, ...], shape: tuple[int, ...]) -> None:
    x, weight = leaves(torch.float64, *shape)
    parts, wanted = split_linear(x, weight, sizes), F.linear(x, weight).split(sizes, dim=-1)
    for got, part in zip(parts, wanted, strict=True):
        torch.testing.assert_close(got, part, rtol=1e-14, atol=1e-14)
        assert got.is_contiguous()
    for used in range(1, len(sizes) + 1):  # what nobody uses has no gradient
        got, expected = (
            torch.autograd.grad(pulled(of, used), (x, weight), retain_graph=True) for of in (parts, wanted)
        )
        torch.testing.assert_close(got, expected, rtol=1e-13, atol=1e-13)


def test_slices_of_something_wider_have_gradients() -> None:
    x, weight = leaves(torch.float64, 2, 4)
    wide = torch.cat((x, x), dim=-1)
    got = torch.autograd.grad(pulled(split_linear(wide[..., 3:9], weight, (4, 8)), 2), (x, weight))
    expected = torch.autograd.grad(pulled(F.linear(wide[..., 3:9], weight).split((4, 8), -1), 2), (x, weight))
    torch.testing.assert_close(got, expected)


def test_narrow_gradients_are_near_those_in_float64() -> None:
    x, weight = leaves(torch.bfloat16, 3, 50)
    got = torch.autograd.grad(pulled(split_linear(x, weight, (4, 4, 4)), 3), (x, weight))
    exact = [t.detach().double().requires_grad_() for t in (x, weight)]
    expected = torch.autograd.grad(pulled(split_linear(*exact, (4, 4, 4)), 3), exact)
    for narrow, wanted in zip(got, expected, strict=True):
        assert narrow.dtype is torch.bfloat16
        assert (narrow.double() - wanted).norm() < 0.01 * wanted.norm()


def test_two_backward_passes_have_equal_bits() -> None:
    x, weight = leaves(torch.float32, 8, 64)
    first, second = (
        torch.autograd.grad(pulled(split_linear(x, weight, (5, 4, 3)), 3), (x, weight)) for _ in range(2)
    )
    assert all(torch.equal(a, b) for a, b in zip(first, second, strict=True))
