"""The inside of a NeuronSpark's layers in lists and loops, for the probes' tests.

From the residual stream before a layer and its parameters, both as nested lists, everything is computed again
from the equations; nothing is shared with the model. A row is a list of T tokens.
"""

from __future__ import annotations

import math
from typing import Any

Vector = list[float]
Matrix = list[list[float]]
Parameters = dict[str, Any]
"""By name, as nested lists."""


def softplus(x: float) -> float:
    return max(x, 0.0) + math.log1p(math.exp(-abs(x)))


def sigmoid(x: float) -> float:
    return 1 / (1 + math.exp(-x))


def dot(a: Vector, b: Vector) -> float:
    return sum(x * y for x, y in zip(a, b, strict=True))


def times(matrix: Matrix, x: Vector) -> Vector:
    return [dot(row, x) for row in matrix]


def normed(x: Vector, gain: Vector, eps: float) -> Vector:
    size = math.sqrt(dot(x, x) / len(x) + eps)
    return [value / size * g for value, g in zip(x, gain, strict=True)]


def released(x: Vector, theta: Vector, c: Any) -> Vector:
    if c.release == "binary":
        return [(1 + abs(t)) * (value > abs(t)) for value, t in zip(x, theta, strict=True)]
    return [max(value - abs(t), 0.0) for value, t in zip(x, theta, strict=True)]


def num_fired(x: Vector, theta: Vector) -> int:
    return sum(value > abs(t) for value, t in zip(x, theta, strict=True))


def softmax(x: Vector) -> Vector:
    powers = [math.exp(value - max(x)) for value in x]
    return [p / sum(powers) for p in powers]


def dendritic_row(stream: Matrix, p: Parameters, c: Any) -> dict[str, Any]:
    """Steps [T][H], rates [H], and neurons fired at each token [T]."""
    E, H, G, N = c.dendritic_width, c.dendritic_heads, c.synapse_groups, c.compartments
    P, channels = E // H, E + 2 * G * N
    A = [-math.exp(a) for a in p["A_log"]]
    V = [[[0.0] * N for _ in range(P)] for _ in range(H)]
    taken: Matrix = []
    steps, fired = [], []
    for h in stream:
        mixed = times(p["in_proj.weight"], normed(h, p["norm.weight"], c.norm_eps))
        taken.append(mixed[E : E + channels])
        conv = []
        for channel in range(channels):
            taps = zip(reversed(p["conv_weight"][channel]), reversed(taken), strict=False)
            y = sum(tap * token[channel] for tap, token in taps)
            conv.append(y * sigmoid(y))
        dt = [softplus(x + b) for x, b in zip(mixed[E + channels :], p["dt_bias"], strict=True)]
        soma = []
        for head in range(H):
            group = head // (H // G)
            write = conv[E + group * N : E + group * N + N]
            read = conv[E + G * N + group * N : E + G * N + group * N + N]
            decay = math.exp(A[head] * dt[head])
            for channel in range(P):
                u = conv[head * P + channel]
                cell = V[head][channel]
                for n in range(N):
                    cell[n] = decay * cell[n] + dt[head] * u * write[n]
                soma.append(dot(cell, read) + p["skip"][head] * u)
        steps.append(dt)
        fired.append(num_fired(normed(soma, p["soma_norm.weight"], c.norm_eps), p["theta"]))
    return {"dt": steps, "A": A, "fired": fired}


def _rotated(x: Vector, at: int, base: float) -> Vector:
    half = len(x) // 2
    out = [0.0] * len(x)
    for j in range(half):
        angle = at * base ** (-2 * j / len(x))
        out[j] = x[j] * math.cos(angle) - x[j + half] * math.sin(angle)
        out[j + half] = x[j + half] * math.cos(angle) + x[j] * math.sin(angle)
    return out


def _heads(x: Vector, width: int) -> Matrix:
    return [x[i : i + width] for i in range(0, len(x), width)]


def _slots(x: Vector, p: Parameters, c: Any) -> list[tuple[list[int], Vector]]:
    """Slots and weights of each head, by a search of all n x n slots."""
    half, found = c.pkm_key_dim // 2, []
    for head, q in enumerate(_heads(times(p["product_keys.pkm_q.weight"], x), c.pkm_key_dim)):
        q = normed(q, p["product_keys.pkm_q_norm"], c.norm_eps)
        first, second = p["product_keys.pkm_keys"][head]
        scores = [dot(a, q[:half]) + dot(b, q[half:]) for a in first for b in second]
        best = sorted(range(len(scores)), key=lambda slot: -scores[slot])[: c.pkm_top]
        found.append((best, softmax([scores[slot] for slot in best])))
    return found


