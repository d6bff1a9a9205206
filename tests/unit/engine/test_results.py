"""Results at once or late, skipped updates, and numbers known from elsewhere."""

import json
import math
from itertools import pairwise
from pathlib import Path

import pytest
import torch

from tests.unit.engine.toys import Recorded, bits, recorded_gradients, rows_of
from trainer_core.engine.backends.eager_replay import EagerReplay
from trainer_core.engine.flat import flat_state
from trainer_core.engine.layout import ParamGroup
from trainer_core.engine.step import UNREAD, Step, UpdateScalars

SCALARS = UpdateScalars(lr=1e-2, weight_decay=0.1)
CASES = Path(__file__).parents[2] / "cases"


def _step(bad: dict[int, float], updates: int = 12, strict: bool = True):
    gradients = recorded_gradients(updates)
    for update, planted in bad.items():
        gradients[update][1][3, 5] = planted
    model = Recorded(gradients, torch.float32)
    state = flat_state(model)
    return state, Step(model_loss=model.loss, state=state, backend=EagerReplay(strict=strict))


def _results(step: Step, lag: int, updates: int) -> list[list]:
    seen = []
    for i in range(updates):
        step.submit([rows_of(i)], SCALARS)
        seen.append(step.results(lag))
    return [*seen, step.results()]


def _flat(batches: list[list]) -> list:
    return [result for batch in batches for result in batch]


def test_late_results_are_the_same_results() -> None:
    state, step = _step({})
    at_once = _results(step, 0, 12)
    assert [len(results) for results in at_once] == [1] * 12 + [0]
    late_state, step = _step({})
    late = _results(step, 1, 12)
    assert [len(results) for results in late] == [0] + [1] * 11 + [1]
    assert _flat(late) == _flat(at_once)
    assert len({result.grad_norm for result in _flat(late)}) == 12
    assert bits(late_state) == bits(state)


def test_reading_at_once_does_not_pass_over_what_is_unread() -> None:
    _, step = _step({})
    step.submit([rows_of(0)], SCALARS)
    with pytest.raises(ValueError, match="too many values"):
        step.update([rows_of(1)], SCALARS)
    for i in range(UNREAD):
        step.submit([rows_of(i)], SCALARS)
    with pytest.raises(AssertionError, match="unread"):
        step.submit([rows_of(5)], SCALARS)


def test_infinite_at_4_and_not_a_number_at_7_are_skipped_and_counted() -> None:
    """Case D03."""
    state, step = _step({4: math.inf, 7: math.nan})
    results = _flat(_results(step, 1, 12))
    assert [i for i, result in enumerate(results) if result.skipped] == [4, 7]
    assert [result.skipped_run for result in results] == [0, 0, 0, 0, 1, 0, 0, 1, 0, 0, 0, 0]
    assert state.scalars()["skipped_total"] == 2
    assert state.scalars()["applied_updates"] == 10
    _, plain = _step({})
    without = [plain.update([rows_of(i)], SCALARS) for i in range(12) if i not in (4, 7)]
    assert [result.grad_norm for i, result in enumerate(results) if i not in (4, 7)] == [
        result.grad_norm for result in without
    ]
    assert all(math.isfinite(result.loss) for result in results)


@pytest.mark.parametrize("lag", [0, 1])
def test_too_many_in_a_row_are_known_at_most_one_update_late(lag: int) -> None:
    state, step = _step(dict.fromkeys(range(3, 12), math.nan))
    trained = 0
    for i in range(12):
        if i == 3:
            before = bits(state)
        step.submit([rows_of(i)], SCALARS)
        trained += 1
        if any(result.skipped_run >= 4 for result in step.results(lag)):
            break
    assert trained == 3 + 4 + lag
    counted = {"counters"}
    assert {k: v for k, v in bits(state).items() if k not in counted} == {
        k: v for k, v in before.items() if k not in counted
    }


class _Head(torch.nn.Module):
    """Logits of given features: token i of a row stands for feature i."""

    def __init__(self, X: torch.Tensor, W: torch.Tensor) -> None:
        super().__init__()
        self.X = X
        self.weight = torch.nn.Parameter(W.clone())

    def loss(self, ids, targets):
        logits = self.X[ids.flatten()] @ self.weight.t()
        total = torch.nn.functional.cross_entropy(logits, targets.flatten(), reduction="sum")
        return total, torch.tensor(targets.numel())

    def param_groups(self):
        return [ParamGroup(name="head", decay=False, lr_mult=1.0, params=[("weight", self.weight)])]

    def layer_label(self, name: str) -> str:
        return "head"


@pytest.mark.parametrize(("dtype", "bar"), [(torch.float64, 1e-9), (torch.float32, 1e-6)])
@pytest.mark.parametrize("sizes", [[3, 1, 8, 4], [16], [1] * 16, [5, 11]], ids=str)
def test_loss_and_gradient_of_unequal_micro_batches(sizes: list[int], dtype: torch.dtype, bar: float) -> None:
    """Case D01."""
    case = json.loads((CASES / "D01" / "case.json").read_text())
    X, W = (torch.tensor(case[key], dtype=dtype) for key in ("X", "W"))
    kept = []

    def keep(buffers, coefficients) -> None:
        kept.append(buffers.G.clone())
        buffers.G.zero_()

    model = _Head(X, W)
    state = flat_state(model, dtype=dtype)
    step = Step(model_loss=model.loss, state=state, backend=EagerReplay(), optimizer=keep)
    edges = [sum(sizes[:i]) for i in range(len(sizes) + 1)]
    micro = []
    for start, end in pairwise(edges):
        # one target per row: [feature, target]
        micro.append(torch.tensor([[i, case["Y"][i]] for i in range(start, end)]))
    result = step.update(micro, UpdateScalars(lr=1.0, weight_decay=0.0))
    assert result.loss == pytest.approx(case["right_loss"], abs=bar)
    gradient = kept[0][: W.numel()].view(W.shape)
    assert (gradient - torch.tensor(case["right_grad"], dtype=dtype)).abs().max().item() < bar
    assert result.grad_norm == pytest.approx(case["right_grad_norm"], abs=10 * bar)


def test_small_updates_add_up() -> None:
    """Case D07: 100 updates of rate 6e-4 on a constant gradient of 1."""
    gradients = [[torch.ones_like(g) for g in recorded_gradients(1)[0]]]
    model = Recorded(gradients, torch.float32)
    state = flat_state(model)
    step = Step(model_loss=model.loss, state=state, backend=EagerReplay(strict=True))
    with torch.no_grad():
        model.c.gain.fill_(1.0)
        model.b.gain.fill_(0.01)
    for _ in range(100):
        step.update([rows_of(0)], UpdateScalars(lr=6e-4, weight_decay=0.0, clip=math.inf))
    assert model.c.gain.item() == pytest.approx(0.94, abs=1e-4)
    assert model.b.gain[0].item() == pytest.approx(-0.05, abs=1e-4)
    assert model.c.gain.bfloat16().item() != pytest.approx(0.94, abs=1e-4)
