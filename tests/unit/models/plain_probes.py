"""The probes of a NeuronSpark in lists and loops: what the tests compare with, sharing nothing with them."""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor

from tests.unit.models.plain_inside import (
    Matrix,
    Parameters,
    Vector,
    dendritic_row,
    dot,
    feed_forward_row,
    memory_row,
)
from trainer_core.models.neuronspark.model import NeuronSpark


def mean(x: list[float]) -> float:
    return sum(x) / len(x)


def quantile(heads: Vector, share: float) -> float:
    """Linear between the two values around it."""
    x, at = sorted(heads), share * (len(heads) - 1)
    low = math.floor(at)
    return x[low] + (x[min(low + 1, len(x) - 1)] - x[low]) * (at - low)


def spread(name: str, heads: Vector, *quantiles: int) -> dict[str, float]:
    return {f"{name}_p{q}": quantile(heads, q / 100) for q in quantiles} | {f"{name}_max": max(heads)}


def _boundaries(ids: list[int], eos: int) -> list[int]:
    return [e for e in range(len(ids) - 1) if ids[e] == eos]


def _near_and_elsewhere(
    rows: list[list[int]], eos: int
) -> tuple[list[tuple[int, int]], list[tuple[int, int]]]:
    """Places (row, token) at a boundary and those that are not."""
    near = {(r, e + i) for r, ids in enumerate(rows) for e in _boundaries(ids, eos) for i in (0, 1)}
    every = [(r, t) for r, ids in enumerate(rows) for t in range(len(ids))]
    return sorted(near), [place for place in every if place not in near]


def dendritic_numbers(
    looked: list[list[dict[str, Any]]], ids: list[list[int]], L0: int, eos: int
) -> dict[str, float]:
    """Of `looked` [layers][rows]: one layer, or all of them for the numbers of the model."""
    R, L = len(ids), len(ids[0])
    ends = [min(end, L) for end in range(L0, L + L0, L0)]
    near, elsewhere = _near_and_elsewhere(ids, eos)
    kept: list[Vector] = [[] for _ in ends]
    kept_32k: Vector = []
    tau: Vector = []
    across: Vector = []
    ratio: Vector = []
    for rows in looked:
        for h, A in enumerate(rows[0]["A"]):
            dt = [[step[h] for step in row["dt"]] for row in rows]
            for k, end in enumerate(ends):
                kept[k].append(math.exp(A * mean([sum(row[1:end]) for row in dt])))
            kept_32k.append(math.exp(A * 32768 * mean([x for row in dt for x in row])))
            if L > 1:
                tau.append((L - 1) / (-A * mean([sum(row[1:]) for row in dt])))
            if near:
                at = [(r, e) for r in range(R) for e in _boundaries(ids[r], eos)]
                across.append(mean([math.exp(A * (dt[r][e] + dt[r][e + 1])) for r, e in at]))
            if near and elsewhere:
                steps = mean([dt[r][t] for r, t in near]), mean([dt[r][t] for r, t in elsewhere])
                ratio.append(steps[0] / steps[1])
    found = {"retention32k_frac_gt_0.5": mean([float(x > 0.5) for x in kept_32k])}
    if L > 1:
        found |= spread("retention", kept[-1], 50) | spread("tau", tau, 50, 90)
        found["retention_frac_gt_0.5"] = mean([float(x > 0.5) for x in kept[-1]])
        found["retention_frac_gt_0.9"] = mean([float(x > 0.9) for x in kept[-1]])
    found |= spread("boundary_retention", across, 50) if across else {}
    found |= spread("boundary_step_ratio", ratio, 50) if ratio else {}
    neurons = looked[0][0]["neurons"]
    found["firing"] = mean([n / neurons for rows in looked for row in rows for n in row["fired"]])
    if len(ends) > 1:
        for k, end in enumerate(ends):
            inside = [row["fired"][t] for rows in looked for row in rows for t in range(k * L0, end)]
            found[f"firing_seg{k}"] = mean([n / neurons for n in inside])
            found |= spread(f"retention_seg{k}", kept[k], 50)
    return found