def memory_row(stream: Matrix, ids: list[int], p: Parameters, c: Any) -> dict[str, Any]:
    """Everything that the probes look at in the first half of a hippocampal layer, by token."""
    H, K, d, R = c.heads, c.key_heads, c.head_dim, c.heads // c.key_heads
    tA = [-math.exp(a) for a in p["trace.tr_A_log"]]
    e = [[0.0] * c.trace_channels for _ in range(c.trace_heads)]
    clock, keys, values, writes, clocks = [0.0] * H, [], [], [], []
    names = ("trace_dt", "gate", "w", "step", "pi", "novelty", "gain", "q", "k", "weights", "slots", "chi")
    out: dict[str, Any] = {name: [] for name in names} | {"trace_A": tA}
    for t, h in enumerate(stream):
        x = normed(h, p["norm.weight"], c.norm_eps)
        mixed = times(p["trace.trace_proj.weight"], x)
        biased = zip(mixed[c.trace_width :], p["trace.tr_dt_bias"], strict=True)
        tdt = [softplus(delta + bias) for delta, bias in biased]
        for i, channels in enumerate(_heads(mixed[: c.trace_width], c.trace_channels)):
            for j, u in enumerate(channels):
                e[i][j] = math.exp(tA[i] * tdt[i]) * e[i][j] + tdt[i] * abs(tA[i]) * u
        a = x + [value for head in e for value in head]
        g = normed(times(p["gate_proj.weight"], a), p["gate_norm"], c.norm_eps)
        tags = times(p["write_proj.weight"], released(g, p["gate_theta"], c))
        w = [sigmoid(tag + bias) for tag, bias in zip(tags, p["write_bias"], strict=True)]
        control = times(p["ctl_proj.weight"], a)
        step = [softplus(control[i] + p["clock_bias"][i]) for i in range(H)]
        clock = [before + more for before, more in zip(clock, step, strict=True)]
        followed = [s > 0 and ids[s - 1] == ids[t] for s in range(t + 1)]
        pi = [sigmoid(control[H + i] + p["pi_bias"][i]) if any(followed) else 0.0 for i in range(H)]
        q = [normed(head, p["q_norm"], c.norm_eps) for head in _heads(times(p["q_proj.weight"], x), d)]
        k = [normed(head, p["k_norm"], c.norm_eps) for head in _heads(times(p["k_proj.weight"], x), d)]
        keys.append([_rotated(head, t, c.rope_theta) for head in k])
        values.append(_heads(times(p["v_proj.weight"], x), d))
        writes.append(w)
        clocks.append(clock)
        weights, novelty, gain = [], [], []
        for i in range(H):
            turned, lam = _rotated(q[i], t, c.rope_theta), softplus(p["lam"][i])
            logits = [
                p["qk_scale"][i] * dot(turned, keys[s][i // R]) / math.sqrt(d)
                - (clock[i] - clocks[s][i])
                + math.log(writes[s][i // R] + 1e-6)
                + (pi[i] * lam if followed[s] else 0.0)
                for s in range(t + 1)
            ]
            weights.append(softmax(logits))
            v = values[t][i // R]
            r = [dot(weights[i], [values[s][i // R][j] for s in range(t + 1)]) for j in range(d)]
            cosine = dot(r, v) / math.sqrt(dot(r, r) * dot(v, v) + 1e-12)
            novelty.append((1 - cosine) / 2)
            bent = control[2 * H + i] + p["gain_bias"][i] - p["eta"][i] * novelty[i]
            gain.append(2 * sigmoid(bent))
        chi = sigmoid(dot(p["product_keys.pkm_gate.weight"][0], x) + p["product_keys.pkm_gate_bias"][0])
        fired = num_fired(g, p["gate_theta"])
        now = (tdt, fired, w, step, pi, novelty, gain, q, k, weights, _slots(x, p, c), chi)
        for name, value in zip(names, now, strict=True):
            out[name].append(value)
    assert len(keys[0]) == K
    return out


def feed_forward_row(stream: Matrix, p: Parameters, c: Any) -> dict[str, list[int]]:
    """Neurons of each population that fire at each token."""
    out: dict[str, list[int]] = {"ffn_in": [], "ffn_gate": [], "ffn_up": []}
    for h in stream:
        x = normed(h, p["ffn_norm.weight"], c.norm_eps)
        above = released([abs(value) for value in x], p["in_theta"], c)
        i = [math.copysign(size, value) for size, value in zip(above, x, strict=True)]
        out["ffn_in"].append(sum(size > 0 for size in above))
        out["ffn_gate"].append(num_fired(times(p["ffn_gate.weight"], i), p["gate_theta_ffn"]))
        out["ffn_up"].append(num_fired(times(p["ffn_up.weight"], i), p["up_theta"]))
    return out
