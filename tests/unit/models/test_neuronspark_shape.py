"""The NeuronSpark before any token: exact counts, names, first values, groups, labels, FLOPs, refusals."""

import math
from dataclasses import fields
from typing import Any

import pytest
import torch
from torch.nn import functional as F
from torch.utils.flop_counter import FlopCounterMode

from tests.unit.models.small_neuronspark import CONFIG, VOCAB, small, token_ids
from trainer_core.engine.layout import Layout
from trainer_core.errors import Refused
from trainer_core.models.neuronspark.config import NeuronSparkConfig
from trainer_core.models.presets import PRESETS
from trainer_core.models.registry import build

COUNTS = {
    "ns-2b": 2_063_030_635,
    "ns-1p3b": 1_314_670_004,
    "tiny-32k": 13_000_182,
    "micro-cpu": 2_747_686,
    "nano-cpu": 1_271_590,
}


def _shapes(name: str):
    with torch.device("meta"):
        return build(name, None, PRESETS[name].vocab_size, 0)


@pytest.mark.parametrize("name", COUNTS)
def test_parameters_of_the_presets(name: str) -> None:
    model = _shapes(name)
    assert sum(param.numel() for param in model.parameters()) == COUNTS[name]
    layout = Layout.build(model.param_groups(), model.layer_label)
    assert layout.num_parameters == COUNTS[name]


def test_groups_of_the_largest() -> None:
    model = _shapes("ns-2b")
    groups = {group.name: sum(p.numel() for _, p in group.params) for group in model.param_groups()}
    assert groups == {
        "embed": 150_470_656,
        "proj": 1_892_290_560,
        "conv": 783_360,
        "norm": 355_328,
        "neuron": 387_435,
        "pkm_keys": 1_966_080,
        "pkm_values": 16_777_216,
    }
    assert [type(layer).__name__ for layer in model.layers].count("HippocampalLayer") == 15


def test_parameter_names() -> None:
    names = {name for name, _ in small(layers=2).named_parameters()}
    memory = "layers.1.memory."
    assert names == {
        "embedding.weight",
        "norm.weight",
        *(f"layers.0.{n}.weight" for n in ("norm", "in_proj", "soma_norm", "out_proj")),
        *(f"layers.0.{n}" for n in ("conv_weight", "dt_bias", "A_log", "skip", "theta")),
        *(f"{memory}{n}.weight" for n in ("norm", "q_proj", "k_proj", "v_proj", "o_proj")),
        *(f"{memory}{n}.weight" for n in ("gate_proj", "write_proj", "ctl_proj", "trace.trace_proj")),
        *(f"{memory}{n}" for n in ("q_norm", "k_norm", "qk_scale", "trace.tr_dt_bias", "trace.tr_A_log")),
        *(f"{memory}{n}" for n in ("gate_norm", "gate_theta", "write_bias", "clock_bias", "pi_bias")),
        *(f"{memory}{n}" for n in ("gain_bias", "eta", "lam")),
        *(f"{memory}product_keys.{n}.weight" for n in ("pkm_q", "pkm_out", "pkm_gate")),
        *(f"{memory}product_keys.{n}" for n in ("pkm_q_norm", "pkm_keys", "pkm_gate_bias")),
        "layers.1.pkm_values",
        *(f"layers.1.feed_forward.{n}.weight" for n in ("ffn_norm", "ffn_gate", "ffn_up", "ffn_down")),
        *(f"layers.1.feed_forward.{n}" for n in ("in_theta", "gate_theta_ffn", "up_theta")),
    }
    shared = {name for name, _ in small(layers=2, pkm_shared=True).named_parameters()}
    assert shared == names - {"layers.1.pkm_values"} | {"pkm_values"}


