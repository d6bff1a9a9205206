"""The Llama family: initial values by name, causality, gradients, recomputation, groups and FLOPs."""

import math

import pytest
import torch
from torch import Tensor
from torch.nn import functional as F

from trainer_core.errors import Refused
from trainer_core.models.llama import Llama, LlamaConfig
from trainer_core.models.registry import build

CONFIG = {"layers": 2, "width": 32, "heads": 2, "ffn": 48, "rope_max_seq_len": 300}


def _model(seed: int = 0, vocab: int = 50, dtype: torch.dtype = torch.float32, **config: int | str) -> Llama:
    model = build("llama", CONFIG | config, vocab, seed, dtype)
    assert isinstance(model, Llama)
    return model


def _ids(T: int, rows: int = 3, vocab: int = 50) -> torch.Tensor:
    return torch.randint(vocab, (rows, T + 1), generator=torch.Generator().manual_seed(T))


def _gradients(model: Llama, ids: torch.Tensor, ac: str) -> list[torch.Tensor]:
    total, _ = model.loss(ids[:, :-1], ids[:, 1:], ac)
    return list(torch.autograd.grad(total, list(model.parameters())))


def _plain_logits(w: dict[str, Tensor], ids: Tensor, c: LlamaConfig) -> Tensor:
    """The published equations with library calls, on the model's tensors."""
    d, T = c.width // c.heads, ids.shape[1]
    wavelengths = torch.tensor([c.rope_theta ** (2 * j / d) for j in range(d // 2)], dtype=torch.float64)
    turn = torch.polar(torch.ones(T, d // 2).double(), torch.arange(T)[:, None] / wavelengths)

    def norm(x: Tensor, name: str) -> Tensor:
        return F.rms_norm(x, x.shape[-1:], w[f"{name}.weight"], c.norm_eps)

    def rotated(x: Tensor) -> Tensor:
        """Channels j and j + d / 2 as one complex number, turned by the position over its wavelength."""
        y = torch.complex(*x.chunk(2, -1)) * turn
        return torch.cat((y.real, y.imag), -1)

    x = w["embedding.weight"][ids]
    for i in range(c.layers):
        p = f"blocks.{i}"
        h = norm(x, f"{p}.attention_norm")
        q, k, v = (
            F.linear(h, w[f"{p}.attention.{name}_proj.weight"]).view(*ids.shape, c.heads, d).transpose(1, 2)
            for name in "qkv"
        )
        out = F.scaled_dot_product_attention(rotated(q), rotated(k), v, is_causal=True)
        x = x + F.linear(out.transpose(1, 2).reshape(x.shape), w[f"{p}.attention.out_proj.weight"])
        h = norm(x, f"{p}.ffn_norm")
        gate, up = (F.linear(h, w[f"{p}.ffn.{name}_proj.weight"]) for name in ("gate", "up"))
        x = x + F.linear(F.silu(gate) * up, w[f"{p}.ffn.down_proj.weight"])
    return F.linear(norm(x, "norm"), w["embedding.weight"])


@pytest.mark.parametrize("attention", ["fast", "reference"])
@pytest.mark.parametrize("T", [1, 130])
def test_scores_and_gradients_equal_the_plain_model(T: int, attention: str) -> None:
    model, ids = _model(dtype=torch.float64, attention=attention), _ids(T)
    generator = torch.Generator().manual_seed(1)
    with torch.no_grad():
        for param in model.parameters():
            param.add_(torch.randn(param.shape, generator=generator, dtype=param.dtype), alpha=0.1)
    plain = _plain_logits(dict(model.named_parameters()), ids[:, :-1], model.config)
    torch.testing.assert_close(model.logits(ids[:, :-1]), plain, atol=1e-11, rtol=1e-11)
    loss = F.cross_entropy(plain.flatten(0, 1), ids[:, 1:].flatten(), reduction="sum")
    expected = torch.autograd.grad(loss, list(model.parameters()), materialize_grads=True)
    for got, wanted in zip(_gradients(model, ids, "none"), expected, strict=True):
        torch.testing.assert_close(got, wanted, atol=1e-10, rtol=1e-9)


def test_parameter_names() -> None:
    names = {name for name, _ in _model(layers=1).named_parameters()}
    assert names == {
        "embedding.weight",
        "norm.weight",
        "blocks.0.attention_norm.weight",
        "blocks.0.ffn_norm.weight",
        *(f"blocks.0.attention.{p}_proj.weight" for p in ("q", "k", "v", "out")),
        *(f"blocks.0.ffn.{p}_proj.weight" for p in ("gate", "up", "down")),
    }


def test_initial_values_depend_on_seed_and_name_alone() -> None:
    torch.manual_seed(1)
    first = dict(_model(seed=7).named_parameters())
    torch.manual_seed(2)
    state = torch.get_rng_state()
    deeper = dict(_model(seed=7, layers=3).named_parameters())
    assert torch.equal(torch.get_rng_state(), state)
    plain = "blocks.1.attention.q_proj.weight"
    assert torch.equal(first[plain], deeper[plain])
    assert not torch.equal(first[plain], first["blocks.0.attention.q_proj.weight"])
    assert not torch.equal(first[plain], dict(_model(seed=8).named_parameters())[plain])
    wide = dict(_model(seed=7, dtype=torch.float64).named_parameters())
    assert torch.equal(wide[plain].float(), first[plain])


def test_initial_spread() -> None:
    model = _model(vocab=2_000)
    assert model.embedding.weight.std().item() == pytest.approx(0.02, rel=0.02)
    for name, param in model.named_parameters():
        if name.endswith(("out_proj.weight", "down_proj.weight")):
            assert param.std().item() == pytest.approx(0.02 / math.sqrt(4), rel=0.1), name
        elif param.ndim == 1:
            assert torch.equal(param, torch.ones_like(param))
        else:
            assert param.std().item() == pytest.approx(0.02, rel=0.1), name


def test_first_loss_is_that_of_a_uniform_guess() -> None:
    ids = _ids(40)
    total, count = _model().loss(ids[:, :-1], ids[:, 1:])
    assert int(count) == 120
    assert (total / count).item() == pytest.approx(math.log(50), abs=0.05)


@pytest.mark.parametrize("T", [1, 127, 128, 129, 260])
def test_loss_is_the_cross_entropy_of_the_logits(T: int) -> None:
    model, ids = _model(dtype=torch.float64), _ids(T)
    targets = ids[:, 1:].clone()
    targets[1] = -100
    total, count = model.loss(ids[:, :-1], targets)
    logits = model.logits(ids[:, :-1]).flatten(0, 1)
    expected = torch.nn.functional.cross_entropy(logits, targets.flatten(), reduction="sum")
    torch.testing.assert_close(total, expected, atol=0, rtol=1e-12)
    assert int(count) == 2 * T


def test_no_token_sees_its_future() -> None:
    model, ids = _model(), _ids(200)[:, :-1]
    changed = ids.clone()
    changed[:, 150:] = (changed[:, 150:] + 1) % 50
    before, after = model.logits(ids), model.logits(changed)
    assert torch.equal(before[:, :150], after[:, :150])
    assert not torch.equal(before[:, 150:], after[:, 150:])


def test_recomputation_gives_bit_identical_gradients() -> None:
    model, ids = _model(), _ids(140)
    kept = _gradients(model, ids, "none")
    for again in (_gradients(model, ids, "none"), _gradients(model, ids, "full")):
        assert all(torch.equal(a, b) for a, b in zip(kept, again, strict=True))
    with pytest.raises(AssertionError, match="half"):
        model.loss(ids[:, :-1], ids[:, 1:], "half")


def test_every_parameter_learns_at_the_start() -> None:
    model = _model()
    for (name, _), grad in zip(model.named_parameters(), _gradients(model, _ids(50), "none"), strict=True):
        assert grad.isfinite().all() and grad.any(), name


def test_gradients_equal_finite_differences() -> None:
    model, ids = _model(dtype=torch.float64), _ids(9)
    grads = dict(zip(dict(model.named_parameters()), _gradients(model, ids, "none"), strict=True))
    g = torch.Generator().manual_seed(0)
    for name, param in model.named_parameters():
        direction = torch.randn(param.shape, generator=g, dtype=torch.float64)
        losses = []
        for sign in (1, -1):
            with torch.no_grad():
                param.add_(direction, alpha=sign * 1e-5)
                losses.append(float(model.loss(ids[:, :-1], ids[:, 1:])[0]))
                param.add_(direction, alpha=-sign * 1e-5)
        slope = (losses[0] - losses[1]) / 2e-5
        assert slope == pytest.approx(float((grads[name] * direction).sum()), rel=1e-5, abs=1e-6), name


def test_rows_longer_than_the_tables_are_our_bug() -> None:
    with pytest.raises(AssertionError, match="301"):
        _model().logits(_ids(301)[:, :-1])


def test_groups_cover_every_parameter_and_spare_the_norms() -> None:
    model = _model()
    groups = {group.name: group for group in model.param_groups()}
    names = [name for group in groups.values() for name, _ in group.params]
    assert sorted(names) == sorted(name for name, _ in model.named_parameters())
    assert {name: group.decay for name, group in groups.items()} == {
        "embed": True,
        "proj": True,
        "norm": False,
    }
    assert [name for name, _ in groups["embed"].params] == ["embedding.weight"]
    assert all(name.endswith("norm.weight") for name, _ in groups["norm"].params)
    assert model.layer_label("blocks.1.ffn.up_proj.weight") == "layer01"
    assert model.layer_label("embedding.weight") == "embedding"
    assert model.layer_label("norm.weight") == "norm"


def test_flops_count_the_head_and_half_of_attention() -> None:
    layer = 4 * 32 * 32 + 3 * 32 * 48
    assert _model().flops_per_token(100) == 6 * (2 * layer + 50 * 32) + 6 * 2 * 32 * 100


def test_probe_is_empty() -> None:
    assert _model().probe(_ids(4), train_length=4, eos=0) == {}


def test_prefill_and_single_steps_equal_the_parallel_pass() -> None:
    model, ids = _model(), _ids(140)[:, :-1]
    with torch.no_grad():
        wanted = model.logits(ids)
        state = model.init_state(len(ids))
        found = []
        for part in ids.split([130, 1, 1, 5, 1, 2], dim=1):
            scores, state = model.advance(part, state)
            found.append(scores)
    torch.testing.assert_close(torch.cat(found, 1), wanted, atol=1e-5, rtol=0)


def test_a_state_can_be_advanced_twice() -> None:
    model, ids = _model(), _ids(9)[:, :-1]
    with torch.no_grad():
        _, state = model.advance(ids[:, :5], model.init_state(len(ids)))
        first, _ = model.advance(ids[:, 5:], state)
        model.advance(ids[:, :3], state)
        again, _ = model.advance(ids[:, 5:], state)
    assert torch.equal(first, again)


@pytest.mark.parametrize("T", [1, 129, 200])
def test_reference_attention_equals_the_fast_one(T: int) -> None:
    fast, plain = (_model(dtype=torch.float64, attention=which) for which in ("fast", "reference"))
    ids = _ids(T)
    for a, b in zip(_gradients(fast, ids, "none"), _gradients(plain, ids, "full"), strict=True):
        torch.testing.assert_close(a, b, atol=1e-12, rtol=1e-10)
    with pytest.raises(Refused, match=r"model\.config\.attention is 'flash'; expected fast or reference"):
        _model(attention="flash")
