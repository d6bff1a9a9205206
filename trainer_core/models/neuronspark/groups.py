"""The optimizer's view of a NeuronSpark: groups, layer labels."""

from __future__ import annotations

from torch import nn

from trainer_core.engine.layout import ParamGroup
from trainer_core.models.neuronspark.config import NeuronSparkConfig

NORMS = ("q_norm", "k_norm", "gate_norm", "pkm_q_norm")
"""Gains of norms that are not modules, by the last part of their name."""

GROUPS = ("embed", "proj", "conv", "norm", "neuron", "pkm_keys", "pkm_values")
"""Names of the groups in the order of the layout."""

EXACT = ("conv", "norm", "neuron")
"""Groups that stay in float32 beside rounded weights: small, and thresholds do not train when rounded."""


def group_of(name: str, param: nn.Parameter) -> str:
    """The group of a parameter."""
    last = name.rpartition(".")[2]
    if name == "embedding.weight":
        return "embed"
    if last in ("pkm_keys", "pkm_values"):
        return last
    if last == "conv_weight":
        return "conv"
    if param.ndim >= 2:
        return "proj"
    return "norm" if last == "weight" or last in NORMS else "neuron"


def param_groups(model: nn.Module, c: NeuronSparkConfig) -> list[ParamGroup]:
    """Every parameter once; matrices decay, and no other group does. A kind of layer may be absent."""
    members: dict[str, list[tuple[str, nn.Parameter]]] = {group: [] for group in GROUPS}
    for name, param in model.named_parameters():
        members[group_of(name, param)].append((name, param))
    factors = {"neuron": c.neuron_lr_mult, "pkm_values": c.pkm_lr_mult}
    return [
        ParamGroup(
            name=group,
            decay=group in ("embed", "proj"),
            lr_mult=factors.get(group, 1.0),
            params=params,
            rounded=group not in EXACT,
        )
        for group, params in members.items()
        if params
    ]


def layer_label(name: str) -> str:
    """layerNN, else embed, norm or pkm_values (a table that layers share)."""
    first, *rest = name.split(".")
    if first == "layers":
        return f"layer{int(rest[0]):02d}"
    return "embed" if first == "embedding" else first
