"""The bfloat16 copy that a model computes with, and the moving average: views, sums, skips, resume, ranks."""

import math
from dataclasses import replace

import pytest
import torch
from torch import Tensor

from tests.unit.engine.plain_llama import PlainLlama
from tests.unit.engine.toys import Recorded, bits, recorded_gradients, rows_of, token_rows
from trainer_core.engine.backends.eager_replay import EagerReplay
from trainer_core.engine.backends.meta_check import MetaCheck
from trainer_core.engine.flat import flat_state
from trainer_core.engine.step import Step, UpdateScalars
from trainer_core.kernels import adamw
from trainer_core.kernels.wide_gradient import wide_gradient
from trainer_core.models.registry import build

BF16 = torch.bfloat16
SCALARS = UpdateScalars(lr=3e-3, weight_decay=0.1, ema_weight=0.1)


def _nano(ac: str = "none", **settings):
    model = build("llama-nano-cpu", None, 64, 0)
    state = flat_state(model, ema=True, shadow=BF16)
    step = Step(
        model_loss=lambda ids, targets: model.loss(ids, targets, ac),
        state=state,
        backend=EagerReplay(strict=True),
        **settings,
    )
    return model, state, step


def _recorded(gradients, **settings):
    model = Recorded(gradients, torch.float32)
    state = flat_state(model, ema=True, shadow=BF16)
    return state, Step(model_loss=model.loss, state=state, backend=EagerReplay(), **settings)


def _train(step: Step, updates: range) -> None:
    for i in updates:
        step.update([token_rows(i, 5), token_rows(100 + i, 3)], SCALARS)


def test_the_parameters_are_the_rounded_ones_and_have_no_gradient_of_their_own() -> None:
    model, state, step = _nano()
    _train(step, range(2))
    params = dict(model.named_parameters())
    for slot in state.layout.slots:
        param = params[slot.name]
        assert param.dtype == BF16 and param.grad is None
        assert param.data_ptr() == state.W[slot.offset :].data_ptr()
        assert wide_gradient(param).data_ptr() == state.G[slot.offset :].data_ptr()
    assert torch.equal(state.W, state.P.to(BF16))
    assert not state.G.any()


def test_a_gradient_or_parameter_elsewhere_is_found() -> None:
    model, state, step = _nano()
    _train(step, range(1))
    model.norm.weight.grad = torch.zeros_like(model.norm.weight)
    assert state.unbound() == ["the gradient of norm.weight left the flat gradients"]
    model.norm.weight.grad = None
    state._hooks[-1].remove()
    with pytest.raises(AssertionError, match="left the flat gradients"):
        _train(step, range(1, 2))
    model, state, step = _nano()
    model.norm.weight.data = model.norm.weight.data.clone()
    assert state.unbound() == ["norm.weight left the flat parameters"]
    with pytest.raises(AssertionError, match=r"bfloat16, the state is torch\.float32"):
        flat_state(model)


def test_a_group_that_is_not_rounded_stays_in_float32() -> None:
    """Its parameters and gradients are views of P and G beside a shadow, and of E in an average."""
    model = build("llama-nano-cpu", None, 64, 0)
    groups = [replace(group, rounded=group.name != "norm") for group in model.param_groups()]
    model.param_groups = lambda: groups
    state = flat_state(model, ema=True, shadow=BF16)
    loss = model.loss
    step = Step(
        model_loss=lambda ids, targets: loss(ids, targets), state=state, backend=EagerReplay(strict=True)
    )
    before = model.norm.weight.detach().clone()
    _train(step, range(3))
    norm, slot = model.norm.weight, next(s for s in state.layout.slots if s.name == "norm.weight")
    assert norm.dtype == torch.float32 and not torch.equal(norm, before)
    assert norm.data_ptr() == state.P[slot.offset :].data_ptr()
    assert norm.grad.data_ptr() == state.G[slot.offset :].data_ptr()
    assert model.embedding.weight.dtype == BF16
    with state.averaged():
        assert norm.data_ptr() == state.E[slot.offset :].data_ptr()
        assert model.embedding.weight.dtype == BF16
    assert norm.data_ptr() == state.P[slot.offset :].data_ptr()
    state.assert_bound()


