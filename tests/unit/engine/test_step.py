"""State and step: views, repeats, evaluation without a trace, exact resume, replays that see new numbers."""

import json

import pytest
import torch

from tests.unit.engine.toys import bits, nano_step, token_rows
from trainer_core.engine.backends.eager_replay import EagerReplay
from trainer_core.engine.flat import FlatState, flat_state
from trainer_core.engine.layout import Layout
from trainer_core.engine.step import Step, UpdateScalars
from trainer_core.models.registry import build

SCALARS = UpdateScalars(lr=3e-3, weight_decay=0.1)


def _train(step: Step, updates: range) -> list[float]:
    return [step.update([token_rows(i, 5), token_rows(100 + i, 3)], SCALARS).loss for i in updates]


def test_training_lowers_the_loss() -> None:
    _, _, step = nano_step()
    losses = [step.update([token_rows(0)], SCALARS).loss for _ in range(30)]
    assert losses[0] == pytest.approx(4.16, abs=0.1)
    assert losses[-1] < 0.7 * losses[0]


def test_parameters_and_gradients_are_views_of_the_flat_buffers() -> None:
    model, state, step = nano_step()
    _train(step, range(2))
    for slot, param in ((s, dict(model.named_parameters())[s.name]) for s in state.layout.slots):
        assert param.data_ptr() == state.P[slot.offset :].data_ptr()
        assert param.grad is not None and param.grad.data_ptr() == state.G[slot.offset :].data_ptr()
    model.zero_grad(set_to_none=True)
    with pytest.raises(AssertionError, match="left the flat gradients"):
        _train(step, range(2, 3))


def test_two_runs_are_bit_identical() -> None:
    runs = []
    for _ in range(2):
        _, state, step = nano_step(seed=3)
        runs.append((_train(step, range(6)), bits(state)))
    assert runs[0] == runs[1]
    _, other, step = nano_step(seed=4)
    _train(step, range(6))
    assert bits(other)["params"] != runs[0][1]["params"]


def test_evaluation_between_updates_changes_no_bit() -> None:
    _, plain, step = nano_step()
    losses = _train(step, range(4))
    _, state, evaluated = nano_step()
    with_evaluation = []
    for i in range(4):
        first = evaluated.evaluate(token_rows(50, 2))
        assert evaluated.evaluate(token_rows(50, 2)) == first
        evaluated.evaluate(token_rows(51, 5))
        assert not state.G.any()
        with_evaluation += _train(evaluated, range(i, i + 1))
    assert with_evaluation == losses
    assert bits(state) == bits(plain)


def test_evaluation_is_the_loss_of_the_same_rows() -> None:
    _, _, step = nano_step()
    rows = token_rows(1)
    total, count = step.evaluate(rows)
    assert count == 8 * 24
    assert step.update([rows], SCALARS).loss == pytest.approx(total / count, abs=1e-6)


def test_recomputation_gives_the_samebits() -> None:
    states = []
    for ac in ("none", "full"):
        _, state, step = nano_step(ac=ac)
        _train(step, range(3))
        states.append(bits(state))
    assert states[0] == states[1]


def test_resuming_from_buffers_and_scalars_is_exact() -> None:
    _, straight, step = nano_step()
    _train(step, range(7))

    _, first, step = nano_step()
    _train(step, range(4))
    saved = {name: tensor.clone() for name, tensor in first.state_tensors().items()}
    scalars = json.loads(json.dumps(first.scalars()))

    _, second, step = nano_step(seed=99)
    for name, tensor in second.state_tensors().items():
        tensor.copy_(saved[name])
    second.load_scalars(scalars)
    assert second.scalars() == first.scalars()
    _train(step, range(4, 7))
    assert bits(second) == bits(straight)


def test_scalars_are_exact_hexadecimal() -> None:
    state = FlatState(Layout.build(build("llama-nano-cpu", None, 16, 0).param_groups(), str))
    state.beta_products.copy_(torch.tensor([0.9**37, 0.95**1001], dtype=torch.float64))
    state.counters.copy_(torch.tensor([37, 5, 2]))
    assert state.scalars() == {
        "beta1_product": (0.9**37).hex(),
        "beta2_product": (0.95**1001).hex(),
        "applied_updates": 37,
        "skipped_total": 5,
        "skipped_run": 2,
    }
    with pytest.raises(KeyError):
        state.load_scalars({"beta1_product": "0x1p+0"})


class _Counting(EagerReplay):
    """Counts what is recorded."""

    def __init__(self) -> None:
        super().__init__()
        self.captured: list[object] = []

    def capture(self, part):
        self.captured.append(part.key)
        super().capture(part)


def test_parts_are_recorded_once_and_replays_see_new_numbers() -> None:
    model = build("llama-nano-cpu", None, 64, 0)
    state, backend = flat_state(model), _Counting()
    step = Step(model_loss=model.loss, state=state, backend=backend)
    rows = token_rows(0)
    before = state.P.clone()
    step.update([rows[:6], rows[6:]], UpdateScalars(lr=0.0, weight_decay=0.0))
    assert torch.equal(state.P, before)
    step.update([rows[:6], rows[6:]], UpdateScalars(lr=0.0, weight_decay=1.0))
    assert torch.equal(state.P, before)
    step.update([rows[:6], rows[6:]], UpdateScalars(lr=1e-3, weight_decay=0.0))
    assert not torch.equal(state.P, before)
    assert backend.captured == [("micro", 6, 25), ("micro", 2, 25), "norm", "update"]
    step.evaluate(rows)
    step.release()
    step.update([rows], SCALARS)
    assert backend.captured[4:] == [("evaluate", 8, 25), ("micro", 8, 25), "norm", "update"]


def test_rows_must_be_whole_numbers_with_a_target() -> None:
    _, _, step = nano_step()
    with pytest.raises(AssertionError, match="int32"):
        step.update([token_rows(0).astype("int32")], SCALARS)
    empty = token_rows(0)
    empty[:, 1:] = -100
    with pytest.raises(AssertionError, match="without a target"):
        step.update([empty], SCALARS)


def test_the_state_fits_its_module_or_says_which_parameter_does_not() -> None:
    layout = Layout.build(build("llama-nano-cpu", None, 16, 0).param_groups(), str)
    with pytest.raises(AssertionError, match=r"blocks\.2"):
        FlatState(layout).bind(build("llama-nano-cpu", {"layers": 3}, 16, 0))
    with pytest.raises(AssertionError, match="float64"):
        FlatState(layout).bind(build("llama-nano-cpu", None, 16, 0, torch.float64))
