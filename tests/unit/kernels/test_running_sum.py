"""Running sums: both forms add the same, in float64 to its precision, and both have the right gradient."""

import pytest
import torch

from trainer_core.kernels.running_sum import CHUNK, running_sum, running_sum_by_products

LENGTHS = (1, 2, CHUNK - 1, CHUNK, CHUNK + 1, 3 * CHUNK, 200)


@pytest.mark.parametrize("form", [running_sum, running_sum_by_products])
@pytest.mark.parametrize("T", LENGTHS)
def test_values_and_gradients(form, T: int) -> None:
    g = torch.Generator().manual_seed(T)
    x = torch.randn(2, 3, T, generator=g, dtype=torch.float64, requires_grad=True)
    y = form(x)
    total, wanted = torch.zeros(2, 3, dtype=torch.float64), []
    for t in range(T):
        total = total + x[..., t].detach()
        wanted.append(total)
    torch.testing.assert_close(y, torch.stack(wanted, -1), atol=1e-13, rtol=0)
    pull = torch.randn(2, 3, T, generator=g, dtype=torch.float64)
    (grad,) = torch.autograd.grad(y, x, pull)
    torch.testing.assert_close(grad, pull.flip(-1).cumsum(-1).flip(-1), atol=1e-12, rtol=0)


def test_a_long_sum_of_small_steps_in_float32() -> None:
    """A clock over the longest row: neighbours still differ by their step."""
    x = torch.full((1, 32_768), 1 / 64)
    for form in (running_sum, running_sum_by_products):
        assert torch.equal(form(x)[0], torch.arange(1, 32_769) / 64)


def test_products_trace_on_meta() -> None:
    x = torch.empty(2, 3, 130, device="meta", requires_grad=True)
    assert running_sum(x).shape == (2, 3, 130)
