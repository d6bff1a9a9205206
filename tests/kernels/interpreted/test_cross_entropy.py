"""The kernels of the head's loss equal torch's form in losses and gradients and hide nothing wrong."""

import pytest
import torch
from torch import Tensor
from torch.nn import functional as F

from trainer_core.kernels.cross_entropy import linear_cross_entropy, op
from trainer_core.kernels.cross_entropy.reference import linear_cross_entropy_reference
from trainer_core.kernels.cross_entropy.triton import gradient_triton, losses_triton

B = 64
DTYPES = [torch.float32, torch.bfloat16]
INF, NAN = float("inf"), float("nan")


def _logits(n: int, V: int, dtype: torch.dtype, scale: float = 1.0) -> tuple[Tensor, Tensor]:
    g = torch.Generator().manual_seed(n + V)
    logits = (scale * torch.randn(n, V, generator=g)).to(dtype)
    return logits, torch.randint(V, (n,), generator=g)


def _exact(logits: Tensor, targets: Tensor) -> tuple[Tensor, Tensor]:
    leaf = logits.double().requires_grad_()
    losses = F.cross_entropy(leaf, targets, ignore_index=-100, reduction="none")
    return losses.detach(), torch.autograd.grad(losses.sum(), leaf)[0]


def _ours(logits: Tensor, targets: Tensor, block: int = B) -> tuple[Tensor, Tensor]:
    gradient = logits.clone()
    losses, tops, sums = losses_triton(logits, targets, block=block)
    gradient_triton(gradient, targets, tops, sums, block=block)
    return losses, gradient


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("V", [1, 2, B - 1, B, B + 1, 3 * B + 5])
@pytest.mark.parametrize("scale", [1e-40, 1e-4, 1.0, 30.0, 1e30])
def test_losses_and_gradients(V: int, scale: float, dtype: torch.dtype) -> None:
    logits, targets = _logits(5, V, dtype, scale)
    targets[3] = -100
    (losses, gradient), (wanted, wanted_gradient) = _ours(logits, targets), _exact(logits, targets)
    torch.testing.assert_close(losses.double(), wanted, atol=1e-6, rtol=1e-6)
    bar = 2.0**-8 if dtype == torch.bfloat16 else 3e-6
    assert gradient.dtype == dtype
    torch.testing.assert_close(gradient.double(), wanted_gradient, atol=1e-6, rtol=bar)
    assert losses[3] == 0 and not gradient[3].any()


@pytest.mark.parametrize("n", [1, 31, 33])
def test_rows(n: int) -> None:
    logits, targets = _logits(n, 9, torch.float32)
    for got, wanted in zip(_ours(logits, targets, 16), _exact(logits, targets), strict=True):
        torch.testing.assert_close(got.double(), wanted, atol=1e-6, rtol=1e-6)


def test_targets_at_the_edges_of_blocks() -> None:
    logits, _ = _logits(6, 2 * B + 1, torch.float32)
    targets = torch.tensor([0, B - 1, B, 2 * B - 1, 2 * B, 1])
    for got, wanted in zip(_ours(logits, targets), _exact(logits, targets), strict=True):
        torch.testing.assert_close(got.double(), wanted, atol=1e-6, rtol=1e-6)


def test_impossible_logits() -> None:
    """Whole blocks of -inf before and after the others; an impossible target has an infinite loss."""
    logits, targets = _logits(3, 3 * B, torch.float32)
    logits[0, : 2 * B], logits[1, B:], logits[2, 5:] = -INF, -INF, -INF
    targets[0], targets[1], targets[2] = 2 * B + 3, 3, 2 * B
    (losses, gradient), (wanted, wanted_gradient) = _ours(logits, targets), _exact(logits, targets)
    torch.testing.assert_close(losses.double(), wanted, atol=1e-6, rtol=1e-6)
    assert losses[2] == INF
    torch.testing.assert_close(gradient.double(), wanted_gradient, atol=1e-6, rtol=1e-6)


@pytest.mark.parametrize("bad", [NAN, INF])
@pytest.mark.parametrize("at", [0, B - 1, B, 2 * B])
def test_what_is_not_a_number_reaches_the_loss(bad: float, at: int) -> None:
    logits, targets = _logits(3, 2 * B + 1, torch.float32)
    logits[1:, at] = bad
    targets[2] = -100
    losses, gradient = _ours(logits, targets)
    assert losses.isnan().tolist() == [False, True, False]
    assert gradient[1].isnan().any() and gradient[0].isfinite().all()
    assert losses[2] == 0 and not gradient[2].any()


def test_no_logit_at_all_or_a_target_outside_is_not_a_number() -> None:
    logits, targets = torch.full((1, 7), -INF), torch.zeros(1, dtype=torch.int64)
    assert _ours(logits, targets, 16)[0].isnan().all()
    assert _ours(torch.full((1, 7), NAN), targets, 16)[0].isnan().all()
    assert _ours(torch.zeros(3, 7), torch.tensor([-1, 7, 2]), 16)[0].isnan().tolist() == [True, True, False]


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_the_operator_between_its_products(dtype: torch.dtype, monkeypatch: pytest.MonkeyPatch) -> None:
    """Loss, gradients of hidden and weight, and the loss alone, over several chunks."""
    monkeypatch.setattr(op, "launches", lambda hidden: True)
    monkeypatch.setattr(op, "LAUNCHED_CHUNKS", {dtype: 8})
    g = torch.Generator().manual_seed(3)
    hidden = torch.randn(19, 16, generator=g).to(dtype).requires_grad_()
    weight = torch.randn(45, 16, generator=g).to(dtype).requires_grad_()
    targets = torch.randint(45, (19,), generator=g)
    targets[::7] = -100
    loss = 0.5 * linear_cross_entropy(hidden, weight, targets)
    exact = [t.detach().double().requires_grad_() for t in (hidden, weight)]
    wanted = 0.5 * linear_cross_entropy_reference(*exact, targets)
    bar = 2e-2 if dtype == torch.bfloat16 else 1e-5
    torch.testing.assert_close(loss.double(), wanted, atol=0, rtol=bar / 4)
    grads = torch.autograd.grad(loss, (hidden, weight)), torch.autograd.grad(wanted, exact)
    for got, expected in zip(*grads, strict=True):
        size = float(expected.abs().max())
        torch.testing.assert_close(got.double(), expected, atol=bar * size, rtol=bar)
    assert not grads[0][0][::7].any()
    with torch.no_grad():
        assert torch.equal(0.5 * linear_cross_entropy(hidden, weight, targets), loss)