def hippocampal_numbers(
    looked: list[list[dict[str, Any]]], ids: list[list[int]], L0: int, eos: int, c: Any, *, tables: int
) -> tuple[dict[str, float], dict[str, Vector]]:
    """Of `looked` [layers][rows], which have `tables` tables of values: numbers, and values of heads."""
    places = [(r, t) for r in range(len(ids)) for t in range(len(ids[0]))]
    near, elsewhere = _near_and_elsewhere(ids, eos)
    heads: dict[str, Vector] = {"clock_tau": [], "write": []}
    decay_tau: Vector = []
    for rows in looked:
        for i, A in enumerate(rows[0]["trace_A"]):
            rate = -A * mean([rows[r]["trace_dt"][t][i] for r, t in places])
            decay_tau += [1 / rate] * c.trace_channels
        for h in range(c.heads):
            heads["clock_tau"].append(1 / mean([rows[r]["step"][t][h] for r, t in places]))
        heads["write"] += [mean([rows[r]["w"][t][h] for r, t in places]) for h in range(c.key_heads)]
    found = spread("decay_tau", decay_tau, 50, 90)
    if near and elsewhere:
        steps = [
            mean([rows[r]["step"][t][h] for rows in looked for r, t in where for h in range(c.heads)])
            for where in (near, elsewhere)
        ]
        found["clock_boundary_step_ratio"] = steps[0] / steps[1]
    sizes = {"gate": c.gate_width, "ffn_in": c.width, "ffn_gate": c.ffn, "ffn_up": c.ffn}
    for name, size in sizes.items():
        found[f"{name}_firing"] = mean([rows[r][name][t] / size for rows in looked for r, t in places])
    for name, metric in (("pi", "copy_pi"), ("novelty", "novelty"), ("gain", "read_gain")):
        found[metric] = mean([x for rows in looked for r, t in places for x in rows[r][name][t]])
    reads = [read for rows in looked for r, t in places for read in rows[r]["slots"][t]]
    found["pkm_entropy"] = mean([-sum(p * math.log(p) for p in weights) for _, weights in reads])
    used = {
        (i % tables, slot)
        for i, rows in enumerate(looked)
        for r, t in places
        for slots, _ in rows[r]["slots"][t]
        for slot in slots
    }
    found["pkm_slots_used"] = len(used) / (tables * c.pkm_keys**2)
    found["pkm_gate"] = mean([rows[r]["chi"][t] for rows in looked for r, t in places])
    half = c.head_dim // 2
    long = [j for j in range(half) if 2 * math.pi * c.rope_theta ** (2 * j / c.head_dim) > L0]
    for name in ("q", "k"):
        heads[f"rope_ext_{name}"] = []
        for rows in looked:
            for h in range(len(rows[0][name][0])):
                x = [rows[r][name][t][h] for r, t in places]
                extended = mean([sum(y[j] ** 2 + y[j + half] ** 2 for j in long) for y in x])
                heads[f"rope_ext_{name}"].append(extended / mean([dot(y, y) for y in x]))
    bins, weighed = _attention(looked, ids, L0)
    heads |= weighed
    for name, values in heads.items():
        found |= spread(name, values, 50)
    return found | bins, heads


def _attention(
    looked: list[list[dict[str, Any]]], ids: list[list[int]], L0: int
) -> tuple[dict[str, float], dict[str, Vector]]:
    """By distance over all heads; and of each head what is beyond L0, how far it looks, how broadly."""
    L = len(ids[0])
    rows_seen = range(0, len(ids), 4 if L > L0 else 2)
    heads: dict[str, Vector] = {"attn_beyond_train": [], "attn_mean_log2": [], "attn_entropy": []}
    bins: dict[int, float] = dict.fromkeys(range(1 + (L - 1).bit_length()), 0.0)
    queries = [(r, t) for r in rows_seen for t in range(max(0, L - L0), L)]
    num_heads = len(looked) * len(looked[0][0]["weights"][0])
    for rows in looked:
        for h in range(len(rows[0]["weights"][0])):
            beyond = far = entropy = 0.0
            for r, t in queries:
                for s, a in enumerate(rows[r]["weights"][t][h]):
                    back = t - s
                    bins[0 if back == 0 else 1 + math.floor(math.log2(back))] += a / len(queries) / num_heads
                    beyond += a if back >= L0 else 0.0
                    far += a * math.log2(1 + back)
                    entropy -= a * math.log(a)
            for name, value in zip(heads, (beyond, far, entropy), strict=True):
                heads[name].append(value / len(queries))
    return {f"attn_dist_bin{k}": share for k, share in bins.items()}, heads


