"""NeuronSpark from its equations, with loops over tokens, heads and events: what the tests compare with.

It shares nothing with the model but the parameters, by their names.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor
from torch.nn import functional as F

from trainer_core.models.neuronspark.config import NeuronSparkConfig

Parameters = dict[str, Tensor]


def _norm(x: Tensor, gain: Tensor, eps: float) -> Tensor:
    return x / (x.square().mean(-1, keepdim=True) + eps).sqrt() * gain


def _release(x: Tensor, theta: Tensor, c: NeuronSparkConfig, *, two_sided: bool = False) -> Tensor:
    t = theta.abs()
    if c.release == "binary":
        on = (1 + t) * _step(x - t, t)
        return on - (1 + t) * _step(-x - t, t) if two_sided else on
    above = (x.abs() if two_sided else x) - t
    graded = torch.where(above > 0, above, torch.zeros_like(above))
    return graded * x.sign() if two_sided else graded


def _step(above: Tensor, t: Tensor) -> Tensor:
    """1 where `above` is positive, else 0; its gradient is that of a sigmoid of sharpness min(4, 4 / t)."""
    soft = torch.sigmoid(torch.minimum(torch.full_like(t, 4.0), 4 / t).detach() * above)
    return (above > 0).to(above.dtype) + soft - soft.detach()


def _leaky(dt: Tensor, A: Tensor, taken: list[Tensor]) -> list[Tensor]:
    """V_t = exp(A dt_t) V_{t-1} + taken_t for one row; dt [T, H], taken T times [H, ...]."""
    V, out = torch.zeros_like(taken[0]), []
    for t, what in enumerate(taken):
        decay = torch.exp(A * dt[t]).reshape(-1, *[1] * (what.ndim - 1))
        V = decay * V + what
        out.append(V)
    return out


def _dendritic(h: Tensor, p: Parameters, c: NeuronSparkConfig) -> Tensor:
    """One row [T, D]."""
    E, H, G, N = c.dendritic_width, c.dendritic_heads, c.synapse_groups, c.compartments
    T = h.shape[0]
    mixed = _norm(h, p["norm.weight"], c.norm_eps) @ p["in_proj.weight"].t()
    z, inputs, delta = mixed[:, :E], mixed[:, E : 2 * E + 2 * G * N], mixed[:, 2 * E + 2 * G * N :]
    convolved = []
    for t in range(T):
        y = torch.zeros_like(inputs[0])
        for j in range(c.conv_width):
            at = t - (c.conv_width - 1) + j
            if at >= 0:
                y = y + p["conv_weight"][:, j] * inputs[at]
        convolved.append(y * torch.sigmoid(y))
    u = [y[:E].view(H, E // H) for y in convolved]
    b = [y[E : E + G * N].view(G, N).repeat_interleave(H // G, 0) for y in convolved]
    r = [y[E + G * N :].view(G, N).repeat_interleave(H // G, 0) for y in convolved]
    dt = F.softplus(delta + p["dt_bias"])
    taken = [dt[t][:, None, None] * u[t][:, :, None] * b[t][:, None, :] for t in range(T)]
    V = _leaky(dt, -p["A_log"].exp(), taken)
    s = torch.stack([((V[t] * r[t][:, None]).sum(-1) + p["skip"][:, None] * u[t]).view(E) for t in range(T)])
    o = _release(_norm(s, p["soma_norm.weight"], c.norm_eps), p["theta"], c) * z * torch.sigmoid(z)
    return h + o @ p["out_proj.weight"].t()


def _rotated(x: Tensor, at: int, base: float) -> Tensor:
    """A head [d] at a position: pairs (j, j + d/2)."""
    half = x.shape[0] // 2
    angle = torch.tensor([at * base ** (-2 * j / x.shape[0]) for j in range(half)], dtype=x.dtype)
    first, second = x[:half], x[half:]
    return torch.cat((first * angle.cos() - second * angle.sin(), second * angle.cos() + first * angle.sin()))


def _product_keys(x: Tensor, p: Parameters, values: Tensor, c: NeuronSparkConfig) -> Tensor:
    """One token [D], by a search of all n x n slots."""
    half = c.pkm_key_dim // 2
    query = (p["product_keys.pkm_q.weight"] @ x).view(c.pkm_heads, c.pkm_key_dim)
    found = torch.zeros_like(values[0])
    for head in range(c.pkm_heads):
        q = _norm(query[head], p["product_keys.pkm_q_norm"], c.norm_eps)
        keys = p["product_keys.pkm_keys"][head]
        scores = ((keys[0] @ q[:half])[:, None] + (keys[1] @ q[half:])[None]).flatten()
        best = scores.topk(c.pkm_top)
        found = found + (best.values.softmax(0)[:, None] * values[best.indices]).sum(0) / c.pkm_heads
    gate = torch.sigmoid(p["product_keys.pkm_gate.weight"] @ x + p["product_keys.pkm_gate_bias"])
    return gate * (p["product_keys.pkm_out.weight"] @ found)


def _trace(x: Tensor, p: Parameters, c: NeuronSparkConfig) -> Tensor:
    """[T, heads x channels]."""
    mixed = x @ p["trace.trace_proj.weight"].t()
    dt = F.softplus(mixed[:, c.trace_width :] + p["trace.tr_dt_bias"])
    A = -p["trace.tr_A_log"].exp()
    u = mixed[:, : c.trace_width].view(-1, c.trace_heads, c.trace_channels)
    taken = [(dt[t] * A.abs())[:, None] * u[t] for t in range(x.shape[0])]
    return torch.stack([e.flatten() for e in _leaky(dt, A, taken)])


def _memory(h: Tensor, ids: list[int], p: Parameters, values: Tensor, c: NeuronSparkConfig) -> Tensor:
    """What the memory adds to one row [T, D]."""
    H, K, d = c.heads, c.key_heads, c.head_dim
    x = _norm(h, p["norm.weight"], c.norm_eps)
    a = torch.cat((x, _trace(x, p, c)), -1)
    g = _release(_norm(a @ p["gate_proj.weight"].t(), p["gate_norm"], c.norm_eps), p["gate_theta"], c)
    w = torch.sigmoid(g @ p["write_proj.weight"].t() + p["write_bias"])
    control = (a @ p["ctl_proj.weight"].t()).view(-1, 3, H)
    clock, added = torch.zeros(H, dtype=h.dtype), []
    clocks: list[Tensor] = []
    q, k = ((x @ p[f"{n}_proj.weight"].t()).view(len(ids), heads, d) for n, heads in (("q", H), ("k", K)))
    v = (x @ p["v_proj.weight"].t()).view(len(ids), K, d)
    for t, token in enumerate(ids):
        clock = clock + F.softplus(control[t, 0] + p["clock_bias"])
        clocks.append(clock)
        matches = [s > 0 and ids[s - 1] == token for s in range(t + 1)]
        pi = torch.sigmoid(control[t, 1] + p["pi_bias"]) * float(any(matches))
        reads = []
        for head in range(H):
            key_head = head // (H // K)
            query = _rotated(_norm(q[t, head], p["q_norm"], c.norm_eps), t, c.rope_theta)
            logits = []
            for s in range(t + 1):
                key = _rotated(_norm(k[s, key_head], p["k_norm"], c.norm_eps), s, c.rope_theta)
                logit = p["qk_scale"][head] * (query @ key) / math.sqrt(d)
                logit = logit - (clocks[t][head] - clocks[s][head]) + torch.log(w[s, key_head] + 1e-6)
                logits.append(logit + pi[head] * F.softplus(p["lam"][head]) * float(matches[s]))
            weights = torch.stack(logits).softmax(0)
            read = (weights[:, None] * v[: t + 1, key_head]).sum(0)
            novelty = (1 - F.cosine_similarity(read, v[t, key_head], dim=0)) / 2
            gain = 2 * torch.sigmoid(control[t, 2, head] + p["gain_bias"][head] - p["eta"][head] * novelty)
            reads.append(gain * read)
        known = _product_keys(x[t], p, values, c)
        added.append(p["o_proj.weight"] @ torch.cat(reads) + known)
    return torch.stack(added)


def _feed_forward(h: Tensor, p: Parameters, c: NeuronSparkConfig) -> Tensor:
    i = _release(_norm(h, p["ffn_norm.weight"], c.norm_eps), p["in_theta"], c, two_sided=True)
    gate = _release(i @ p["ffn_gate.weight"].t(), p["gate_theta_ffn"], c)
    up = _release(i @ p["ffn_up.weight"].t(), p["up_theta"], c)
    return h + (gate * up) @ p["ffn_down.weight"].t()


def _under(p: Parameters, prefix: str) -> Parameters:
    return {name.removeprefix(prefix): value for name, value in p.items() if name.startswith(prefix)}


def plain_logits(ids: Tensor, parameters: Parameters, c: NeuronSparkConfig) -> Tensor:
    """Scores [B, T, V] of ids [B, T]."""
    rows = []
    for row in ids.tolist():
        h = parameters["embedding.weight"][row]
        for i in range(c.layers):
            p = _under(parameters, f"layers.{i}.")
            if i % c.interval < c.interval - 1:
                h = _dendritic(h, p, c)
                continue
            values = parameters["pkm_values"] if c.pkm_shared else p["pkm_values"]
            h = h + _memory(h, row, _under(p, "memory."), values, c)
            h = _feed_forward(h, _under(p, "feed_forward."), c)
        rows.append(_norm(h, parameters["norm.weight"], c.norm_eps) @ parameters["embedding.weight"].t())
    return torch.stack(rows)
