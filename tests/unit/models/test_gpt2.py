"""The GPT-2 family: names and counts, a plain twin, dropout by the counter, recomputation, decoding."""

import math

import pytest
import torch
from torch import Tensor
from torch.nn import functional as F

from trainer_core.errors import Refused
from trainer_core.models.gpt2 import GPT2
from trainer_core.models.registry import build

CONFIG = {"layers": 2, "width": 32, "heads": 4, "n_positions": 300, "dropout": 0.1}
VOCAB = 50


def _model(dtype: torch.dtype = torch.float32, seed: int = 0, **config: float | str) -> GPT2:
    model = build("gpt2", CONFIG | config, VOCAB, seed, dtype)
    assert isinstance(model, GPT2)
    model.dropout_counter = torch.tensor([5, 0, 0])
    return model


def _ids(T: int, rows: int = 2) -> Tensor:
    return torch.randint(VOCAB, (rows, T + 1), generator=torch.Generator().manual_seed(T))


def _gradients(model: GPT2, ids: Tensor, ac: str = "none") -> list[Tensor]:
    total, _ = model.loss(ids[:, :-1], ids[:, 1:], ac)
    return list(torch.autograd.grad(total, list(model.parameters())))


def _plain_logits(w: dict[str, Tensor], ids: Tensor, layers: int, heads: int) -> Tensor:
    """The published equations with library calls, on the model's tensors."""

    def norm(x: Tensor, name: str) -> Tensor:
        return F.layer_norm(x, x.shape[-1:], w[f"{name}.weight"], w[f"{name}.bias"], 1e-5)

    def project(x: Tensor, name: str) -> Tensor:
        return x @ w[f"{name}.weight"] + w[f"{name}.bias"]

    x = w["wte.weight"][ids] + w["wpe.weight"][torch.arange(ids.shape[1])]
    for i in range(layers):
        q, k, v = (
            part.view(*ids.shape, heads, -1).transpose(1, 2)
            for part in project(norm(x, f"h.{i}.ln_1"), f"h.{i}.attn.c_attn").split(x.shape[-1], -1)
        )
        out = F.scaled_dot_product_attention(q, k, v, is_causal=True).transpose(1, 2).reshape(x.shape)
        x = x + project(out, f"h.{i}.attn.c_proj")
        u = project(norm(x, f"h.{i}.ln_2"), f"h.{i}.mlp.c_fc")
        gelu = 0.5 * u * (1 + torch.tanh(math.sqrt(2 / math.pi) * (u + 0.044715 * u**3)))
        x = x + project(gelu, f"h.{i}.mlp.c_proj")
    return norm(x, "ln_f") @ w["wte.weight"].T


def _perturbed(model: GPT2) -> GPT2:
    """Gains and biases away from one and zero, so that a mix-up shows."""
    generator = torch.Generator().manual_seed(1)
    with torch.no_grad():
        for param in model.parameters():
            param.add_(torch.randn(param.shape, generator=generator, dtype=param.dtype), alpha=0.1)
    return model


def test_the_70m_preset_has_the_published_count() -> None:
    with torch.device("meta"):
        model = build("gpt2-70m", None, 50_257, 0)
    assert sum(param.numel() for param in model.parameters()) == 64_085_504
    assert model.config.dropout == 0.1 and model.config.rope_max_seq_len == 1_024


def test_names_and_shapes_are_the_published_ones() -> None:
    shapes = {name: tuple(param.shape) for name, param in _model(layers=1).named_parameters()}
    block = {
        "ln_1.weight": (32,),
        "ln_1.bias": (32,),
        "attn.c_attn.weight": (32, 96),
        "attn.c_attn.bias": (96,),
        "attn.c_proj.weight": (32, 32),
        "attn.c_proj.bias": (32,),
        "ln_2.weight": (32,),
        "ln_2.bias": (32,),
        "mlp.c_fc.weight": (32, 128),
        "mlp.c_fc.bias": (128,),
        "mlp.c_proj.weight": (128, 32),
        "mlp.c_proj.bias": (32,),
    }
    ends = {"wte.weight": (VOCAB, 32), "wpe.weight": (300, 32), "ln_f.weight": (32,), "ln_f.bias": (32,)}
    assert shapes == ends | {f"h.0.{name}": shape for name, shape in block.items()}