def test_many_small_gradients_add_up() -> None:
    """Where the sum is 256, one more is nothing in bfloat16: 512 micro-batches of 1 would stay at 256."""
    kept = []

    def keep(buffers: adamw.Buffers, coefficients: adamw.Coefficients) -> None:
        kept.append(buffers.G.clone())
        buffers.G.zero_()

    gradients = [[torch.ones_like(g, dtype=BF16) for g in recorded_gradients(1)[0]]]
    _, step = _recorded(gradients, optimizer=keep)
    micro = [rows_of(0)] * 512
    step.update(micro, UpdateScalars(lr=1.0, weight_decay=0.0))
    # each micro-batch has 4 targets of 2048, so its gradient counts 4/2048
    assert kept[0].max().item() == 1.0


@pytest.mark.parametrize("optimizer", [adamw.update_reference, adamw.update_cpu])
@pytest.mark.parametrize("planted", [math.inf, math.nan])
def test_a_skipped_update_leaves_average_and_copy(optimizer, planted: float) -> None:
    gradients = recorded_gradients(4, BF16)
    gradients[2][1][3, 5] = planted
    state, step = _recorded(gradients, optimizer=optimizer)
    for i in range(4):
        before = [t.clone() for t in (state.P, state.M, state.V, state.E, state.W)]
        skipped = step.update([rows_of(i)], SCALARS).skipped
        assert skipped == (i == 2)
        for old, new in zip(before, (state.P, state.M, state.V, state.E, state.W), strict=True):
            assert torch.equal(old, new) == skipped
        assert not state.G.any()


@pytest.mark.parametrize("optimizer", [adamw.update_reference, adamw.update_cpu])
def test_the_average_follows_at_its_weight_and_is_the_parameters_at_one(optimizer) -> None:
    state, step = _recorded(recorded_gradients(6, BF16), optimizer=optimizer)
    assert torch.equal(state.E, state.P)
    wanted = state.E.double()
    for i, weight in enumerate((1.0, 0.3, 0.0, 0.05, 1.0, 0.7)):
        scalars = UpdateScalars(lr=0.1, weight_decay=0.1, ema_weight=weight)
        step.update([rows_of(i)], scalars)
        wanted += weight * (state.P.double() - wanted)
        assert (state.E - wanted).abs().max().item() < 1e-6
        assert torch.equal(state.E.view(torch.int32), state.P.view(torch.int32)) == (weight == 1.0)


def test_a_weight_of_one_keeps_even_the_sign_of_zero() -> None:
    for update in (adamw.update_reference, adamw.update_cpu):
        P = torch.tensor([-0.0, 0.0, 1.0])
        b = adamw.Buffers(
            P=P, G=torch.zeros(3), M=torch.zeros(3), V=torch.zeros(3), E=torch.tensor([5.0, -5.0, 0.0])
        )
        numbers = dict.fromkeys(
            ("lr", "weight_decay", "beta1", "beta2"), torch.zeros((), dtype=torch.float64)
        )
        one = torch.ones((), dtype=torch.float64)
        c = adamw.Coefficients(
            **numbers,
            eps=one,
            clip=one,
            products=torch.zeros(2, dtype=torch.float64),
            applied=torch.tensor(1),
            ok=torch.tensor(True),
            ema_weight=one,
        )
        update(b, c)
        assert torch.equal(b.E.view(torch.int32), b.P.view(torch.int32)), update


def test_resuming_is_exact_and_the_copy_is_made_anew() -> None:
    _, straight, step = _nano()
    _train(step, range(5))
    _, first, step = _nano()
    _train(step, range(3))
    saved = first.state_tensors()
    assert set(saved) == {"params", "exp_avg", "exp_avg_sq", "ema"}
    _, second, step = _nano()
    second.W.fill_(math.nan)
    for name, tensor in second.state_tensors().items():
        tensor.copy_(saved[name])
    second.load_scalars(first.scalars())
    _train(step, range(3, 5))
    assert bits(second) == bits(straight)
    assert torch.equal(second.W, straight.W)
    assert len(second.buffers()) == 6 and len(flat_state(build("llama-nano-cpu", None, 64, 0)).buffers()) == 4


