"""AdamW on flat ranges equals torch.optim.AdamW, both implementations alike; a skip moves no bit."""

import math

import pytest
import torch

from tests.unit.engine.toys import Recorded, recorded_gradients, recorded_step, rows_of
from trainer_core.engine.step import UpdateScalars
from trainer_core.kernels import adamw

IMPLEMENTATIONS = [adamw.update_reference, adamw.update_cpu]
pytestmark = pytest.mark.parametrize("optimizer", IMPLEMENTATIONS, ids=["reference", "cpu"])


def _scalars(update: int, lr: float = 3e-3) -> UpdateScalars:
    return UpdateScalars(
        lr=lr * (1 + update % 5), weight_decay=0.1, clip=1.0, beta1=0.9, beta2=0.95, eps=1e-8
    )


def _torch_loop(gradients, dtype: torch.dtype) -> Recorded:
    """torch.optim.AdamW with clip_grad_norm_ on the same gradients."""
    model = Recorded(gradients, dtype)
    params = list(model.parameters())
    optimizer = torch.optim.AdamW(
        [
            {"params": [p for p in params if p.ndim > 1], "weight_decay": 0.1},
            {"params": [p for p in params if p.ndim == 1], "weight_decay": 0.0},
        ],
        betas=(0.9, 0.95),
        eps=1e-8,
        foreach=False,
    )
    for i, grads in enumerate(gradients):
        for group in optimizer.param_groups:
            group["lr"] = _scalars(i).lr
        for p, g in zip(params, grads, strict=True):
            p.grad = g.clone()
        torch.nn.utils.clip_grad_norm_(params, 1.0)
        optimizer.step()
    return model


@pytest.mark.parametrize(("dtype", "bar"), [(torch.float32, 1e-7), (torch.float64, 1e-14)])
def test_equals_torch_over_20_updates(optimizer, dtype: torch.dtype, bar: float) -> None:
    gradients = recorded_gradients(20, dtype)
    model, _, step = recorded_step(gradients, dtype, optimizer=optimizer)
    start = [p.detach().clone() for p in model.parameters()]
    for i in range(20):
        step.update([rows_of(i)], _scalars(i))
    twin = _torch_loop(gradients, dtype)
    for p, q, old in zip(model.parameters(), twin.parameters(), start, strict=True):
        assert (p - old).abs().max() > 1e-2
        assert (p - q).abs().max().item() <= bar * max(1.0, q.abs().max().item())


def test_the_clip_is_the_two_level_norm(optimizer) -> None:
    gradients = recorded_gradients(4)
    _, _, step = recorded_step(gradients, optimizer=optimizer)
    for i, grads in enumerate(gradients):
        result = step.update([rows_of(i)], _scalars(i))
        exact = math.sqrt(sum(float(g.double().square().sum()) for g in grads))
        assert result.grad_norm == pytest.approx(exact, rel=1e-6)
        assert result.norms["a"] == pytest.approx(float(grads[0].double().norm()), rel=1e-6)


@pytest.mark.parametrize("planted", [math.inf, -math.inf, math.nan])
def test_a_skip_moves_no_bit_and_the_next_update_knows_nothing_of_it(optimizer, planted: float) -> None:
    gradients = recorded_gradients(8)
    _, plain, plain_step = recorded_step(gradients, optimizer=optimizer)
    for i in (0, 1, 2, 4, 7):
        plain_step.update([rows_of(i)], _scalars(i))

    for bad in (3, 5, 6):
        gradients[bad][1][3, 5] = planted
    _, state, step = recorded_step(gradients, optimizer=optimizer)
    runs = []
    for i in range(8):
        before = {name: t.clone() for name, t in state.state_tensors().items()}
        products = state.beta_products.clone()
        result = step.update([rows_of(i)], _scalars(i))
        assert result.loss == 1.0
        assert result.skipped == (i in (3, 5, 6))
        if result.skipped:
            assert not math.isfinite(result.grad_norm)
            assert math.isfinite(result.norms["a"])
            assert torch.equal(state.beta_products, products)
            assert all(torch.equal(t, before[name]) for name, t in state.state_tensors().items())
        assert not state.G.any()
        runs.append(state.scalars()["skipped_run"])
    assert runs == [0, 0, 0, 1, 0, 1, 2, 0]
    assert state.scalars()["skipped_total"] == 3
    assert state.scalars()["applied_updates"] == 5
    for name, tensor in state.state_tensors().items():
        assert torch.equal(tensor, plain.state_tensors()[name]), name
    assert torch.equal(state.beta_products, plain.beta_products)


def test_small_steps_are_not_lost(optimizer) -> None:
    """100 updates of a constant gradient at 6e-4 move a weight of 1 by 0.06: the state is float32."""
    gradients = [[torch.ones_like(g) for g in recorded_gradients(1)[0]]]
    model, _, step = recorded_step(gradients, optimizer=optimizer)
    with torch.no_grad():
        model.c.gain.fill_(1.0)
    for _ in range(100):
        step.update([rows_of(0)], UpdateScalars(lr=6e-4, weight_decay=0.0, clip=math.inf))
    assert model.c.gain.item() == pytest.approx(0.94, abs=1e-4)


def test_padding_stays_zero_and_decay_spares_the_gains(optimizer) -> None:
    gradients = [[torch.zeros_like(g) for g in recorded_gradients(1)[0]]]
    model, state, step = recorded_step(gradients, optimizer=optimizer)
    before = {n: p.detach().clone() for n, p in model.named_parameters()}
    step.update([rows_of(0)], UpdateScalars(lr=0.1, weight_decay=0.5))
    for name, param in model.named_parameters():
        factor = 0.95 if param.ndim > 1 else 1.0
        torch.testing.assert_close(param.detach(), before[name] * factor)
    used = torch.zeros(state.layout.total, dtype=torch.bool)
    for slot in state.layout.slots:
        used[slot.offset : slot.offset + slot.numel] = True
    for tensor in state.state_tensors().values():
        assert not tensor[~used].any()


def test_a_group_learns_at_its_own_rate(optimizer) -> None:
    gradients = [[torch.ones_like(g) for g in recorded_gradients(1)[0]]]
    model, state, step = recorded_step(gradients, optimizer=optimizer)
    object.__setattr__(state.layout.groups[1], "lr_mult", 10.0)
    before = {n: p.detach().clone() for n, p in model.named_parameters()}
    step.update([rows_of(0)], UpdateScalars(lr=1e-3, weight_decay=0.0))
    moved = {n: float((before[n] - p).detach().mean()) for n, p in model.named_parameters()}
    assert moved["b.gain"] == pytest.approx(1e-2, rel=1e-3)
    assert moved["b.matrix"] == pytest.approx(1e-3, rel=1e-3)