@pytest.mark.parametrize("shared", [False, True])
def test_groups_cover_every_parameter_and_only_matrices_decay(shared: bool) -> None:
    model = small(pkm_shared=shared, neuron_lr_mult=10.0, pkm_lr_mult=2.0)
    groups = {group.name: group for group in model.param_groups()}
    names = [name for group in groups.values() for name, _ in group.params]
    assert sorted(names) == sorted(name for name, _ in model.named_parameters())
    assert {name: (g.decay, g.lr_mult, g.rounded) for name, g in groups.items()} == {
        "embed": (True, 1.0, True),
        "proj": (True, 1.0, True),
        "conv": (False, 1.0, False),
        "norm": (False, 1.0, False),
        "neuron": (False, 10.0, False),
        "pkm_keys": (False, 1.0, True),
        "pkm_values": (False, 2.0, True),
    }
    assert [n for n, _ in groups["embed"].params] == ["embedding.weight"]
    assert all(n.endswith("conv_weight") for n, _ in groups["conv"].params)
    assert all("norm" in n for n, _ in groups["norm"].params)
    assert all(p.ndim == 1 and "norm" not in n.split(".")[-1] for n, p in groups["neuron"].params)
    assert all(p.ndim == 2 and n.endswith(".weight") for n, p in groups["proj"].params)


def test_layer_labels() -> None:
    model = small(pkm_shared=True)
    assert {model.layer_label(name) for name, _ in model.named_parameters()} == {
        "embed",
        "norm",
        "pkm_values",
        *(f"layer{i:02d}" for i in range(4)),
    }
    assert model.layer_label("layers.1.memory.norm.weight") == "layer01"
    assert small().layer_label("layers.3.pkm_values") == "layer03"


def test_one_kind_of_layer_alone() -> None:
    dendritic, hippocampal = small(layers=1), small(layers=1, interval=1)
    for model, missing in ((dendritic, {"pkm_keys", "pkm_values"}), (hippocampal, {"conv"})):
        names = {group.name for group in model.param_groups()}
        assert names == {"embed", "proj", "conv", "norm", "neuron", "pkm_keys", "pkm_values"} - missing
        assert model.logits(token_ids(5)[:, :-1]).isfinite().all()


def test_initial_values_depend_on_seed_and_name_alone() -> None:
    torch.manual_seed(1)
    first = dict(small(seed=7).named_parameters())
    torch.manual_seed(2)
    state = torch.get_rng_state()
    deeper = dict(small(seed=7, layers=8).named_parameters())
    assert torch.equal(torch.get_rng_state(), state)
    for plain in ("layers.2.in_proj.weight", "layers.2.A_log", "layers.3.pkm_values"):
        assert torch.equal(first[plain], deeper[plain]), plain
        assert not torch.equal(first[plain], dict(small(seed=8).named_parameters())[plain])
        assert not torch.equal(first[plain], first[plain.replace("2", "0").replace("3", "1")])
        wide = dict(small(seed=7, dtype=torch.float64).named_parameters())
        torch.testing.assert_close(wide[plain].float(), first[plain], atol=0, rtol=2e-7)


def test_initial_rates() -> None:
    model = small(dendritic_heads=12, dendritic_width=24, trace_heads=5, heads=4)
    dendritic, memory = model.layers[0], model.layers[1].memory
    dt = F.softplus(dendritic.dt_bias)
    assert (dt > 0.99e-3).all() and (dt < 1.01e-1).all() and dt.std() > 0
    tokens = 1 / (dt * dendritic.A_log.exp())
    steps = torch.log(tokens).diff()
    torch.testing.assert_close(steps, steps[:1].expand(11), atol=1e-4, rtol=0)
    assert tokens[0].item() == pytest.approx(2, rel=1e-4)
    assert tokens[-1].item() == pytest.approx(8 * 300, rel=1e-4)
    trace = memory.trace
    trace_dt = F.softplus(trace.tr_dt_bias)
    torch.testing.assert_close(trace_dt, torch.full((5,), 0.05))
    trace_tokens = 1 / (trace_dt * trace.tr_A_log.exp())
    torch.testing.assert_close(
        trace_tokens, torch.logspace(math.log10(4), math.log10(4096), 5), rtol=1e-4, atol=0
    )
    clock = 1 / F.softplus(memory.clock_bias)
    torch.testing.assert_close(clock, torch.logspace(math.log10(64), math.log10(600), 4), rtol=1e-4, atol=0)
    assert F.softplus(memory.lam).tolist() == pytest.approx([3.0] * 4)