@pytest.mark.parametrize("ac", ["none", "full"])
def test_evaluations_recomputation_and_preparing_change_no_bit(ac: str) -> None:
    _, plain, step = _nano()
    _train(step, range(2))
    _, state, step = _nano(ac)
    step.prepare([(5, 24), (3, 24)], [(2, 24)])
    for i in range(2):
        first = step.evaluate(token_rows(50, 2))
        assert step.evaluate(token_rows(50, 2)) == first
        _train(step, range(i, i + 1))
    assert bits(state) == bits(plain)


def _autocast(rows: Tensor, weights: dict[str, Tensor]) -> tuple[float, dict[str, Tensor]]:
    c = build("llama-nano-cpu", None, 64, 0).config
    plain = PlainLlama(64, c.layers, c.width, c.heads, c.ffn)
    plain.load_state_dict(weights)
    with torch.autocast("cpu", BF16):
        loss = plain(rows)
    loss.backward()
    return loss.item(), {name: p.grad for name, p in plain.named_parameters()}


def test_the_numerics_are_those_of_autocast() -> None:
    """Loss and every gradient are as near to fp32 as those of torch's autocast, within its own rounding."""
    rows = token_rows(3, 8, 48)
    exact_model = build("llama-nano-cpu", None, 64, 0)
    with torch.no_grad():
        for param in exact_model.parameters():  # larger weights: attention that is not uniform
            param.mul_(4 if param.ndim > 1 else 1)
    weights = {name: p.detach().clone() for name, p in exact_model.named_parameters()}
    ids = torch.from_numpy(rows)
    total, count = exact_model.loss(ids[:, :-1], ids[:, 1:])
    (total / count).backward()
    exact = {name: p.grad for name, p in exact_model.named_parameters()}
    loss, autocast = _autocast(ids, weights)

    model = build("llama-nano-cpu", None, 64, 0)
    model.load_state_dict(weights, strict=False)
    state, kept = flat_state(model, shadow=BF16), []

    def keep(buffers: adamw.Buffers, coefficients: adamw.Coefficients) -> None:
        kept.append(buffers.G.clone())
        buffers.G.zero_()

    step = Step(model_loss=model.loss, state=state, backend=EagerReplay(), optimizer=keep)
    ours = step.update([rows[:3], rows[3:]], UpdateScalars(lr=1.0, weight_decay=0.0))
    assert ours.loss == pytest.approx(loss, abs=2e-3)
    assert ours.loss == pytest.approx((total / count).item(), abs=2e-3)
    G = torch.cat(kept)
    for slot in state.layout.slots:
        got = G[slot.offset : slot.offset + slot.numel].view(slot.shape)
        wanted, size = exact[slot.name], exact[slot.name].norm()
        theirs = (autocast[slot.name] - wanted).norm() / size
        assert (got - wanted).norm() / size < 1.5 * theirs + 2**-9, (slot.name, theirs)
        assert (got - autocast[slot.name]).norm() / size < 3 * theirs + 2**-8, slot.name


def test_it_learns_as_fp32_does() -> None:
    losses = []
    for shadow in (None, BF16):
        model = build("llama-nano-cpu", None, 64, 0)
        step = Step(model_loss=model.loss, state=flat_state(model, shadow=shadow), backend=EagerReplay())
        losses.append([step.update([token_rows(0)], SCALARS).loss for _ in range(30)])
    assert losses[0][-1] < 0.7 * losses[0][0]
    assert losses[1][-1] == pytest.approx(losses[0][-1], rel=0.02)
    assert losses[1] != losses[0]


def test_the_trace_sees_every_gradient_arrive() -> None:
    with torch.device("meta"):
        model = build("llama-nano-cpu", None, 64, 0)
    state = flat_state(model, "meta", ema=True, shadow=BF16)
    backend = MetaCheck(state)
    step = Step(model_loss=model.loss, state=state, backend=backend)
    step.prepare([(2, 16)], [(2, 16)])
    assert not [problem for report in backend.reports.values() for problem in report.problems]
    step.release()
    for hook in state._hooks:
        hook.remove()
    step.prepare([(2, 16)])
    found = {problem.rule for problem in backend.reports["micro", 2, 17].problems}
    assert "left-flat-buffer" in found