def plain_probe(
    streams: dict[str, list[Matrix]],
    parameters: Parameters,
    c: Any,
    ids: list[list[int]],
    L0: int,
    eos: int,
) -> dict[str, float]:
    """Every number, from the residual streams [rows][T][D] before layers, "3", and their neurons, "3 ffn"."""
    found: dict[str, float] = {}
    looked: dict[str, dict[int, list[dict[str, Any]]]] = {"dendritic": {}, "hippocampal": {}}
    for i in range(c.layers):
        kind = "hippocampal" if i % c.interval == c.interval - 1 else "dendritic"
        p = _under(parameters, f"layers.{i}.")
        rows = []
        for r, row in enumerate(ids):
            if kind == "dendritic":
                one = dendritic_row(streams[f"{i}"][r], p, c) | {"neurons": c.dendritic_width}
            else:
                one = memory_row(streams[f"{i}"][r], row, _under(p, "memory."), c)
                one |= feed_forward_row(streams[f"{i} ffn"][r], _under(p, "feed_forward."), c)
            rows.append(one)
        looked[kind][i] = rows
    if looked["dendritic"]:
        parts = {f"layer{i:02d}/": [rows] for i, rows in looked["dendritic"].items()}
        for label, part in {"": list(looked["dendritic"].values()), **parts}.items():
            numbers = dendritic_numbers(part, ids, L0, eos)
            found |= {f"dendritic/{label}{name}": value for name, value in numbers.items()}
        found["dendritic/boundaries"] = float(sum(len(_boundaries(row, eos)) for row in ids))
    if looked["hippocampal"]:
        parts = {f"layer{i:02d}/": [rows] for i, rows in looked["hippocampal"].items()}
        for label, part in {"": list(looked["hippocampal"].values()), **parts}.items():
            tables = 1 if c.pkm_shared else len(part)
            numbers, heads = hippocampal_numbers(part, ids, L0, eos, c, tables=tables)
            found |= {f"hippocampal/{label}{name}": value for name, value in numbers.items()}
            for name, values in heads.items() if label else ():
                found |= {f"hippocampal/{label}{name}_head{h}": value for h, value in enumerate(values)}
        pairs = range(c.head_dim // 2)
        long = [j for j in pairs if 2 * math.pi * c.rope_theta ** (2 * j / c.head_dim) > L0]
        found["hippocampal/rope_ext_pairs_frac"] = len(long) / len(pairs)
    return found


def _under(p: Parameters, prefix: str) -> Parameters:
    return {name.removeprefix(prefix): value for name, value in p.items() if name.startswith(prefix)}


def probed_in_loops(model: NeuronSpark, ids: Tensor, train_length: int, eos: int) -> dict[str, float]:
    """Every number of a model on rows ids [R, L]; only the residual streams before its layers are its own."""
    streams: dict[str, list[Any]] = {}
    hooks = []
    for i, layer in enumerate(model.layers):
        seen = {f"{i}": layer} | ({f"{i} ffn": layer.feed_forward} if hasattr(layer, "feed_forward") else {})
        for name, module in seen.items():

            def keep(_: Any, inputs: tuple[Tensor, ...], name: str = name) -> None:
                streams[name] = inputs[0].tolist()

            hooks.append(module.register_forward_pre_hook(keep))
    with torch.no_grad():
        model.hidden(ids)
    for hook in hooks:
        hook.remove()
    parameters = {name: param.tolist() for name, param in model.named_parameters()}
    return plain_probe(streams, parameters, model.config, ids.tolist(), train_length, eos)