@pytest.mark.parametrize("attention", ["fast", "reference"])
@pytest.mark.parametrize("T", [1, 130])
def test_logits_and_loss_equal_the_plain_model(T: int, attention: str) -> None:
    model, ids = _perturbed(_model(torch.float64, attention=attention)), _ids(T)
    weights = dict(model.named_parameters())
    plain = _plain_logits(weights, ids[:, :-1], 2, 4)
    torch.testing.assert_close(model.logits(ids[:, :-1]), plain, atol=1e-11, rtol=1e-11)
    targets = ids[:, 1:].clone()
    targets[0, 0] = -100
    with torch.no_grad():
        total, count = model.loss(ids[:, :-1], targets)
    expected = F.cross_entropy(plain.flatten(0, 1), targets.flatten(), reduction="sum")
    torch.testing.assert_close(total, expected, atol=0, rtol=1e-12)
    assert int(count) == 2 * T - 1


def test_gradients_equal_those_of_the_plain_model_without_dropout() -> None:
    model, ids = _perturbed(_model(torch.float64, dropout=0.0)), _ids(20)
    model.dropout_counter = None
    plain = _plain_logits(dict(model.named_parameters()), ids[:, :-1], 2, 4)
    loss = F.cross_entropy(plain.flatten(0, 1), ids[:, 1:].flatten(), reduction="sum")
    expected = torch.autograd.grad(loss, list(model.parameters()))
    for got, wanted in zip(_gradients(model, ids), expected, strict=True):
        torch.testing.assert_close(got, wanted, atol=1e-10, rtol=1e-9)


def test_initial_spread() -> None:
    model = build("gpt2", CONFIG | {"width": 64}, 2_000, 0)
    for name, param in model.named_parameters():
        if name.endswith("bias"):
            assert not param.any(), name
        elif param.ndim == 1:
            assert torch.equal(param, torch.ones_like(param)), name
        else:
            wanted = 0.02 / math.sqrt(4) if name.endswith("c_proj.weight") else 0.02
            assert param.std().item() == pytest.approx(wanted, rel=0.05), name


def test_training_drops_by_the_counter_and_evaluations_drop_nothing() -> None:
    model, ids = _model(), _ids(140)
    rows = ids[:, :-1], ids[:, 1:]
    losses = []
    for micro in (0, 1, 0):
        model.dropout_counter = torch.tensor([5, 0, micro])
        losses.append(float(model.loss(*rows)[0].detach()))
    assert losses[0] == losses[2] != losses[1]
    with torch.no_grad():
        quiet = float(model.loss(*rows)[0])
        assert quiet == float(_without_dropout(model).loss(*rows)[0])
    assert quiet not in losses


def _without_dropout(model: GPT2) -> GPT2:
    """A model of the same weights that drops nothing ever."""
    other = _model(dropout=0.0)
    other.load_state_dict(model.state_dict())
    return other


def test_every_place_drops_elements_of_its_own(monkeypatch: pytest.MonkeyPatch) -> None:
    """Embedding, and in each block attention weights by blocks of queries, attention and feed-forward."""
    from trainer_core.kernels.attention import block_causal
    from trainer_core.kernels.dropout import dropout
    from trainer_core.models import gpt2

    sites = []

    def noted(x: Tensor, counter: Tensor, site: int, p: float) -> Tensor:
        assert p == 0.1
        sites.append((site, tuple(x.shape)))
        return dropout(x, counter, site, p)

    monkeypatch.setattr(gpt2, "dropout", noted)
    monkeypatch.setattr(block_causal, "dropout", noted)
    model, ids = _model(), _ids(140, rows=1)
    model.loss(ids[:, :-1], ids[:, 1:])
    stream, probs = (1, 140, 32), [(4, 128, 128), (4, 12, 140)]
    assert [shape for _, shape in sites] == [stream, *([*probs, stream, stream] * 2)]
    assert len({site for site, _ in sites}) == len(sites)


