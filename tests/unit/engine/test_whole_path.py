"""The engine against plain PyTorch loops, and splits of an update against autograd on the whole batch."""

from itertools import pairwise

import numpy as np
import pytest
import torch

from tests.unit.engine.plain_llama import PlainLlama
from tests.unit.engine.toys import nano_step, token_rows
from trainer_core.engine.step import UpdateScalars
from trainer_core.kernels import adamw
from trainer_core.models.registry import build

UPDATES = 20


def _lr(update: int, peak: float) -> float:
    return peak * min(1.0, (update + 1) / 5)


def _adamw(module: torch.nn.Module) -> torch.optim.AdamW:
    params = list(module.parameters())
    return torch.optim.AdamW(
        [
            {"params": [p for p in params if p.ndim > 1], "weight_decay": 0.1},
            {"params": [p for p in params if p.ndim == 1], "weight_decay": 0.0},
        ],
        betas=(0.9, 0.95),
        eps=1e-8,
    )


def _torch_update(module, optimizer, loss: torch.Tensor, lr: float) -> float:
    for group in optimizer.param_groups:
        group["lr"] = lr
    optimizer.zero_grad()
    loss.backward()
    torch.nn.utils.clip_grad_norm_(module.parameters(), 0.5)
    optimizer.step()
    return loss.item()


def _engine_updates(step, peak: float) -> list[float]:
    losses = []
    for i in range(UPDATES):
        rows = token_rows(i)
        scalars = UpdateScalars(lr=_lr(i, peak), weight_decay=0.1, clip=0.5)
        losses.append(step.update([rows[:3], rows[3:]], scalars).loss)
    return losses


@pytest.mark.parametrize("optimizer", [adamw.update_reference, adamw.update_cpu])
def test_fp64_equals_an_independent_plain_loop(optimizer) -> None:
    model, _, step = nano_step(torch.float64, optimizer=optimizer)
    c = model.config
    plain = PlainLlama(64, c.layers, c.width, c.heads, c.ffn).double()
    plain.load_state_dict(model.state_dict())
    losses = _engine_updates(step, 1e-2)
    torch_optimizer = _adamw(plain)
    plain_losses = [
        _torch_update(plain, torch_optimizer, plain(torch.from_numpy(token_rows(i))), _lr(i, 1e-2))
        for i in range(UPDATES)
    ]
    np.testing.assert_allclose(losses, plain_losses, rtol=0, atol=1e-10)
    ours = dict(model.named_parameters())
    for name, param in plain.named_parameters():
        assert (ours[name] - param).abs().max().item() < 1e-10, name


def test_fp32_equals_a_plain_loop_over_the_same_module() -> None:
    model, _, step = nano_step()
    twin = build("llama-nano-cpu", None, 64, 0)
    losses = _engine_updates(step, 3e-4)
    torch_optimizer, twin_losses = _adamw(twin), []
    for i in range(UPDATES):
        rows = torch.from_numpy(token_rows(i))
        total, count = twin.loss(rows[:, :-1], rows[:, 1:])
        twin_losses.append(_torch_update(twin, torch_optimizer, total / count, _lr(i, 3e-4)))
    np.testing.assert_allclose(losses, twin_losses, rtol=0, atol=2e-6)
    ours = dict(model.named_parameters())
    for name, param in twin.named_parameters():
        assert (ours[name] - param).abs().max().item() < 1e-6, name


class _Keep:
    """An optimizer that keeps the gradient and changes nothing."""

    def __init__(self) -> None:
        self.grads: list[torch.Tensor] = []

    def __call__(self, buffers: adamw.Buffers, coefficients: adamw.Coefficients) -> None:
        self.grads.append(buffers.G.clone())
        buffers.G.zero_()


SPLITS = [(8,), (4, 4), (1,) * 8, (3, 5), (1, 2, 5), (7, 1)]


@pytest.mark.parametrize(("dtype", "bar"), [(torch.float32, 1e-6), (torch.float64, 1e-12)])
@pytest.mark.parametrize("split", SPLITS, ids=str)
def test_gradient_and_loss_do_not_depend_on_the_split(split, dtype: torch.dtype, bar: float) -> None:
    rows = token_rows(3)
    rows[0, 5:] = -100
    rows[4, 9:12] = -100
    twin = build("llama-nano-cpu", None, 64, 0, dtype)
    ids = torch.from_numpy(rows)
    total, count = twin.loss(ids[:, :-1].clamp(min=0), ids[:, 1:])
    (total / count).backward()

    keep = _Keep()
    _, state, step = nano_step(dtype, optimizer=keep)
    edges = np.cumsum((0, *split))
    parts = [rows[a:b] for a, b in pairwise(edges)]
    result = step.update(parts, UpdateScalars(lr=1.0, weight_decay=0.0))
    assert result.num_targets == int(count) == (rows[:, 1:] != -100).sum()
    assert result.loss == pytest.approx((total / count).item(), abs=bar * 10)
    G = torch.cat([*keep.grads])
    wanted = dict(twin.named_parameters())
    for slot in state.layout.slots:
        got = G[slot.offset : slot.offset + slot.numel].view(slot.shape)
        assert (got - wanted[slot.name].grad).abs().max().item() <= bar, slot.name


def test_the_mean_of_micro_batch_means_would_differ() -> None:
    rows = token_rows(3)
    rows[0, 2:] = -100
    _, _, step = nano_step()
    sums = [step.evaluate(part) for part in (rows[:1], rows[1:])]
    wrong = np.mean([total / count for total, count in sums])
    right = sum(total for total, _ in sums) / sum(count for _, count in sums)
    assert abs(wrong - right) > 1e-4
    loss = step.update([rows[:1], rows[1:]], UpdateScalars(lr=1e-3, weight_decay=0.0)).loss
    assert loss == pytest.approx(right, abs=1e-6)
