"""The causal convolution equals its twin in values, states and gradients, in one piece or in several."""

import pytest
import torch
from torch import Tensor

from trainer_core.kernels.conv import causal_conv_silu, tiled
from trainer_core.kernels.conv.reference import causal_conv_silu_reference


def _draw(*shape: int, seed: int = 0, dtype: torch.dtype = torch.float64) -> Tensor:
    values = torch.randn(shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)
    return values.to(dtype)


def _inputs(B: int, T: int, C: int, W: int, dtype: torch.dtype, state: bool) -> list[Tensor]:
    inputs = [_draw(B, T, C, dtype=dtype), _draw(C, W, seed=1, dtype=dtype)]
    return inputs + ([_draw(B, W - 1, C, seed=2, dtype=dtype)] if state else [])


SHAPES = [
    (1, 1, 1, 4),
    (2, 2, 3, 4),
    (3, 3, 5, 4),
    (2, 17, 8, 4),
    (1, 300, 4, 4),
    (2, 9, 4, 2),
    (2, 5, 3, 3),
]


@pytest.mark.parametrize(("dtype", "bar"), [(torch.float64, 1e-12), (torch.float32, 2e-5)])
@pytest.mark.parametrize("state", [False, True])
@pytest.mark.parametrize("shape", SHAPES)
def test_equals_the_twin(
    shape: tuple[int, int, int, int], state: bool, dtype: torch.dtype, bar: float
) -> None:
    leaves = [t.requires_grad_() for t in _inputs(*shape, dtype, state)]
    (got, after), (wanted, wanted_after) = causal_conv_silu(*leaves), causal_conv_silu_reference(*leaves)
    assert torch.equal(after, wanted_after) and not after.requires_grad
    torch.testing.assert_close(got, wanted, atol=bar, rtol=bar)
    grad = _draw(*got.shape, seed=3, dtype=dtype)
    ours, theirs = (torch.autograd.grad(out, leaves, grad) for out in (got, wanted))
    for one, other in zip(ours, theirs, strict=True):
        assert one.shape == other.shape
        torch.testing.assert_close(one, other, atol=bar * max(1.0, float(other.abs().max())), rtol=bar)


@pytest.mark.parametrize("size", [1, 12, 40, 200], ids=["a token", "two tokens", "a piece", "some rows"])
@pytest.mark.parametrize("state", [False, True])
def test_tiles_of_any_size(size: int, state: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tiled, "TILE", size)
    leaves = [t.requires_grad_() for t in _inputs(5, 13, 6, 4, torch.float64, state)]
    grad = _draw(5, 13, 6, seed=3)
    got, wanted = (of(*leaves)[0] for of in (causal_conv_silu, causal_conv_silu_reference))
    torch.testing.assert_close(got, wanted, atol=1e-13, rtol=1e-13)
    for one, other in zip(*(torch.autograd.grad(y, leaves, grad) for y in (got, wanted)), strict=True):
        torch.testing.assert_close(one, other, atol=1e-12, rtol=1e-12)


@pytest.mark.parametrize("cuts", [(1,) * 11, (5, 6), (2, 1, 8)])
def test_pieces_with_the_state_between_them_give_the_whole(cuts: tuple[int, ...]) -> None:
    x, taps = _inputs(2, 11, 6, 4, torch.float64, False)
    whole, end = causal_conv_silu(x, taps)
    state, pieces = None, []
    for piece in x.split(cuts, dim=1):
        out, state = causal_conv_silu(piece, taps, state)
        pieces.append(out)
    torch.testing.assert_close(torch.cat(pieces, dim=1), whole, atol=1e-14, rtol=1e-14)
    assert state is not None and torch.equal(state, end)


def test_no_token_sees_a_later_one() -> None:
    x, taps = _inputs(1, 9, 4, 4, torch.float32, False)
    other = x.clone()
    other[:, 5:] += 1
    assert torch.equal(causal_conv_silu(x, taps)[0][:, :5], causal_conv_silu(other, taps)[0][:, :5])


def test_slices_and_repeats_give_the_same_bits() -> None:
    full, taps, grad = (
        _draw(2, 9, 20, dtype=torch.float32),
        _draw(6, 4, dtype=torch.float32),
        _draw(2, 9, 6).float(),
    )

    def run(x: Tensor) -> tuple[Tensor, ...]:
        leaves = (x.detach().requires_grad_(), taps.detach().requires_grad_())
        out, after = causal_conv_silu(*leaves)
        assert out.is_contiguous() and after.untyped_storage().nbytes() == after.nbytes, "not the whole row"
        return (out.detach(), *torch.autograd.grad(out, leaves, grad))

    first, second = run(full[..., 7:13]), run(full[..., 7:13].contiguous())
    assert all(torch.equal(one, other) for one, other in zip(first, second, strict=True))
    with torch.no_grad():
        torch.testing.assert_close(causal_conv_silu(full[..., 7:13], taps)[0], first[0])


@pytest.mark.parametrize("state", [False, True])
def test_bfloat16_activations_are_rounded_once(state: bool) -> None:
    narrow = [t.to(torch.bfloat16) for t in _inputs(2, 40, 8, 4, torch.float32, state)]
    narrow[1] = narrow[1].float()
    grad = _draw(2, 40, 8, seed=3).to(torch.bfloat16)
    results = []
    for leaves in (narrow, [t.double() for t in narrow]):
        leaves = [t.requires_grad_() for t in leaves]
        out, after = causal_conv_silu(*leaves)
        assert after.dtype == leaves[0].dtype
        results.append((out, *torch.autograd.grad(out, leaves, grad.to(out.dtype))))
    for got, wanted, of in zip(*results, [narrow[0], *narrow], strict=True):
        assert got.dtype == of.dtype
        bar = 2.0**-8 if got.dtype == torch.bfloat16 else 1e-5
        torch.testing.assert_close(got.double(), wanted, atol=1e-5, rtol=bar + 1e-5)


@pytest.mark.parametrize("state", [False, True])
def test_it_traces_on_meta_tensors(state: bool) -> None:
    leaves = [t.to("meta").requires_grad_() for t in _inputs(2, 9, 6, 4, torch.float32, state)]
    out, after = causal_conv_silu(*leaves)
    assert out.shape == (2, 9, 6) and after.shape == (2, 3, 6)
    out.sum().backward()
    assert [t.grad.shape for t in leaves if t.grad is not None] == [t.shape for t in leaves]
