"""First values of every parameter by its name: equal for equal seeds, whatever the order or the device."""

from __future__ import annotations

import math
from collections.abc import Callable

import torch
from torch import Tensor, nn

from trainer_core.models.blocks import init_normal, seeded
from trainer_core.models.neuronspark.config import NeuronSparkConfig

GAIN = 0.9
"""Matrices are N(0, (0.9 / sqrt(fan in))^2), which is 0.02 at a width of 2,048."""

RESIDUAL = ("out_proj.weight", "o_proj.weight", "pkm_out.weight", "ffn_down.weight")
"""Matrices that write to the residual stream: smaller by the root of the number of its additions."""

TRACE_DT = 0.05
"""Step of a trace that no input changes."""

CONSTANTS = {
    "skip": 1.0,
    "qk_scale": 1.0,
    "theta": 0.1,
    "in_theta": 0.1,
    "gate_theta_ffn": 0.1,
    "up_theta": 0.1,
    "gate_theta": 0.5,
    "write_bias": 2.0,
    "pi_bias": 0.0,
    "gain_bias": 0.0,
    "pkm_gate_bias": 0.0,
    "eta": 0.5,
    "lam": math.log(math.expm1(3.0)),
    "q_norm": 1.0,
    "k_norm": 1.0,
    "gate_norm": 1.0,
    "pkm_q_norm": 1.0,
}
"""Parameters that begin at one value, by the last part of their name."""


@torch.no_grad()
def initialize(model: nn.Module, c: NeuronSparkConfig, seed: int) -> None:
    """Fills every parameter; on the meta device there is nothing to fill."""
    for name, param in model.named_parameters():
        if not param.is_meta:
            fill(param, name, c, seed)


def fill(param: nn.Parameter, name: str, c: NeuronSparkConfig, seed: int) -> None:
    """One parameter; without gradients."""
    owner, _, last = name.rpartition(".")
    if last in CONSTANTS:
        param.fill_(CONSTANTS[last])
    elif last == "weight" and param.ndim == 1:
        param.fill_(1.0)
    elif last == "conv_weight":
        init_normal(param, name, seed, 0.1)
        param[:, -1] += 1.0  # the present token passes
    elif last in _RATES:
        param.copy_(_RATES[last](param.numel(), owner, c, seed))
    elif last == "pkm_keys":
        init_normal(param, name, seed, (c.pkm_key_dim / 2) ** -0.5)
    elif last == "pkm_values":
        init_normal(param, name, seed, c.pkm_value_dim**-0.5)
    else:
        init_normal(param, name, seed, _matrix_std(param, name, c))


def _matrix_std(param: Tensor, name: str, c: NeuronSparkConfig) -> float:
    std = GAIN / math.sqrt(param.shape[1])
    if name.endswith(RESIDUAL):
        return std / math.sqrt(c.num_additions)
    if name.endswith(("write_proj.weight", "ctl_proj.weight")):
        return 0.1 * std
    return std


def _spread(first: float, last: float, n: int) -> Tensor:
    """n numbers from first to last, evenly in their logarithm, float64."""
    return torch.logspace(math.log10(first), math.log10(last), n, dtype=torch.float64, device="cpu")


def _steps(n: int, owner: str, seed: int) -> Tensor:
    """Steps of the heads of a dendritic layer: log-uniform in [1e-3, 1e-1]."""
    uniform = torch.rand(n, dtype=torch.float64, device="cpu", generator=seeded(f"{owner}.dt_bias", seed))
    return torch.exp(math.log(1e-3) + uniform * math.log(100.0))


def _inverse_softplus(x: Tensor) -> Tensor:
    return x + torch.log(-torch.expm1(-x))


Values = Callable[[int, str, NeuronSparkConfig, int], Tensor]

_RATES: dict[str, Values] = {
    "dt_bias": lambda n, owner, c, seed: _inverse_softplus(_steps(n, owner, seed)),
    # Tokens over which a head forgets all but 1/e, at its own step: from 2 to 8 longest rows.
    "A_log": lambda n, owner, c, seed: (
        -torch.log(_spread(2, 8 * c.rope_max_seq_len, n) * _steps(n, owner, seed))
    ),
    "tr_dt_bias": lambda n, owner, c, seed: _inverse_softplus(
        torch.full((n,), TRACE_DT, dtype=torch.float64)
    ),
    "tr_A_log": lambda n, owner, c, seed: -torch.log(_spread(4, 4096, n) * TRACE_DT),
    "clock_bias": lambda n, owner, c, seed: _inverse_softplus(1 / _spread(64, 2 * c.rope_max_seq_len, n)),
}
"""Rates that differ from head to head, by the last part of their name."""
