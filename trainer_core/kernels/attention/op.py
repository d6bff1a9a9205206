"""Causal attention as an operator of our own, so that a trace on meta tensors sees its true saved sizes.

The operator owns shapes, autograd and what is saved; the arithmetic lives in `block_causal`. Where `flash`
serves a call it is made there instead.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from trainer_core.kernels.attention import block_causal, flash
from trainer_core.kernels.register import differentiate, operator

SAVE_UP_TO = 1024
"""Longest row whose probabilities are kept for the backward pass; longer rows recompute them."""


def _fake(
    q: Tensor, k: Tensor, v: Tensor, save: bool, counter: Tensor | None, site: int, p: float
) -> tuple[Tensor, Tensor, Tensor]:
    N, T, _ = q.shape
    saved = N * block_causal.saved_size(T) if save else 0
    return torch.empty_like(q), q.new_empty(N, 0 if save else T), q.new_empty(saved)


@operator("causal_attention", fake=_fake, composed=True)
def attention(
    q: Tensor, k: Tensor, v: Tensor, save: bool, counter: Tensor | None, site: int, p: float
) -> tuple[Tensor, Tensor, Tensor]:
    """Output, log-sum-exp and saved probabilities of q, k, v [N, T, d]."""
    return block_causal.forward(q, k, v, save, block_causal.dropping(counter, site, p))


def _fake_backward(
    grad: Tensor,
    q: Tensor,
    k: Tensor,
    v: Tensor,
    out: Tensor,
    lse: Tensor,
    saved: Tensor,
    counter: Tensor | None,
    site: int,
    p: float,
) -> tuple[Tensor, Tensor, Tensor]:
    return torch.empty_like(q), torch.empty_like(k), torch.empty_like(v)


@operator("causal_attention_backward", fake=_fake_backward, composed=True)
def attention_backward(
    grad: Tensor,
    q: Tensor,
    k: Tensor,
    v: Tensor,
    out: Tensor,
    lse: Tensor,
    saved: Tensor,
    counter: Tensor | None,
    site: int,
    p: float,
) -> tuple[Tensor, Tensor, Tensor]:
    """Gradients of q, k, v."""
    drop = block_causal.dropping(counter, site, p)
    return block_causal.backward(grad, q, k, v, out, lse, saved, drop)


def _setup(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, Tensor, Tensor]) -> None:
    q, k, v, _, counter, ctx.site, ctx.p = inputs
    out, lse, saved = output
    ctx.mark_non_differentiable(lse, saved)
    ctx.set_materialize_grads(False)
    ctx.save_for_backward(q, k, v, out, lse, saved, counter)


def _backward(ctx: Any, grad: Tensor | None, *_: Any) -> tuple[Tensor | None, ...]:
    nothing = (None,) * 4
    if grad is None:
        return None, None, None, *nothing
    return *attention_backward(grad.contiguous(), *ctx.saved_tensors, ctx.site, ctx.p), *nothing


differentiate("causal_attention", _backward, setup=_setup)


def causal_attention(
    q: Tensor, k: Tensor, v: Tensor, counter: Tensor | None = None, site: int = 0, p: float = 0.0
) -> Tensor:
    """softmax(q k^T / sqrt(d), s <= t) v for q, k, v of shape [B, H, T, d]; the result has the same shape.

    With a counter (see dropout) the probabilities are dropped with probability p, block i of BLOCK queries
    at site + i: give the next place of a model a site above those of the longest row.
    """
    if (counter is None or p == 0) and flash.serves(q, k, v):
        return flash.flash_attention(q, k, v)
    B, H, T, d = q.shape
    flat = [x.reshape(B * H, T, d).contiguous() for x in (q, k, v)]
    needs_grad = torch.is_grad_enabled() and (q.requires_grad or k.requires_grad or v.requires_grad)
    out: Tensor = attention(*flat, needs_grad and T <= SAVE_UP_TO, counter, site, p)[0]
    return out.view(B, H, T, d)
