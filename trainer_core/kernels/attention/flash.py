"""Causal attention by torch's own flash attention, which torch keeps for every GPU: no score is stored.

The queries, keys, values and results keep whatever strides they have, so that heads need not be moved in
memory; saved are these and the log-sum-exp. The backward pass adds in a fixed order when torch's
deterministic algorithms are on.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from trainer_core.kernels.register import differentiate, operator
from trainer_core.kernels.target import target

WIDEST, PIECE = 256, 8
"""Widest head; what it, and the distances between vectors in memory, must be multiples of."""

BUILT = torch.backends.cuda.is_flash_attention_available()
"""Whether this build of torch has it."""

PROCESSORS, TILE = 160, 128
"""What decides, at most, how much memory the backward pass takes for itself: see `_workspace`."""


def serves(q: Tensor, k: Tensor, v: Tensor) -> bool:
    """Whether torch has flash attention for these [B, H, T, d] on their device."""
    here = target(q) == "cuda" and (q.is_meta or BUILT)
    dtypes = {q.dtype, k.dtype, v.dtype}
    narrow = len(dtypes) == 1 and q.dtype in (torch.bfloat16, torch.float16)
    d = q.shape[-1]
    return here and narrow and q.shape == k.shape == v.shape and d <= WIDEST and d % PIECE == 0


def _laid_out(x: Tensor) -> Tensor:
    """Vectors that begin at multiples of 16 bytes; a copy only where they do not."""
    far = all(
        stride % PIECE == 0 for stride, size in zip(x.stride()[:-1], x.shape[:-1], strict=True) if size > 1
    )
    return x if x.stride(-1) == 1 and far and x.storage_offset() % PIECE == 0 else x.contiguous()


def _fake(q: Tensor, k: Tensor, v: Tensor) -> tuple[Tensor, Tensor]:
    return torch.empty_like(_laid_out(q)), q.new_empty(q.shape[:-1], dtype=torch.float32)


@operator("flash_attention", fake=_fake)
def flash(q: Tensor, k: Tensor, v: Tensor) -> tuple[Tensor, Tensor]:
    """Output [B, H, T, d] with the strides of q, and log-sum-exp [B, H, T]."""
    q, k, v = map(_laid_out, (q, k, v))
    out, lse, *_ = torch.ops.aten._scaled_dot_product_flash_attention(q, k, v, 0.0, True, False)
    return out, lse


def _workspace(q: Tensor) -> Tensor:
    """What torch's backward pass takes for sums in a fixed order, on the largest GPU: float32 copies of q."""
    B, H, T, d = q.shape
    copies = -(-PROCESSORS // (B * H))
    return q.new_empty(copies, B, -(-T // TILE) * TILE, H, d, dtype=torch.float32)


def _fake_backward(
    grad: Tensor, q: Tensor, k: Tensor, v: Tensor, out: Tensor, lse: Tensor
) -> tuple[Tensor, Tensor, Tensor]:
    d_q, d_k, d_v = (torch.empty_like(_laid_out(x)) for x in (q, k, v))
    return d_q, d_k, d_v


@operator("flash_attention_backward", fake=_fake_backward, composed=True)
def flash_backward(
    grad: Tensor, q: Tensor, k: Tensor, v: Tensor, out: Tensor, lse: Tensor
) -> tuple[Tensor, Tensor, Tensor]:
    """Gradients of q, k, v with their strides."""
    held = _workspace(q) if q.is_meta else None  # a trace counts it, torch takes it itself
    T = q.shape[2]
    grad, q, k, v = map(_laid_out, (grad, q, k, v))
    # Without dropout nothing reads the state of a generator.
    state = torch.empty(2, dtype=torch.uint64, device=q.device)
    unused = torch.empty((), dtype=torch.uint64, device=q.device)
    d_q, d_k, d_v = torch.ops.aten._scaled_dot_product_flash_attention_backward(
        *(grad, q, k, v, out, lse), None, None, T, T, 0.0, True, state, unused
    )
    del held
    return d_q, d_k, d_v


def _setup(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, Tensor]) -> None:
    ctx.mark_non_differentiable(output[1])
    ctx.set_materialize_grads(False)
    ctx.save_for_backward(*inputs, *output)


def _backward(ctx: Any, grad: Tensor | None, *_: Any) -> tuple[Tensor | None, ...]:
    if grad is None:
        return None, None, None
    gradients: tuple[Tensor, Tensor, Tensor] = flash_backward(grad, *ctx.saved_tensors)
    return gradients


differentiate("flash_attention", _backward, setup=_setup)


def flash_attention(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    """softmax(q k^T / sqrt(d), s <= t) v for q, k, v [B, H, T, d] that `serves` takes."""
    out: Tensor = flash(q, k, v)[0]
    return out
