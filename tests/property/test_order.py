"""The quota sequence keeps every promise that the row order makes, for recipes of any shape."""

import hashlib

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.tools.examples import examples
from trainer_core.data.plan import order
from trainer_core.data.plan.order import permutation, quota_sequence, reduced
from trainer_core.errors import Refused

shares_lists = st.lists(st.integers(0, 40), min_size=1, max_size=32).filter(any)

pytestmark = pytest.mark.timeout(7200)


def deviations(sequence: np.ndarray, shares: list[int]) -> np.ndarray:
    """[time + 1, source]: N times (rows placed so far minus the exact share), in integers."""
    total = sum(shares)
    placed = np.zeros((len(sequence) + 1, len(shares)), dtype=np.int64)
    for source in range(len(shares)):
        placed[1:, source] = np.cumsum(sequence == source)
    time = np.arange(len(sequence) + 1)[:, None]
    return placed * total - time * np.array(shares)[None, :]


@examples()
@given(shares=shares_lists, start=st.integers(0, 10**12))
def test_every_run_stays_within_two_rows_of_its_share(shares: list[int], start: int) -> None:
    total = sum(reduced(shares))
    num_used = sum(share > 0 for share in shares)
    sequence = quota_sequence(shares, start, 2 * total + 7)
    error = deviations(sequence, shares)
    # The worst contiguous run of any length and any start = the span of the prefix deviations.
    worst = int((error.max(axis=0) - error.min(axis=0)).max())
    if num_used == 1:
        assert worst == 0
        return
    # 2 - 1/(S-1), kept in integers: worst / N <= (2S - 3) / (S - 1)
    assert worst * (num_used - 1) <= sum(shares) * (2 * num_used - 3)


@examples()
@given(shares=shares_lists)
def test_prefixes_are_within_one_row_and_periods_exact(shares: list[int]) -> None:
    parts = reduced(shares)
    period = sum(parts)
    sequence = quota_sequence(shares, 0, 3 * period)
    assert np.abs(deviations(sequence, shares)).max() < sum(shares)
    assert all(share for share in np.array(shares)[np.unique(sequence)])
    for turn in range(3):
        counts = np.bincount(sequence[turn * period : (turn + 1) * period], minlength=len(shares))
        assert counts.tolist() == list(parts)


def plain_schedule(shares: list[int], count: int) -> list[int]:
    """Earliest deadline first, an element at a time: what the sequence is defined to be."""
    used = [index for index, share in enumerate(shares) if share]
    total, spread = sum(shares), max(1, 2 * len(used) - 2)
    jobs = dict.fromkeys(used, 0)
    sequence = []
    for time in range(1, count + 1):
        ready = [
            ((total * (jobs[s] * spread + spread - 1)) // (spread * shares[s]) + 1, s)
            for s in used
            if -(-total * (jobs[s] * spread + 1) // (spread * shares[s])) <= time
        ]
        source = min(ready)[1] if len(used) > 1 else used[0]
        jobs[source] += 1
        sequence.append(source)
    return sequence


@examples()
@given(shares=st.lists(st.integers(0, 300), min_size=1, max_size=32).filter(any))
def test_the_sequence_is_the_plain_schedule(shares: list[int]) -> None:
    assert quota_sequence(shares, 0, 100).tolist() == plain_schedule(list(reduced(shares)), 100)


def test_long_sequences_are_walked_in_blocks_and_remembered() -> None:
    shares = [70_001, 30_011, 4_999, 1]
    expected = plain_schedule(shares, 20_000)
    order._walker.cache_clear()
    pieces = [quota_sequence(shares, start, 2_500) for start in range(0, 20_000, 2_500)]
    assert np.concatenate(pieces).tolist() == expected
    assert quota_sequence(shares, 19_000, 1_000).tolist() == expected[19_000:]
    assert quota_sequence(shares, sum(shares) - 500, 1_000).tolist()[500:] == expected[:500]


@examples()
@given(shares=shares_lists, cuts=st.lists(st.integers(1, 150), min_size=1, max_size=6))
def test_cycles_continue_one_sequence(shares: list[int], cuts: list[int]) -> None:
    whole = quota_sequence(shares, 0, sum(cuts))
    start, pieces = 0, []
    for count in cuts:
        pieces.append(quota_sequence(shares, start, count))
        start += count
    assert np.concatenate(pieces).tolist() == whole.tolist()


def test_golden_sequence_and_permutation() -> None:
    shares = [300, 200, 150, 100, 80, 50, 40, 30, 20, 10, 5, 5, 4, 3, 3]
    sequence = quota_sequence(shares, 123_456, 4096)
    assert quota_sequence([5, 3, 2], 0, 10).tolist() == GOLDEN_SEQUENCE
    assert hashlib.blake2b(sequence.astype("<u2").tobytes(), digest_size=8).hexdigest() == GOLDEN_DIGEST
    assert permutation("documents", 7, "a/b.jsonl", n=8).tolist() == GOLDEN_PERMUTATION


GOLDEN_SEQUENCE = [0, 1, 0, 2, 0, 1, 0, 2, 0, 1]
GOLDEN_DIGEST = "de8936d4c2abfeac"
GOLDEN_PERMUTATION = [7, 0, 3, 2, 1, 6, 5, 4]


def test_permutations_are_permutations_and_depend_on_the_whole_key() -> None:
    one = permutation("a", "bc", n=50)
    assert sorted(one.tolist()) == list(range(50))
    assert one.tolist() == permutation("a", "bc", n=50).tolist()
    assert one.tolist() != permutation("ab", "c", n=50).tolist()
    assert permutation("a", n=0).tolist() == []


@pytest.mark.parametrize("shares", [[], [0, 0], [3, -1]])
def test_shares_that_give_no_order_are_refused(shares: list[int]) -> None:
    with pytest.raises(Refused, match="shares"):
        quota_sequence(shares, 0, 1)


def test_a_period_too_long_to_walk_is_refused() -> None:
    with pytest.raises(Refused, match="fewer digits"):
        quota_sequence([10**9 + 7, 10**9], 0, 1)
