"""Documents of planned cycles: each taken once, counts exact, strata at their shares, plans repeatable."""

from collections import defaultdict
from dataclasses import dataclass, replace

import numpy as np
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from tests.tools.examples import examples
from tests.tools.tiny_data import KnownCounts, Lengths, one_consumer, planned_line, schedules
from trainer_core.data.plan.consumer import Consumer
from trainer_core.data.plan.planner import CyclePlan, plan_cycle
from trainer_core.data.plan.state import DocRange, PlanState
from trainer_core.data.sources import DataLine, Piece
from trainer_core.errors import DataUsedUp
from trainer_core.line.files import canonical_json

CONSUMERS = (
    one_consumer(row_length=16, tokens_per_update=64),
    one_consumer(row_length=5, tokens_per_update=37),
    schedules(lengths=[(0, 8), (300, 32), (1100, 4)], batches=[(0, 64), (500, 96), (900, 130)]),
)

pytestmark = pytest.mark.timeout(7200)


@dataclass(frozen=True, kw_only=True)
class Corpus:
    """A data line in memory."""

    lengths: Lengths
    line: DataLine
    counts: KnownCounts


def corpus(seed: int, cycle_tokens: int, segments: int, longest: int) -> Corpus:
    """Two sources of one to four strata; skewed documents, some files empty."""
    random = np.random.default_rng(seed)
    lengths: dict[str, dict[str, dict[str, list[int]]]] = {}
    for source in ("a", "b"):
        strata: dict[str, dict[str, list[int]]] = {}
        for t in range(int(random.integers(1, 5))):
            sizes = random.integers(0, 30, size=int(random.integers(1, 6)))
            sizes[0] += 10
            strata[f"t{t}"] = {
                f"t{t}/{f}": (1 + random.integers(0, longest, size=n) // random.integers(1, 9)).tolist()
                for f, n in enumerate(sizes.tolist())
            }
        lengths[source] = strata
    shares = {"a": int(random.integers(1, 9)), "b": int(random.integers(1, 9))}
    line = planned_line(lengths, cycle_tokens=cycle_tokens, shares=shares, segments=segments, seed=seed)
    return Corpus(lengths=lengths, line=line, counts=KnownCounts(lengths))


def plan(made: Corpus, consumer: Consumer, state: PlanState) -> CyclePlan:
    return plan_cycle(made.line, consumer, state, made.counts, made.counts.estimate)


def plan_cycles(made: Corpus, consumer: Consumer, most: int) -> list[CyclePlan]:
    """Cycles until the data is used up, each planned twice: from the state, and from its record."""
    state, plans = PlanState(), []
    while len(plans) < most:
        try:
            planned = plan(made, consumer, state)
        except DataUsedUp as ended:
            assert f"cycle {len(plans)}, source " in str(ended) and " tokens short" in str(ended)
            break
        again = plan(made, consumer, PlanState.from_json(state.to_json()))
        assert again.sources == planned.sources and again.after == planned.after
        assert canonical_json(again.after.to_json()) == canonical_json(planned.after.to_json())
        plans.append(planned)
        state = planned.after
    return plans


def tokens(made: Corpus, source: str, docs: tuple[DocRange, ...]) -> int:
    return sum(entry.tokens(made.counts.ends[source, entry.path]) for entry in docs)


def check_documents(made: Corpus, plans: list[CyclePlan], source: str) -> None:
    """Every document of an opened file is in one piece or still to come."""
    taken: dict[str, list[tuple[int, int]]] = defaultdict(list)
    for planned in plans:
        if source in planned.sources:
            for docs in (entry for segment in planned.sources[source].pieces for entry in segment):
                taken[docs.path].append((docs.doc_from, docs.doc_to))
    state = plans[-1].after.sources.get(source)
    if state is None:
        assert not taken
        return
    left = {file.path: file.next_doc for stratum in state.strata.values() for file in stratum.open}
    for path, ranges in taken.items():
        position = 0
        for first, last in sorted(ranges):
            assert first == position, (path, ranges)
            position = last
        assert position == left.get(path, len(made.counts.ends[source, path]))
    opened = {
        path
        for spec in made.line.sources
        if spec.name == source
        for name, stratum in state.strata.items()
        for path in spec.file_order(made.line.seed, name)[: stratum.next_file]
    }
    assert opened == set(taken) | set(left)


def check_counts(made: Corpus, plans: list[CyclePlan], source: str) -> None:
    """A stream holds what its rows train and what it leaves; what it leaves is where the next one begins."""
    head: tuple[DocRange, ...] = ()
    for planned in plans:
        rows = sum(part.order.rows().get(source, 0) * part.row_length for part in planned.parts)
        if source not in planned.sources:
            assert rows == 0
            continue
        stream = planned.sources[source]
        assert stream.head == head
        new = sum(tokens(made, source, segment) for segment in stream.pieces)
        head = stream.head_out
        assert tokens(made, source, stream.head) + new == rows + tokens(made, source, head)
        assert tokens(made, source, head) >= 1


def check_strata(made: Corpus, plans: list[CyclePlan], source: str) -> None:
    """Up to any cycle a stratum is less than a longest document off its share, so less than two in each."""
    weights = {stratum.name: stratum.tokens for stratum in made.line.source(source).strata}
    total = sum(weights.values())
    longest = max(max(docs, default=0) for files in made.lengths[source].values() for docs in files.values())
    debts = dict.fromkeys(weights, 0)
    taken, trained = dict.fromkeys(weights, 0), 0
    for planned in plans:
        if source not in planned.sources:
            continue
        rows = sum(
            part.order.rows()[source] * part.row_length
            for part in planned.parts
            if source in part.order.rows()
        )
        trained += rows + (not trained)
        for docs in (entry for segment in planned.sources[source].pieces for entry in segment):
            taken[docs.stratum] += docs.tokens(made.counts.ends[source, docs.path])
        for name, state in planned.after.sources[source].strata.items():
            assert state.debt == trained * weights[name] - taken[name] * total
            assert abs(state.debt) < longest * total
            assert abs(state.debt - debts[name]) < 2 * longest * total
            debts[name] = state.debt


@examples()
@given(
    seed=st.integers(0, 2**31),
    cycle_tokens=st.integers(150, 1200),
    segments=st.integers(1, 9),
    longest=st.sampled_from([2, 40, 300, 1500]),
    consumer=st.sampled_from(CONSUMERS),
)
def test_documents_are_taken_once_counts_are_exact_and_strata_keep_their_shares(
    seed: int, cycle_tokens: int, segments: int, longest: int, consumer: Consumer
) -> None:
    made = corpus(seed, cycle_tokens, segments, longest)
    plans = plan_cycles(made, consumer, 4)
    for source in ("a", "b") if plans else ():
        check_documents(made, plans, source)
        check_counts(made, plans, source)
        check_strata(made, plans, source)


@examples()
@given(
    seed=st.integers(0, 2**31), changes=st.sets(st.integers(1, 700), max_size=3), cycles=st.integers(1, 20)
)
@example(seed=1, changes={100, 333}, cycles=60)
@example(seed=2, changes=set(), cycles=60)
@example(seed=3, changes={1, 2, 650}, cycles=60)
def test_cycles_planned_again_are_byte_identical(seed: int, changes: set[int], cycles: int) -> None:
    """Also after the consumer's schedule and the recipe have grown behind them."""
    random = np.random.default_rng(seed)
    lengths = {name: {"all": {"f": random.integers(1, 9, size=200).tolist()}} for name in ("a", "b")}
    line = planned_line(lengths, cycle_tokens=12, shares={"a": 1}, seed=seed)
    counts = KnownCounts(lengths)
    values = [(0, 2), *((start, int(random.integers(1, 6))) for start in sorted(changes))]
    batches = [(start, 2 * value) for start, value in values]

    def planned(line: DataLine, consumer: Consumer, cycles: int) -> list[CyclePlan]:
        plans: list[CyclePlan] = []
        for _ in range(cycles):
            state = plans[-1].after if plans else PlanState()
            plans.append(plan_cycle(line, consumer, state, counts, counts.estimate))
        return plans

    first = planned(line, schedules(lengths=[(0, 2)], batches=batches), cycles)
    end = max(first[-1].after.start_token, values[-1][0] + 1)
    grown = schedules(lengths=[(0, 2), (end, 3)], batches=[*batches, (end, 9)])
    more = replace(line, pieces=(*line.pieces, Piece(from_cycle=cycles, shares={"a": 1, "b": 2})))
    again = planned(more, grown, cycles + 2)
    for one, two in zip(first, again, strict=False):
        assert (one.sources, one.after) == (two.sources, two.after)
        assert [part.order.digest() for part in one.parts] == [part.order.digest() for part in two.parts]
    assert first[-1].after.digest() == again[cycles - 1].after.digest()
