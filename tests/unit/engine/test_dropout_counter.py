"""A model that drops: new elements in every micro-batch, the same ones in a resume, none in an evaluation."""

import pytest
import torch
from torch import Tensor

from tests.unit.engine.toys import bits, token_rows
from trainer_core.engine.backends.eager_replay import EagerReplay
from trainer_core.engine.capture_check import check_capture
from trainer_core.engine.flat import flat_state
from trainer_core.engine.layout import ParamGroup
from trainer_core.engine.step import Step, UpdateScalars
from trainer_core.models.base import Model
from trainer_core.models.blocks import recomputed

SCALARS = UpdateScalars(lr=1e-2, weight_decay=0.1)
WIDTH = 64


class Dropping(Model):
    """Token i is scored by the kept elements of its row of a table; `masks` says which were kept."""

    def __init__(self, again: bool = False) -> None:
        super().__init__()
        self.table = torch.nn.Parameter(torch.randn(64, WIDTH, generator=torch.Generator().manual_seed(0)))
        self.again = again
        self.masks: list[Tensor] | None = None

    def _drop(self, x: Tensor) -> Tensor:
        return self.dropped(x, 0, 0.5)

    def loss(self, ids: Tensor, targets: Tensor, ac: str = "none") -> tuple[Tensor, Tensor]:
        x = self.table[ids]
        y = recomputed(self._drop, x) if self.again and torch.is_grad_enabled() else self._drop(x)
        if self.masks is not None:
            self.masks.append(y.detach() != 0)
        return y.square().sum(), (targets != -100).sum()

    def param_groups(self) -> list[ParamGroup]:
        return [ParamGroup(name="all", decay=True, lr_mult=1.0, params=[("table", self.table)])]

    def layer_label(self, name: str) -> str:
        return name

    def flops_per_token(self, T: int) -> float:
        return 0.0


def _step(seed: int = 0, strict: bool = True, **settings):
    model = Dropping(**settings)
    state = flat_state(model)
    return (
        model,
        state,
        Step(model_loss=model.loss, state=state, backend=EagerReplay(strict=strict), seed=seed),
    )


def _micro(update: int):
    """The same rows again and again: only the counter tells them apart."""
    return [token_rows(0, 4, 8)] * 2


def test_every_micro_batch_drops_other_elements() -> None:
    model, _, step = _step(strict=False)
    model.masks = []
    for update in range(3):
        step.update(_micro(update), SCALARS)
    assert len(model.masks) == 6
    for i, mask in enumerate(model.masks):
        assert mask.float().mean().item() == pytest.approx(0.5, abs=0.05)
        assert not any(torch.equal(mask, other) for other in model.masks[:i])


def test_a_skipped_update_has_a_number_too() -> None:
    """What comes after it drops other elements than it did."""
    model, state, step = _step(strict=False)
    model.masks = []
    weights = state.P.clone()
    state.P.fill_(torch.nan)
    assert step.update(_micro(0), SCALARS).skipped
    state.P.copy_(weights)
    step.update(_micro(1), SCALARS)
    assert not torch.equal(model.masks[0], model.masks[2])


def test_the_seed_decides_and_preparing_moves_nothing() -> None:
    ends = []
    for seed, prepared in ((0, False), (0, True), (1, False)):
        _, state, step = _step(seed)
        if prepared:
            step.prepare([(4, 8), (2, 8)], [(4, 8)])
        for i in range(3):
            step.update(_micro(i), SCALARS)
        ends.append(bits(state))
    assert ends[0] == ends[1] != ends[2]


def test_a_resume_drops_what_the_straight_run_drops() -> None:
    _, straight, step = _step(7)
    for i in range(5):
        step.update(_micro(i), SCALARS)
    _, first, step = _step(7)
    for i in range(2):
        step.update(_micro(i), SCALARS)
    _, second, step = _step(7)
    for name, tensor in second.state_tensors().items():
        tensor.copy_(first.state_tensors()[name])
    second.load_scalars(first.scalars())
    for i in range(2, 5):
        step.update(_micro(i), SCALARS)
    assert bits(second) == bits(straight)


def test_recomputation_drops_the_same_and_an_evaluation_nothing() -> None:
    ends = []
    for again in (False, True):
        _, state, step = _step(again=again)
        rows = token_rows(3, 4, 8)
        first = step.evaluate(rows)
        for i in range(3):
            step.update(_micro(i), SCALARS)
        ends.append((first, bits(state), step.evaluate(rows)))
    assert ends[0] == ends[1]
    model = Dropping()
    assert ends[0][0][0] == pytest.approx(
        float(model.table.detach()[token_rows(3, 4, 8)[:, :-1]].square().sum())
    )


def test_it_can_be_captured() -> None:
    with torch.device("meta"):
        model = Dropping()
    assert check_capture(model, model.loss, micro=[(4, 8)], evaluations=[(4, 8)]).problems == ()
    model.dropout_counter = None
    with pytest.raises(AssertionError, match="bound to no state"):
        model.dropped(torch.ones(2), 0, 0.1)