CONSTANTS = {
    **dict.fromkeys(("skip", "qk_scale"), 1.0),
    **dict.fromkeys(("theta", "in_theta", "gate_theta_ffn", "up_theta"), 0.1),
    **dict.fromkeys(("pi_bias", "gain_bias", "pkm_gate_bias"), 0.0),
    **dict.fromkeys(("gate_theta", "eta"), 0.5),
    "write_bias": 2.0,
    "lam": math.log(math.exp(3) - 1),
}
"""First values that are the same for all heads or channels, by the last part of the name; of a gain 1."""


def test_initial_constants() -> None:
    rates, seen = {"dt_bias", "A_log", "tr_dt_bias", "tr_A_log", "clock_bias"}, set()
    for name, param in small(dtype=torch.float64).named_parameters():
        own = name.removesuffix(".weight").rpartition(".")[2]
        if param.ndim == 1 and own not in rates:
            wanted = 1.0 if own.endswith("norm") else CONSTANTS[own]
            assert param.tolist() == pytest.approx([wanted] * len(param)), name
            seen.add(own)
    assert seen > CONSTANTS.keys()


def test_initial_steps_are_even_in_their_logarithm() -> None:
    steps = F.softplus(
        small(dendritic_width=4_000, dendritic_heads=4_000).layers[0].dt_bias.detach().double()
    )
    shares = (steps.log10() + 3).div(2).sort().values
    assert (shares - torch.linspace(0, 1, 4_000)).abs().max() < 0.03


def test_initial_spread() -> None:
    model = build("nano-cpu", None, 2_000, 0)
    c = model.config
    assert model.embedding.weight.std().item() == pytest.approx(0.9 / math.sqrt(c.width), rel=0.02)
    residual = math.sqrt(10)  # six dendritic layers, two hippocampal ones
    for name, param in model.named_parameters():
        last = name.rsplit(".", 1)[-1]
        if last == "conv_weight":
            assert param[:, :-1].std().item() == pytest.approx(0.1, rel=0.1)
            assert param[:, -1].mean().item() == pytest.approx(1, abs=0.02)
        elif last == "pkm_keys":
            assert param.std().item() == pytest.approx(1 / 4, rel=0.1)
        elif last == "pkm_values":
            assert param.std().item() == pytest.approx(1 / 8, rel=0.1)
        elif param.ndim == 2:
            wanted = 0.9 / math.sqrt(param.shape[1])
            if name.endswith(("out_proj.weight", "o_proj.weight", "pkm_out.weight", "ffn_down.weight")):
                wanted /= residual
            elif name.endswith(("write_proj.weight", "ctl_proj.weight")):
                wanted /= 10
            assert param.std().item() == pytest.approx(wanted, rel=0.15), name


def test_scores_at_the_start_are_spread_by_0_9() -> None:
    model = build("nano-cpu", None, 320, 0)
    with torch.no_grad():
        assert model.logits(token_ids(100, vocab=320)[:, :-1]).std().item() == pytest.approx(0.9, rel=0.05)


@pytest.mark.parametrize("T", [1, 70])
def test_flops_of_matrices_are_those_that_torch_counts(T: int) -> None:
    """Torch counts products of matrices; the rest is what our operators do inside."""
    model = small()
    c = model.config
    counter = FlopCounterMode(display=False)
    with counter, torch.no_grad():
        model.logits(token_ids(T)[:, :-1])
    convolutions = 2 * c.conv_channels * c.conv_width
    scans = 5 * c.dendritic_width * c.compartments
    reads = 5 * c.trace_width + 2 * c.width * T + 2 * c.pkm_heads * c.pkm_top * c.pkm_value_dim
    others = 2 * (convolutions + scans + reads)
    assert model.flops_per_token(T) == 3 * (counter.get_total_flops() / (2 * T) + others)


