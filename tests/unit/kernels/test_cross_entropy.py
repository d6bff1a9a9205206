"""The chunked head's loss equals its twin in value and gradients, with ignored and impossible targets."""

import shutil

import pytest
import torch

from trainer_core.kernels.cross_entropy import fused, linear_cross_entropy, logits, op
from trainer_core.kernels.cross_entropy.reference import linear_cross_entropy_reference

C = op.CHUNK


def _inputs(n: int, V: int, dtype: torch.dtype, d: int = 16) -> tuple[torch.Tensor, ...]:
    g = torch.Generator().manual_seed(n)
    hidden = torch.randn(n, d, generator=g).to(dtype).requires_grad_()
    weight = torch.randn(V, d, generator=g).to(dtype).requires_grad_()
    targets = torch.randint(V, (n,), generator=g)
    targets[::7] = -100
    return hidden, weight, targets


@pytest.mark.parametrize("n", [2, C - 1, C, C + 1, 3 * C + 5])
def test_equals_the_twin(n: int) -> None:
    for dtype, bar in ((torch.float64, 1e-12), (torch.float32, 1e-5)):
        hidden, weight, targets = _inputs(n, 97, dtype)
        loss = linear_cross_entropy(hidden, weight, targets)
        twin = linear_cross_entropy_reference(hidden, weight, targets)
        assert loss.dtype == dtype
        torch.testing.assert_close(loss, twin, atol=0, rtol=bar)
        grads = torch.autograd.grad(loss, (hidden, weight))
        for got, expected in zip(grads, torch.autograd.grad(twin, (hidden, weight)), strict=True):
            torch.testing.assert_close(got, expected, atol=bar, rtol=bar)


def test_gradcheck_scales_with_the_incoming_gradient(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(op, "CHUNK", 4)
    hidden, weight, targets = _inputs(9, 5, torch.float64, d=3)
    assert torch.autograd.gradcheck(lambda h, w: 0.25 * linear_cross_entropy(h, w, targets), (hidden, weight))


def test_without_gradients_the_same_number() -> None:
    hidden, weight, targets = _inputs(C + 9, 50, torch.float32)
    with torch.no_grad():
        plain = linear_cross_entropy(hidden, weight, targets)
    assert torch.equal(plain, linear_cross_entropy(hidden, weight, targets))


def test_only_ignored_targets_give_exactly_zero() -> None:
    hidden, weight, targets = _inputs(10, 5, torch.float32)
    loss = linear_cross_entropy(hidden, weight, torch.full_like(targets, -100))
    loss.backward()
    assert loss.item() == 0.0
    assert not hidden.grad.any() and not weight.grad.any()


def test_a_target_whose_probability_underflows_has_its_true_loss() -> None:
    hidden = torch.tensor([[1.0]])
    weight = torch.tensor([[0.0], [500.0], [-300.0]])
    assert linear_cross_entropy(hidden, weight, torch.tensor([2])).item() == 800.0


def test_a_gradient_for_one_input_only() -> None:
    hidden, weight, targets = _inputs(6, 5, torch.float64)
    loss = linear_cross_entropy(hidden, weight.detach(), targets)
    twin = linear_cross_entropy_reference(hidden, weight.detach(), targets)
    torch.testing.assert_close(torch.autograd.grad(loss, hidden), torch.autograd.grad(twin, hidden))


def test_opcheck() -> None:
    hidden, weight, targets = _inputs(40, 30, torch.float32)
    checks = ("test_schema", "test_autograd_registration", "test_faketensor")
    torch.library.opcheck(op.loss_and_gradients, (hidden, weight, targets), test_utils=checks)
    torch.library.opcheck(op.loss_alone, (hidden.detach(), weight.detach(), targets), test_utils=checks)


@pytest.fixture
def uncompiled(monkeypatch: pytest.MonkeyPatch) -> None:
    """The compiler's source itself stands for what it makes of it."""
    monkeypatch.setattr(logits, "compiled", lambda function: function)
    logits._compiled.cache_clear()
    yield
    logits._compiled.cache_clear()


@pytest.mark.parametrize("n", [2, C + 1])
def test_the_form_for_the_compiler_equals_the_twin(uncompiled: None, n: int) -> None:
    for dtype, bar in ((torch.float64, 1e-12), (torch.float32, 1e-5)):
        hidden, weight, targets = _inputs(n, 97, dtype)
        with fused():
            loss = linear_cross_entropy(hidden, weight, targets)
            with torch.no_grad():
                assert torch.equal(loss, linear_cross_entropy(hidden, weight, targets))
        twin = linear_cross_entropy_reference(hidden, weight, targets)
        torch.testing.assert_close(loss, twin, atol=0, rtol=bar)
        grads = torch.autograd.grad(loss, (hidden, weight))
        for got, expected in zip(grads, torch.autograd.grad(twin, (hidden, weight)), strict=True):
            torch.testing.assert_close(got, expected, atol=bar, rtol=bar)
    hidden, weight = torch.tensor([[1.0]]), torch.tensor([[0.0], [500.0], [-300.0]])
    with fused():
        assert linear_cross_entropy(hidden, weight, torch.tensor([2])).item() == 800.0


@pytest.mark.skipif(shutil.which("g++") is None, reason="torch compiles with a C++ compiler")
@pytest.mark.filterwarnings("ignore:`torch.jit:DeprecationWarning")  # the compiler's own imports
def test_compiled_it_gives_the_same_numbers_and_a_trace_sees_the_other_form() -> None:
    """Torch's compiler really runs: some seconds."""
    hidden, weight, targets = _inputs(40, 97, torch.float32)
    plain = linear_cross_entropy(hidden, weight, targets)
    with fused():
        loss = linear_cross_entropy(hidden, weight, targets)
        again = linear_cross_entropy(hidden, weight, targets)
        meta = linear_cross_entropy(hidden.to("meta"), weight.to("meta"), targets.to("meta"))
    assert meta.is_meta and not logits.is_fused(hidden)
    torch.testing.assert_close(loss, plain, atol=0, rtol=1e-6)
    assert torch.equal(loss, again)
    grads = torch.autograd.grad(loss, (hidden, weight))
    for got, expected in zip(grads, torch.autograd.grad(plain, (hidden, weight)), strict=True):
        torch.testing.assert_close(got, expected, atol=1e-6, rtol=1e-5)
