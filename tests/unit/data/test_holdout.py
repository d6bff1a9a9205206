"""The held-out decision: by text and source identity alone."""

import pytest

from trainer_core.data.tokens.holdout import is_held_out

TEXTS = [f"text number {i}" for i in range(20_000)]


def held(identity: str, fraction: float) -> set[str]:
    return {text for text in TEXTS if is_held_out(text, identity=identity, fraction=fraction)}


@pytest.mark.parametrize("fraction", [0.01, 0.05, 0.5])
def test_about_the_fraction_is_held_out(fraction: float) -> None:
    expected = fraction * len(TEXTS)
    assert abs(len(held("corpus", fraction)) - expected) < 5 * expected**0.5


def test_none_and_all() -> None:
    assert held("corpus", 0.0) == set()
    assert held("corpus", 1.0) == set(TEXTS)


def test_a_larger_fraction_holds_out_more_of_the_same() -> None:
    assert held("corpus", 0.01) < held("corpus", 0.05)


def test_sources_decide_by_their_own_key() -> None:
    first, second = held("corpus", 0.5), held("other", 0.5)
    assert 0.2 < len(first & second) / len(TEXTS) < 0.3
    long = "a very long identity " * 9
    assert held(long, 0.5) not in (first, held(long + "x", 0.5))


def test_near_copies_are_other_texts() -> None:
    copies = ["same text {i}\n", "same text {i}\r\n", "same text {i}", "s\u00e4me {i}", "sa\u0308me {i}"]
    decisions = [
        [is_held_out(copy.format(i=i), identity="corpus", fraction=0.5) for i in range(64)] for copy in copies
    ]
    assert len({tuple(each) for each in decisions}) == len(copies)


def test_decisions_stay_what_they_are() -> None:
    """A line made by an earlier version keeps its held-out documents."""
    chosen = [i for i in range(200) if is_held_out(f"text number {i}", identity="corpus", fraction=0.05)]
    assert chosen == [22, 27, 35, 73, 80, 83, 91, 124, 155, 195]
