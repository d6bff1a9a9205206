"""The NeuronSpark computes its equations, sees no future, decodes as it trains and repeats its bits."""

import pytest
import torch

from tests.unit.models.plain_neuronspark import plain_logits
from tests.unit.models.small_neuronspark import VOCAB, disturbed, gradients, small, token_ids

F64 = torch.float64


@pytest.mark.parametrize("release", ["graded", "binary"])
@pytest.mark.parametrize("shared", [False, True], ids=["own-tables", "shared-table"])
def test_scores_and_gradients_are_those_of_the_equations(shared: bool, release: str) -> None:
    model = disturbed(small(dtype=F64, pkm_shared=shared, release=release))
    ids = token_ids(9, vocab=6)  # few tokens, so that most occurred before
    params = dict(model.named_parameters())
    wanted = plain_logits(ids[:, :-1], params, model.config)
    torch.testing.assert_close(model.logits(ids[:, :-1]), wanted, atol=1e-12, rtol=1e-11)
    loss = torch.nn.functional.cross_entropy(wanted.flatten(0, 1), ids[:, 1:].flatten(), reduction="sum")
    plain = torch.autograd.grad(loss, list(params.values()))
    for name, a, b in zip(params, gradients(model, ids), plain, strict=True):
        torch.testing.assert_close(a, b, atol=1e-11, rtol=1e-9, msg=lambda m, name=name: f"{name}: {m}")


@pytest.mark.parametrize("T", [1, 2, 3, 64, 65, 140])
def test_loss_is_the_cross_entropy_of_the_logits(T: int) -> None:
    model, ids = small(dtype=F64), token_ids(T)
    targets = ids[:, 1:].clone()
    targets[1] = -100
    total, count = model.loss(ids[:, :-1], targets)
    logits = model.logits(ids[:, :-1]).flatten(0, 1)
    expected = torch.nn.functional.cross_entropy(logits, targets.flatten(), reduction="sum")
    torch.testing.assert_close(total, expected, atol=0, rtol=1e-12)
    assert int(count) == T


@pytest.mark.parametrize("release", ["graded", "binary"])
def test_no_token_sees_its_future(release: str) -> None:
    model, ids = disturbed(small(release=release)), token_ids(200)[:, :-1]
    changed = ids.clone()
    changed[:, 150:] = (changed[:, 150:] + 1) % VOCAB
    before, after = model.logits(ids), model.logits(changed)
    assert torch.equal(before[:, :150], after[:, :150])
    assert not torch.equal(before[:, 150:], after[:, 150:])


@pytest.mark.parametrize("release", ["graded", "binary"])
@pytest.mark.parametrize(
    "parts", [[131, *[1] * 9], [1] * 3 + [137], [2, 63, 1, 65, 9]], ids=["prefill", "cold", "cut"]
)
def test_prefill_and_single_steps_equal_the_parallel_pass(parts: list[int], release: str) -> None:
    model, ids = disturbed(small(release=release)), token_ids(140, vocab=8)[:, :-1]
    with torch.no_grad():
        wanted = model.logits(ids)
        state, found = model.init_state(len(ids)), []
        for part in ids.split(parts, dim=1):
            scores, state = model.advance(part, state)
            found.append(scores)
    torch.testing.assert_close(torch.cat(found, 1), wanted, atol=1e-5, rtol=0)


def test_a_state_can_be_advanced_twice() -> None:
    model, ids = small(), token_ids(9)[:, :-1]
    with torch.no_grad():
        _, state = model.advance(ids[:, :5], model.init_state(len(ids)))
        first, _ = model.advance(ids[:, 5:], state)
        model.advance(ids[:, :3], state)
        again, _ = model.advance(ids[:, 5:], state)
    assert torch.equal(first, again)


@pytest.mark.parametrize("release", ["graded", "binary"])
def test_recomputation_gives_bit_identical_gradients(release: str) -> None:
    model, ids = disturbed(small(release=release, pkm_shared=True)), token_ids(140)
    kept = gradients(model, ids)
    assert model.recomputation == ("none", "scan", "dendritic", "hippocampal", "full")
    for ac in model.recomputation:
        assert all(torch.equal(a, b) for a, b in zip(kept, gradients(model, ids, ac), strict=True)), ac
    with pytest.raises(AssertionError, match="half"):
        model.loss(ids[:, :-1], ids[:, 1:], "half")


@pytest.mark.parametrize("release", ["graded", "binary"])
def test_every_parameter_learns_at_the_start(release: str) -> None:
    model = small(release=release)
    for (name, _), grad in zip(model.named_parameters(), gradients(model, token_ids(60)), strict=True):
        assert grad.isfinite().all() and grad.any(), name


def test_gradients_equal_finite_differences() -> None:
    model, ids = disturbed(small(dtype=F64)), token_ids(9)
    grads = gradients(model, ids)
    g = torch.Generator().manual_seed(0)
    for (name, param), grad in zip(model.named_parameters(), grads, strict=True):
        direction = torch.randn(param.shape, generator=g, dtype=F64)
        losses = []
        for sign in (1, -1):
            with torch.no_grad():
                param.add_(direction, alpha=sign * 1e-6)
                losses.append(float(model.loss(ids[:, :-1], ids[:, 1:])[0]))
                param.add_(direction, alpha=-sign * 1e-6)
        slope = (losses[0] - losses[1]) / 2e-6
        assert slope == pytest.approx(float((grad * direction).sum()), rel=1e-4, abs=1e-5), name


def test_the_binary_release_is_another_model() -> None:
    ids = token_ids(20)[:, :-1]
    graded, binary = small(), small(release="binary")
    assert all(torch.equal(a, b) for a, b in zip(graded.parameters(), binary.parameters(), strict=True))
    assert not torch.allclose(graded.logits(ids), binary.logits(ids))


def test_rows_longer_than_the_tables_are_our_bug() -> None:
    model = small()
    with pytest.raises(AssertionError, match="301"):
        model.logits(token_ids(301)[:, :-1])
    with torch.no_grad():
        _, state = model.advance(token_ids(300)[:, :-1], model.init_state(2))
        with pytest.raises(AssertionError, match="301"):
            model.advance(token_ids(1)[:, :-1], state)
