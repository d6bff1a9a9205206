"""Strict replay: what a part left behind is void, and all that a line does between updates survives it."""

import pytest
import torch

from tests.unit.engine.toys import bits, nano_step, token_rows
from trainer_core.engine.backends.eager_replay import EagerReplay
from trainer_core.engine.flat import flat_state
from trainer_core.engine.step import Step, UpdateScalars
from trainer_core.models.registry import build

SCALARS = UpdateScalars(lr=3e-3, weight_decay=0.1)


def _short(i: int):
    return [token_rows(i, 4, 8), token_rows(50 + i, 2, 8)]


def _long(i: int):
    return [token_rows(i, 2, 24)]


def test_stage_switches_evaluations_and_releases_change_no_bit() -> None:
    _, plain, step = nano_step(backend=EagerReplay())
    wanted = [step.update(rows(i), SCALARS) for rows in (_short, _long, _short) for i in range(3)]

    _, state, step = nano_step(backend=EagerReplay(strict=True))
    step.prepare([(4, 8)], [(3, 24)])
    results = []
    for rows in (_short, _long, _short):
        for i in range(3):
            first = step.evaluate(token_rows(90, 3, 24))
            results.append(step.update(rows(i), SCALARS))
            assert step.evaluate(token_rows(90, 3, 24)) != first
            assert not state.G.any()
        step.release()
    assert results == wanted
    assert bits(state) == bits(plain)


@pytest.mark.parametrize("ac", ["none", "full"])
def test_preparing_everything_moves_no_bit(ac: str) -> None:
    _, state, step = nano_step(ac=ac, backend=EagerReplay(strict=True))
    before = bits(state)
    step.prepare([(4, 24), (2, 8)], [(2, 24)])
    assert bits(state) == before
    step.update([token_rows(0, 4)], SCALARS)
    trained = bits(state)
    step.prepare([(4, 24), (3, 8)], [(2, 24)])
    assert bits(state) == trained != before


def _leaky_step(strict: bool):
    """A model that keeps what it computed, and uses it again the next time."""
    model = build("llama-nano-cpu", None, 64, 0)
    kept: dict[str, torch.Tensor] = {}

    def loss(ids, targets):
        if "scale" not in kept:
            kept["scale"] = torch.full((), 2.0) * 0.5
        total, count = model.loss(ids, targets)
        kept["output"] = total.detach()
        return total * kept["scale"], count

    state = flat_state(model)
    return kept, Step(model_loss=loss, state=state, backend=EagerReplay(strict=strict))


def test_a_stale_output_is_not_a_number() -> None:
    kept, step = _leaky_step(strict=False)
    loss = step.update([token_rows(0)], SCALARS).loss
    assert float(kept["output"]) / (8 * 24) == pytest.approx(loss)
    kept, step = _leaky_step(strict=True)
    step.update([token_rows(0)], SCALARS)
    assert kept["output"].isnan()


def test_a_table_made_inside_a_part_does_not_outlive_it() -> None:
    _, step = _leaky_step(strict=False)
    assert not step.update([token_rows(0)], SCALARS).skipped
    _, step = _leaky_step(strict=True)
    assert step.update([token_rows(0)], SCALARS).skipped


def test_a_rehearsal_that_fails_puts_everything_back() -> None:
    model = build("llama-nano-cpu", None, 64, 0)
    state = flat_state(model)
    step = Step(model_loss=model.loss, state=state, backend=EagerReplay(strict=True))
    before = bits(state)
    with pytest.raises(IndexError):
        step.update([token_rows(0) + 1000], SCALARS)
    assert bits(state) == before