def test_flops_of_recomputation() -> None:
    model = small()
    extra = {ac: model.recomputed_flops_per_token(100, ac) for ac in model.recomputation}
    assert extra["none"] == 0
    assert 0 < extra["scan"] < extra["dendritic"] < extra["full"]
    assert extra["full"] == extra["dendritic"] + extra["hippocampal"]
    head = 2.0 * 16 * VOCAB
    assert extra["full"] == model.flops_per_token(100) / 3 - head
    assert model.recomputed_flops_per_token(100, "half") is None


def test_the_cost_of_the_largest_is_that_of_its_matrices() -> None:
    """6 per parameter that a token multiplies, and a few per cent for scans and the pool at rows of 4,096."""
    model = _shapes("ns-2b")
    assert model.flops_per_token(4_096) == pytest.approx(6 * 2.05e9 * 1.08, rel=0.03)


def test_a_bad_configuration_is_refused_with_all_its_problems() -> None:
    bad = CONFIG | {"width": 0, "heads": True, "release": "loud", "pkm_shared": 1, "depth": 3, "ffn": 2.5}
    del bad["gate_width"]
    with pytest.raises(Refused) as refused:
        build("neuronspark", bad, VOCAB, 0)
    assert list(refused.value.problems) == [
        "model.config.depth is not a setting of neuronspark",
        "model.config.ffn is 2.5; expected a positive integer",
        "model.config.gate_width is missing",
        "model.config.heads is True; expected a positive integer",
        "model.config.pkm_shared is 1; expected true or false",
        "model.config.release is 'loud'; expected graded or binary",
        "model.config.width is 0; expected a positive integer",
    ]


def problems_of(**changes: Any) -> list[str]:
    """Why a small model with these settings is refused."""
    with pytest.raises(Refused) as refused:
        small(**changes)
    return list(refused.value.problems)


def test_sizes_that_do_not_fit_together_are_refused_at_once() -> None:
    bad = {
        "width": 20,
        "dendritic_width": 25,
        "dendritic_heads": 3,
        "key_heads": 3,
        "pkm_key_dim": 5,
        "pkm_top": 6,
    }
    assert problems_of(**bad) == [
        "model.config.dendritic_heads 3 must be a multiple of model.config.synapse_groups, 2",
        "model.config.dendritic_width 25 must be a multiple of model.config.dendritic_heads, 3",
        "model.config.heads 4 must be a multiple of model.config.key_heads, 3",
        "model.config.pkm_key_dim 5 must be a multiple of two",
        "model.config.pkm_top 6 is more than model.config.pkm_keys 5",
        "model.config.width 20 must be a multiple of twice model.config.heads, 8",
    ]


def test_what_does_not_fit_is_refused_beside_what_is_wrong_in_itself() -> None:
    """Misfits were only said once everything else was right."""
    bad = {"width": 20, "ffn": 0, "dendritic_heads": None, "pkm_top": 6, "release": "loud"}
    assert problems_of(**bad) == [
        "model.config.dendritic_heads is missing",
        "model.config.ffn is 0; expected a positive integer",
        "model.config.pkm_top 6 is more than model.config.pkm_keys 5",
        "model.config.release is 'loud'; expected graded or binary",
        "model.config.width 20 must be a multiple of twice model.config.heads, 8",
    ]


def test_presets_name_settings_of_the_family() -> None:
    known = {field.name for field in fields(NeuronSparkConfig)}
    for name in COUNTS:
        assert PRESETS[name].config.keys() <= known
        assert NeuronSparkConfig.read(PRESETS[name].config).rope_max_seq_len == (
            2_048 if name.endswith("cpu") else 32_768
        )
