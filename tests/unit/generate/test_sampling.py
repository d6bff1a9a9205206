"""Which tokens may follow, with what probability, and how they are drawn, on distributions known by heart."""

from __future__ import annotations

import math
from collections import Counter

import pytest
import torch

from trainer_core.errors import Refused
from trainer_core.generate.sampling import Sampler, Sampling, candidates

SHARES = [0.1, 0.4, 0.2, 0.3]
SCORES = torch.tensor(SHARES).log() + 7


def chosen(**settings: float) -> dict[int, float]:
    """Probability of each token that may follow."""
    ids, probabilities = candidates(SCORES, Sampling(**settings))  # type: ignore[arg-type]
    return dict(zip(ids.tolist(), probabilities.tolist(), strict=True))


def test_at_temperature_one_the_shares_are_those_of_the_scores() -> None:
    assert chosen() == pytest.approx(dict(enumerate(SHARES)))
    assert list(chosen()) == [1, 3, 2, 0]


@pytest.mark.parametrize("temperature", [0.5, 2.0])
def test_a_temperature_is_a_power(temperature: float) -> None:
    powers = [share ** (1 / temperature) for share in SHARES]
    expected = {i: power / sum(powers) for i, power in enumerate(powers)}
    assert chosen(temperature=temperature) == pytest.approx(expected)


def test_temperature_zero_is_the_likeliest_and_its_limit() -> None:
    assert chosen(temperature=0) == {1: 1.0}
    assert chosen(temperature=1e-300)[1] == 1.0
    assert chosen(temperature=0, top_k=3, top_p=0.5) == {1: 1.0}


def test_top_k_keeps_the_likeliest_in_proportion() -> None:
    assert chosen(top_k=2) == pytest.approx({1: 4 / 7, 3: 3 / 7})
    assert chosen(top_k=1) == {1: 1.0}
    assert chosen(top_k=99) == chosen()


@pytest.mark.parametrize(
    ("top_p", "kept"),
    [(1e-9, [1]), (0.39, [1]), (0.41, [1, 3]), (0.69, [1, 3]), (0.71, [1, 3, 2]), (1.0, [1, 3, 2, 0])],
)
def test_top_p_keeps_the_fewest_that_have_so_much(top_p: float, kept: list[int]) -> None:
    whole = sum(SHARES[i] for i in kept)
    assert chosen(top_p=top_p) == pytest.approx({i: SHARES[i] / whole for i in kept})


def test_the_filters_apply_in_their_order() -> None:
    # Of the two that top-k leaves the first has 4/7 = 0.571.
    assert list(chosen(top_k=2, top_p=0.57)) == [1] and list(chosen(top_k=2, top_p=0.58)) == [1, 3]
    # At temperature 1/2 it has 16/25 = 0.64.
    assert list(chosen(temperature=0.5, top_k=2, top_p=0.6)) == [1]


def test_among_equal_scores_the_smaller_id_comes_first() -> None:
    scores = torch.tensor([1.0, 5.0, 5.0, 5.0])
    assert candidates(scores, Sampling(top_k=2))[0].tolist() == [1, 2]
    assert Sampler(Sampling(temperature=0), seed=0).choose(scores) == 1


def test_impossible_tokens_are_never_drawn() -> None:
    scores = torch.tensor([-math.inf, 0.0, -math.inf, 0.0])
    sampler = Sampler(Sampling(), seed=1)
    assert {sampler.choose(scores) for _ in range(50)} == {1, 3}


@pytest.mark.parametrize("bad", [math.nan, math.inf])
def test_scores_that_are_no_numbers_are_refused(bad: float) -> None:
    with pytest.raises(Refused, match="scores are no numbers"):
        candidates(torch.tensor([0.0, bad, 1.0]), Sampling())
    with pytest.raises(Refused, match="scores are no numbers"):
        candidates(torch.tensor([-math.inf, -math.inf]), Sampling())


def test_draws_have_the_probabilities() -> None:
    sampler = Sampler(Sampling(), seed=3)
    num = 4000
    counts = Counter(sampler.choose(SCORES) for _ in range(num))
    for token, share in enumerate(SHARES):
        assert abs(counts[token] - num * share) < 5 * math.sqrt(num * share * (1 - share))


def test_equal_seeds_draw_alike_whatever_torch_draws_between() -> None:
    def draws(seed: int, sample: int) -> list[int]:
        sampler = Sampler(Sampling(), seed=seed, sample=sample)
        return [sampler.choose(SCORES + 0 * torch.rand(1)) for _ in range(40)]

    assert draws(5, 0) == draws(5, 0)
    assert len({tuple(draws(seed, sample)) for seed in (5, 6) for sample in (0, 1)}) == 4


def test_every_bad_value_is_told() -> None:
    assert Sampling().problems() == Sampling(temperature=0, top_k=1, top_p=1).problems() == []
    told = Sampling(temperature=math.nan, top_k=0, top_p=0).problems()
    assert [problem.split()[0] for problem in told] == ["--temperature", "--top-k", "--top-p"]
    assert Sampling(temperature=-0.1).problems() and Sampling(top_p=1.1).problems()