@pytest.mark.parametrize("attention", ["fast", "reference"])
@pytest.mark.parametrize("T", [40, 140])
def test_recomputation_gives_bit_identical_gradients(T: int, attention: str) -> None:
    model, ids = _model(attention=attention), _ids(T)
    kept = _gradients(model, ids, "none")
    for ac in model.recomputation:
        assert all(torch.equal(a, b) for a, b in zip(kept, _gradients(model, ids, ac), strict=True))
    with pytest.raises(AssertionError, match="scan"):
        model.loss(ids[:, :-1], ids[:, 1:], "scan")


def test_reference_attention_drops_the_same_elements() -> None:
    fast, plain = (_model(torch.float64, attention=which) for which in ("fast", "reference"))
    ids = _ids(150)
    for a, b in zip(_gradients(fast, ids), _gradients(plain, ids), strict=True):
        torch.testing.assert_close(a, b, atol=1e-12, rtol=1e-10)


def test_every_parameter_learns_and_no_token_sees_its_future() -> None:
    model, ids = _model(), _ids(200)
    for (name, _), grad in zip(model.named_parameters(), _gradients(model, ids), strict=True):
        assert grad.isfinite().all() and grad.any(), name
    changed = ids[:, :-1].clone()
    changed[:, 150:] = (changed[:, 150:] + 1) % VOCAB
    before, after = model.logits(ids[:, :-1]), model.logits(changed)
    assert torch.equal(before[:, :150], after[:, :150])
    assert not torch.equal(before[:, 150:], after[:, 150:])


def test_prefill_and_single_steps_equal_the_parallel_pass() -> None:
    model, ids = _perturbed(_model()), _ids(140)[:, :-1]
    state = model.init_state(len(ids))
    found = []
    for part in ids.split([130, 1, 1, 6, 2], dim=1):
        scores, state = model.advance(part, state)
        found.append(scores)
    wanted = model.logits(ids)
    torch.testing.assert_close(torch.cat(found, 1), wanted, atol=1e-5, rtol=0)


def test_groups_cover_every_parameter_and_spare_norms_and_biases() -> None:
    model = _model()
    groups = {group.name: group for group in model.param_groups()}
    names = [name for group in groups.values() for name, _ in group.params]
    assert sorted(names) == sorted(name for name, _ in model.named_parameters())
    assert {name for name, group in groups.items() if group.decay} == {"embed", "proj"}
    for group in groups.values():
        assert all((param.ndim >= 2) == group.decay for _, param in group.params)
    assert [name for name, _ in groups["embed"].params] == ["wte.weight", "wpe.weight"]
    assert all("ln_" in name for name, _ in groups["norm"].params)
    labels = [model.layer_label(n) for n in ("h.1.mlp.c_fc.bias", "wte.weight", "wpe.weight", "ln_f.bias")]
    assert labels == ["layer01", "embedding", "positions", "norm"]


def test_flops_count_matrices_and_half_of_attention() -> None:
    block = 12 * 32 * 32
    assert _model().flops_per_token(100) == 6 * (2 * block + VOCAB * 32) + 6 * 2 * 32 * 100


def test_every_mistake_is_reported_at_once() -> None:
    wrong = {"layers": 2, "width": 32.5, "dropout": 1, "attention": "flash", "ffn": 3, "norm_eps": None}
    with pytest.raises(Refused) as caught:
        build("gpt2", wrong, VOCAB, 0)
    text = "\n".join(caught.value.problems)
    assert len(caught.value.problems) == 6
    for key in ("heads", "width", "dropout", "attention", "ffn", "norm_eps"):
        assert f"model.config.{key}" in text
    with pytest.raises(Refused, match=r"multiple of model\.config\.heads, 3"):
        build("gpt2", CONFIG | {"heads": 3}, VOCAB, 0)
