"""The hippocampal layer: events that a neuron tags are written to a pool, which every later token reads.

    x = RMSNorm(h)                       e = trace of x             a = [x; e]
    g = release(RMSNorm(W_gate a))       w = sigmoid(W_write g + write_bias)        write tag
    clock, copy, gain = W_ctl a          c = running sum of softplus(clock + clock_bias)
    pi = sigmoid(copy + pi_bias) where the token was seen before, else 0
    r = pool read with logits kappa q.k / sqrt(d) - (c_t - c_s) + ln(w_s + 1e-6) + pi_t softplus(lam) match
    nu = (1 - cos(r, v)) / 2             gamma = 2 sigmoid(gain + gain_bias - eta nu)
    h <- h + W_o (gamma r) + product keys of x, then the feed-forward part

Shapes: B rows, T tokens, S events, D width, H query heads, K key heads, d head width.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from trainer_core.kernels.norm import rms_norm
from trainer_core.kernels.pool_read import pool_read
from trainer_core.kernels.release import fired, release
from trainer_core.kernels.rope import rotate
from trainer_core.kernels.running_sum import running_sum
from trainer_core.kernels.tensors import wide
from trainer_core.models.blocks import Linear, RMSNorm
from trainer_core.models.neuronspark.config import NeuronSparkConfig
from trainer_core.models.neuronspark.feed_forward import FeedForward
from trainer_core.models.neuronspark.layer import Context, Note, project
from trainer_core.models.neuronspark.leaky_trace import Trace
from trainer_core.models.neuronspark.product_keys import ProductKeys

LEAST_WRITE = 1e-6
"""Added to a write tag before its logarithm: what is not written can hardly be read."""


@dataclass(frozen=True, kw_only=True)
class Pool:
    """The events of a row, which later tokens read."""

    k: Tensor
    """Rotated keys [B, K, S, d]."""
    v: Tensor
    """Values [B, K, S, d]."""
    log_write: Tensor
    """ln(w + 1e-6) [B, K, S]."""
    clock: Tensor
    """Clock of each query head [B, H, S]."""

    def after(self, past: Pool | None) -> Pool:
        """These events behind those of a past; their clock goes on from its end."""
        if past is None:
            return self
        clock = self.clock + past.clock[:, :, -1:] if past.clock.shape[-1] else self.clock
        return Pool(
            k=torch.cat((past.k, self.k), 2),
            v=torch.cat((past.v, self.v), 2),
            log_write=torch.cat((past.log_write, self.log_write), 2),
            clock=torch.cat((past.clock, clock), 2),
        )


HippocampalState = tuple[Tensor, Pool]
"""The trace, and the pool of events."""


class Memory(nn.Module):
    """The first half of the layer."""

    def __init__(self, c: NeuronSparkConfig, dtype: torch.dtype) -> None:
        super().__init__()
        self.c = c
        D, H, K, d, control = c.width, c.heads, c.key_heads, c.head_dim, c.width + c.trace_width

        def scalars(n: int) -> nn.Parameter:
            return nn.Parameter(torch.empty(n, dtype=dtype))

        self.norm = RMSNorm(D, c.norm_eps, dtype)
        self.q_proj, self.k_proj, self.v_proj = (Linear(D, heads * d, dtype) for heads in (H, K, K))
        self.o_proj = Linear(H * d, D, dtype)
        self.q_norm, self.k_norm, self.qk_scale = scalars(d), scalars(d), scalars(H)
        self.trace = Trace(c, dtype)
        self.gate_proj = Linear(control, c.gate_width, dtype)
        self.gate_norm, self.gate_theta = scalars(c.gate_width), scalars(c.gate_width)
        self.write_proj, self.write_bias = Linear(c.gate_width, K, dtype), scalars(K)
        self.ctl_proj = Linear(control, 3 * H, dtype)
        self.clock_bias, self.pi_bias, self.gain_bias, self.eta, self.lam = (scalars(H) for _ in range(5))
        self.product_keys = ProductKeys(c, dtype)

    def forward(
        self, h: Tensor, context: Context, values: Tensor, state: HippocampalState | None, note: Note | None
    ) -> tuple[Tensor, HippocampalState]:
        """What is added to the residual stream h [B, T, D], and the state after it."""
        x = self.norm(h)
        trace_before, past = (None, None) if state is None else state
        e, trace = self.trace(x, trace_before, note)
        a = torch.cat((x, e.to(x.dtype)), -1)
        clock, copy, gain = (t.transpose(1, 2) for t in wide(project(a, self.ctl_proj)).chunk(3, -1))
        pi = torch.sigmoid(copy + self.pi_bias[:, None]) * context.seen
        step = F.softplus(clock + self.clock_bias[:, None])
        q, k, v = self._heads(x, context)
        new = Pool(k=k, v=v, log_write=self._write(a, note), clock=running_sum(step))
        pool = new.after(past)
        match = pi * F.softplus(self.lam)[:, None]
        r = pool_read(q, pool.k, pool.v, pool.clock, pool.log_write, context.ids, context.before, match)
        novelty = 0.5 * (1 - _cosine(r, v))
        gamma = 2 * torch.sigmoid(gain + self.gain_bias[:, None] - self.eta[:, None] * novelty)
        if note is not None:
            named = {"q": q, "k": k, "step": step, "clock": pool.clock, "log_write": pool.log_write}
            for name, value in {**named, "match": match, "pi": pi, "novelty": novelty, "gain": gamma}.items():
                note(name, value)
        read = (r * gamma[..., None].to(r.dtype)).transpose(1, 2).flatten(2)
        return project(read, self.o_proj) + self.product_keys(x, values, note), (trace, pool)

    def _heads(self, x: Tensor, context: Context) -> tuple[Tensor, Tensor, Tensor]:
        """Scaled, rotated queries [B, H, T, d], rotated keys and values [B, K, T, d]."""
        B, T, _ = x.shape
        eps = self.c.norm_eps
        q, k, v = (
            project(x, p).view(B, T, -1, self.c.head_dim) for p in (self.q_proj, self.k_proj, self.v_proj)
        )
        q = rms_norm(q, self.q_norm, eps) * self.qk_scale[:, None].to(q.dtype)
        q, k = q.transpose(1, 2), rms_norm(k, self.k_norm, eps).transpose(1, 2)
        return rotate(q, context.cos, context.sin), rotate(k, context.cos, context.sin), v.transpose(1, 2)

    def _write(self, a: Tensor, note: Note | None) -> Tensor:
        """ln(w + 1e-6) [B, K, T]: how much of an event is written."""
        g = rms_norm(project(a, self.gate_proj), self.gate_norm, self.c.norm_eps)
        if note is not None:
            note("gate_fired", fired(g, self.gate_theta))
        g = release(g, self.gate_theta, binary=self.c.release == "binary")
        w = torch.sigmoid(wide(project(g, self.write_proj)) + self.write_bias).transpose(1, 2)
        return (w + LEAST_WRITE).log()


def _cosine(r: Tensor, v: Tensor) -> Tensor:
    """Cosine [B, H, T] of what query heads recall, r [B, H, T, d], and the present value, v [B, K, T, d]."""
    B, H, T, d = r.shape
    recalled, present = wide(r).view(B, v.shape[1], -1, T, d), wide(v)[:, :, None]
    dots = (recalled * present).sum(-1)
    squares = recalled.square().sum(-1) * present.square().sum(-1)
    return (dots * (squares + 1e-12).rsqrt()).view(B, H, T)


class HippocampalLayer(nn.Module):
    """One hippocampal layer."""

    def __init__(self, c: NeuronSparkConfig, dtype: torch.dtype) -> None:
        super().__init__()
        self.memory = Memory(c, dtype)
        self.feed_forward = FeedForward(c, dtype)
        if not c.pkm_shared:
            self.pkm_values = nn.Parameter(torch.empty(c.pkm_keys**2, c.pkm_value_dim, dtype=dtype))

    def forward(self, h: Tensor, context: Context, *, redo: bool = False, note: Note | None = None) -> Tensor:
        """The residual stream [B, T, D] after it; its scan is too small to be worth running again."""
        h = h + self.memory(h, context, self._values(context), None, note)[0]
        out: Tensor = self.feed_forward(h, note)
        return out

    def init_state(self, rows: int) -> HippocampalState:
        """The state before the first token."""
        memory, c = self.memory, self.memory.c
        like = memory.k_proj.weight
        pool = Pool(
            k=like.new_empty(rows, c.key_heads, 0, c.head_dim),
            v=like.new_empty(rows, c.key_heads, 0, c.head_dim),
            log_write=wide(like).new_empty(rows, c.key_heads, 0),
            clock=wide(like).new_empty(rows, c.heads, 0),
        )
        return memory.trace.init_state(rows), pool

    def advance(
        self, h: Tensor, context: Context, state: HippocampalState
    ) -> tuple[Tensor, HippocampalState]:
        """The residual stream of the next tokens, and the state after them."""
        added, state = self.memory(h, context, self._values(context), state, None)
        return self.feed_forward(h + added), state

    def _values(self, context: Context) -> Tensor:
        """The table of values: the layer's own where it has one."""
        return self.pkm_values if context.values is None else context.values
