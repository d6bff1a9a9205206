"""Causal attention equals its twin in values and gradients, is exactly causal, and is a sound custom op."""

import pytest
import torch

from trainer_core.kernels.attention import block_causal, causal_attention, flash, op
from trainer_core.kernels.attention.reference import causal_attention_reference
from trainer_core.kernels.target import traced_for

B = block_causal.BLOCK
LENGTHS = [1, 2, B - 1, B, B + 1, 2 * B, 3 * B + 17]


def _inputs(T: int, dtype: torch.dtype, H: int = 3, d: int = 8) -> list[torch.Tensor]:
    g = torch.Generator().manual_seed(T)
    return [torch.randn(2, H, T, d, generator=g).to(dtype).requires_grad_() for _ in range(4)]


def _gradients(fn, q, k, v, grad):
    out = fn(q, k, v)
    return out, torch.autograd.grad(out, (q, k, v), grad.detach())


@pytest.mark.parametrize("save_up_to", [0, 10_000], ids=["recompute", "saved"])
@pytest.mark.parametrize("T", LENGTHS)
def test_equals_the_twin(T: int, save_up_to: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(op, "SAVE_UP_TO", save_up_to)
    for dtype, bar in ((torch.float64, 1e-12), (torch.float32, 2e-5)):
        q, k, v, grad = _inputs(T, dtype)
        out, grads = _gradients(causal_attention, q, k, v, grad)
        twin, twin_grads = _gradients(causal_attention_reference, q, k, v, grad)
        torch.testing.assert_close(out, twin, atol=bar, rtol=bar)
        for got, expected in zip(grads, twin_grads, strict=True):
            torch.testing.assert_close(got, expected, atol=bar, rtol=bar)


@pytest.mark.parametrize("T", [1, 5])
def test_gradcheck(T: int) -> None:
    q, k, v, _ = _inputs(T, torch.float64, H=1, d=4)
    assert torch.autograd.gradcheck(causal_attention, (q, k, v))


def test_gradcheck_over_several_blocks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(block_causal, "BLOCK", 3)
    q, k, v, _ = _inputs(7, torch.float64, H=1, d=2)
    assert torch.autograd.gradcheck(causal_attention, (q, k, v))
    monkeypatch.setattr(op, "SAVE_UP_TO", 0)
    assert torch.autograd.gradcheck(causal_attention, (q, k, v))


@pytest.mark.parametrize("cut", [1, 100, B, B + 40])
def test_later_tokens_change_no_bit_of_earlier_outputs(cut: int) -> None:
    q, k, v, other = (x.detach() for x in _inputs(2 * B + 9, torch.float32))
    before = causal_attention(q, k, v)
    changed = [torch.cat([x[:, :, :cut], 100 * other[:, :, cut:]], 2) for x in (q, k, v)]
    after = causal_attention(*changed)
    assert torch.equal(before[:, :, :cut], after[:, :, :cut])
    assert not torch.equal(before[:, :, cut:], after[:, :, cut:])


def test_large_scores_stay_finite() -> None:
    q, k, v, grad = _inputs(B + 3, torch.float32)
    big_q, big_k = (q.detach() * 1e3).requires_grad_(), (k.detach() * 1e3).requires_grad_()
    out, grads = _gradients(causal_attention, big_q, big_k, v, grad)
    assert out.isfinite().all() and all(g.isfinite().all() for g in grads)


def test_repeats_bit_for_bit() -> None:
    q, k, v, grad = _inputs(B + 5, torch.float32)
    first, second = (_gradients(causal_attention, q, k, v, grad) for _ in range(2))
    assert torch.equal(first[0], second[0])
    assert all(torch.equal(a, b) for a, b in zip(first[1], second[1], strict=True))


def test_strided_inputs_equal_contiguous_ones() -> None:
    x = torch.randn(2, 40, 3, 8)
    strided = x.transpose(1, 2)
    assert torch.equal(
        causal_attention(strided, strided, strided),
        causal_attention(*[strided.contiguous()] * 3),
    )


COUNTER = torch.tensor([3, 1, 4])


@pytest.mark.parametrize("save_up_to", [0, 10_000], ids=["recompute", "saved"])
@pytest.mark.parametrize("T", [1, B, B + 1, 2 * B + 17])
def test_dropped_probabilities_are_those_of_the_twin(
    T: int, save_up_to: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(op, "SAVE_UP_TO", save_up_to)
    q, k, v, grad = _inputs(T, torch.float64)

    def dropped(fn):
        return lambda q, k, v: fn(q, k, v, COUNTER, 40, 0.3)

    out, grads = _gradients(dropped(causal_attention), q, k, v, grad)
    twin, twin_grads = _gradients(dropped(causal_attention_reference), q, k, v, grad)
    torch.testing.assert_close(out, twin, atol=1e-12, rtol=1e-12)
    for got, expected in zip(grads, twin_grads, strict=True):
        torch.testing.assert_close(got, expected, atol=1e-12, rtol=1e-12)


def test_dropout_drops_its_share_and_keeps_the_mean() -> None:
    """Values of one: each output is the sum of the kept probabilities."""
    q, k, v, _ = (x.detach() for x in _inputs(2 * B, torch.float32, H=8))
    out = causal_attention(q, k, torch.ones_like(v), COUNTER, 0, 0.25)[..., 0]
    assert out.mean().item() == pytest.approx(1.0, abs=0.01)
    assert out[:, :, 0].unique().tolist() == pytest.approx([0.0, 4 / 3])
    other = causal_attention(q, k, torch.ones_like(v), COUNTER + 1, 0, 0.25)[..., 0]
    assert not torch.equal(out, other)


@pytest.mark.parametrize("save", [True, False])
@pytest.mark.parametrize("counter", [None, COUNTER], ids=["whole", "dropped"])
def test_opcheck(save: bool, counter: torch.Tensor | None) -> None:
    q, k, v = (torch.randn(2, 150, 4, requires_grad=True) for _ in range(3))
    checks = ("test_schema", "test_autograd_registration", "test_faketensor")
    torch.library.opcheck(op.attention, (q, k, v, save, counter, 7, 0.1), test_utils=checks)


def test_meta_sees_the_saved_probabilities() -> None:
    q, k, v = (torch.empty(6, 200, 4, device="meta") for _ in range(3))
    assert op.attention(q, k, v, True, None, 0, 0.0)[2].numel() == 6 * (128 * 128 + 72 * 200)
    assert op.attention(q, k, v, False, None, 0, 0.0)[2].numel() == 0


@pytest.fixture
def flash_on_cpu():
    """Torch's flash attention of a GPU, made of a CPU's behind the same names; what it was called with."""
    calls = []

    def forward(q, k, v, dropout_p=0.0, is_causal=False, return_debug_mask=False, *, scale=None):
        calls.append(((q, k, v), dropout_p, is_causal, return_debug_mask, scale))
        out, lse = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu(q, k, v, dropout_p, is_causal)
        none = q.new_empty(0)
        out = torch.empty_like(q).copy_(out)
        return out, lse.contiguous(), none, none, q.shape[2], k.shape[2], none, none, none

    def backward(
        grad,
        q,
        k,
        v,
        out,
        lse,
        starts_q,
        starts_k,
        max_q,
        max_k,
        dropout_p,
        is_causal,
        state,
        unused,
        scale=None,
    ):
        calls.append(((grad, q, k, v), starts_q, starts_k, max_q, max_k, dropout_p, is_causal, scale))
        assert state.shape == (2,) and unused.shape == () and state.dtype == unused.dtype == torch.uint64
        return torch.ops.aten._scaled_dot_product_flash_attention_for_cpu_backward(
            *(grad, q, k, v, out, lse, dropout_p, is_causal)
        )

    with torch.library._scoped_library("aten", "IMPL") as aten:
        aten.impl("_scaled_dot_product_flash_attention", forward, "CPU")
        aten.impl("_scaled_dot_product_flash_attention_backward", backward, "CPU")
        yield calls


@pytest.mark.parametrize("layout", ["heads apart", "a projection", "a slice", "unaligned"])
def test_flash_equals_the_twin(layout: str, flash_on_cpu) -> None:
    """Values and gradients, with the layout of q, without a copy where the kernels take it."""
    g, d, T = torch.Generator().manual_seed(5), 16, 150

    def draw(*shape: int) -> torch.Tensor:
        return torch.randn(shape, generator=g, dtype=torch.float64)

    q, k, v, grad = {
        "heads apart": lambda: draw(4, 2, 3, T, d).unbind(0),
        "a projection": lambda: draw(4, 2, T, 3, d).transpose(2, 3).unbind(0),
        "a slice": lambda: [x.unflatten(-1, (3, d)).transpose(1, 2) for x in draw(2, T, 192).chunk(4, -1)],
        "unaligned": lambda: draw(4, 2, 3, T, d + 1)[..., 1:].unbind(0),
    }[layout]()
    leaves = [x.detach().requires_grad_() for x in (q, k, v)]
    out, grads = _gradients(lambda *x: flash.flash_attention(*x), *leaves, grad)
    twin, twin_grads = _gradients(causal_attention_reference, *leaves, grad)
    torch.testing.assert_close(out, twin, atol=1e-12, rtol=1e-12)
    for got, expected in zip(grads, twin_grads, strict=True):
        torch.testing.assert_close(got, expected, atol=1e-12, rtol=1e-12)
    (first, *settings), (second, *settings_again) = flash_on_cpu
    assert settings == [0.0, True, False, None]
    assert settings_again == [None, None, T, T, 0.0, True, None]
    given = [x.data_ptr() for x in (q, k, v)]
    copied = layout == "unaligned"
    assert ([x.data_ptr() for x in first] == given) is not copied
    assert ([x.data_ptr() for x in second] == [grad.data_ptr(), *given]) is not copied
    assert out.stride() == torch.empty_like(first[0]).stride()


def test_flash_serves_narrow_heads_on_a_gpu_alone() -> None:
    def serves(d: int, dtype: torch.dtype, k_heads: int = 3) -> bool:
        q = torch.empty(2, 3, 5, d, dtype=dtype, device="meta")
        return flash.serves(q, q[:, :k_heads], q)

    narrow = torch.bfloat16
    assert not serves(64, narrow)
    with traced_for("cuda"):
        assert serves(8, narrow) and serves(64, torch.float16) and serves(256, narrow)
        assert not serves(264, narrow) and not serves(12, narrow) and not serves(64, torch.float32)
        assert not serves(64, narrow, k_heads=1)
    assert not flash.serves(*(torch.empty(2, 3, 5, 64, dtype=narrow) for _ in range(3)))


@pytest.mark.parametrize("p", [0.0, 0.1])
def test_a_trace_for_a_gpu_takes_flash_unless_it_drops(p: float) -> None:
    """Saved are queries, keys, values, result and log-sum-exp, with the layout of a projection throughout."""
    with traced_for("cuda"):
        x = torch.empty(2, 300, 3, 4, 16, dtype=torch.bfloat16, device="meta", requires_grad=True)
        q, k, v = x.permute(2, 0, 3, 1, 4).unbind(0)
        out = causal_attention(q, k, v, torch.empty(3, dtype=torch.int64, device="meta"), 0, p)
        assert out.shape == (2, 4, 300, 16)
        if p:
            return
        assert out.transpose(1, 2).is_contiguous()
        saved = out.grad_fn.saved_tensors
        assert [s.shape for s in saved] == [(2, 4, 300, 16)] * 4 + [(2, 4, 300)]
        assert saved[-1].dtype == torch.float32
        (grad,) = torch.autograd.grad(out, x, torch.empty_like(out))
        assert grad.shape == x.shape and grad.dtype == torch.bfloat16


def test_flash_opcheck(flash_on_cpu) -> None:
    q, k, v = (torch.randn(2, 3, 20, 8, requires_grad=True) for _ in range(3))
    checks = ("test_schema", "test_autograd_registration", "test_faketensor")
    torch.library.opcheck(flash.flash, (q, k, v), test_utils=checks)
