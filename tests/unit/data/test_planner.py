"""Plans lose no document, train every token once, keep every share, and depend on their inputs alone."""

from collections import defaultdict
from itertools import pairwise

import numpy as np
import pytest

from tests.tools.tiny_data import (
    KnownCounts,
    Lengths,
    one_consumer,
    planned_line,
    random_lengths,
    schedules,
)
from trainer_core.data.plan.consumer import Consumer, ConsumerPiece
from trainer_core.data.plan.order import quota_sequence
from trainer_core.data.plan.planner import CyclePlan, FilesNeeded, plan_cycle
from trainer_core.data.plan.state import DocRange, PlanState
from trainer_core.data.sources import DataLine
from trainer_core.errors import DataUsedUp, Refused

CYCLES = 6


def plan_cycles(
    line: DataLine, counts: KnownCounts, consumer: Consumer, cycles: int = CYCLES
) -> list[CyclePlan]:
    """The first cycles of a line; the state travels through its JSON form."""
    state, plans = PlanState(), []
    for _ in range(cycles):
        plan = plan_cycle(line, consumer, PlanState.from_json(state.to_json()), counts, counts.estimate)
        plans.append(plan)
        state = plan.after
    return plans


def small_case(seed: int = 1, segments: int = 3) -> tuple[DataLine, KnownCounts, Lengths]:
    lengths = random_lengths(seed)
    line = planned_line(lengths, cycle_tokens=3000, shares={"s0": 3, "s1": 2}, segments=segments)
    return line, KnownCounts(lengths), lengths


def tokens_of(source: str, docs: DocRange, counts: KnownCounts) -> list[tuple[str, int]]:
    """Every token of a range as (path, position in the file)."""
    ends = counts.ends[source, docs.path]
    return [(docs.path, position) for position in range(docs.start(ends), docs.end(ends))]


def stream_of(source: str, plan: CyclePlan, counts: KnownCounts) -> list[tuple[str, int]]:
    """A source's stream in a cycle."""
    planned = plan.sources[source]
    entries = [*planned.head, *(docs for segment in planned.pieces for docs in segment)]
    return [token for docs in entries for token in tokens_of(source, docs, counts)]


CASES = pytest.mark.parametrize("seed,segments", [(1, 1), (2, 3), (3, 7)])
CONSUMERS = (
    one_consumer(row_length=16, tokens_per_update=128),
    # Three parts in cycle 0, two in cycle 2.
    schedules(lengths=[(0, 16), (1000, 64), (2000, 8), (7000, 32)], batches=[(0, 128), (2500, 192)]),
)


def trained_tokens(plan: CyclePlan, source: str) -> int:
    return sum(part.order.rows().get(source, 0) * part.row_length for part in plan.parts)


@CASES
@pytest.mark.parametrize("consumer", CONSUMERS)
def test_every_token_is_a_target_exactly_once(seed: int, segments: int, consumer: Consumer) -> None:
    line, counts, _ = small_case(seed, segments)
    plans = plan_cycles(line, counts, consumer)
    for source in ("s0", "s1"):
        targets: list[tuple[str, int]] = []
        context = []
        for plan in plans:
            stream = stream_of(source, plan, counts)
            trained = trained_tokens(plan, source)
            context.append(stream[0])
            targets += stream[1 : trained + 1]
            rest = [t for docs in plan.sources[source].head_out for t in tokens_of(source, docs, counts)]
            assert rest == stream[trained:]
        assert len(set(targets)) == len(targets)
        assert context[0] not in targets, "the line's first token is context only"
        assert set(context[1:]) <= set(targets)
        # Nothing between the documents taken is skipped: taken = trained + what the head still holds.
        taken = [
            token
            for plan in plans
            for segment in plan.sources[source].pieces
            for docs in segment
            for token in tokens_of(source, docs, counts)
        ]
        assert set(taken) == {context[0], *targets, *rest}


@CASES
def test_every_document_is_in_exactly_one_piece_and_files_are_used_in_order(seed: int, segments: int) -> None:
    line, counts, lengths = small_case(seed, segments)
    plans = plan_cycles(line, counts, one_consumer(row_length=16, tokens_per_update=128))
    for source, strata in lengths.items():
        seen: dict[str, list[tuple[int, int]]] = defaultdict(list)
        for plan in plans:
            for segment in plan.sources[source].pieces:
                for docs in segment:
                    seen[docs.path].append((docs.doc_from, docs.doc_to))
        state = plans[-1].after.sources[source]
        still = {file.path: file.next_doc for s in state.strata.values() for file in s.open}
        for entries in strata.values():
            for path, docs_of_file in entries.items():
                expected = still.get(path, len(docs_of_file) if path in seen else 0)
                covered = [doc for first, last in sorted(seen[path]) for doc in range(first, last)]
                assert covered == list(range(expected))


@CASES
def test_a_stratum_stays_within_one_document_of_its_share_for_ever(seed: int, segments: int) -> None:
    line, counts, lengths = small_case(seed, segments)
    plans = plan_cycles(line, counts, one_consumer(row_length=16, tokens_per_update=128), cycles=9)
    for source, strata in lengths.items():
        weights = {name: sum(map(sum, entries.values())) for name, entries in strata.items()}
        longest = max(max(docs) for entries in strata.values() for docs in entries.values())
        taken: dict[str, int] = defaultdict(int)
        trained = 1
        for plan in plans:
            trained += plan.parts[0].order.rows()[source] * 16
            for segment in plan.sources[source].pieces:
                for docs in segment:
                    taken[docs.stratum] += docs.tokens(counts.ends[source, docs.path])
            for name, weight in weights.items():
                exact = trained * weight / sum(weights.values())
                assert abs(taken[name] - exact) <= longest
                debt = plan.after.sources[source].strata[name].debt
                assert debt == trained * weight - taken[name] * sum(weights.values())


def test_every_segment_holds_every_stratum_at_its_share() -> None:
    lengths = random_lengths(4, sources=1, files=8, docs=300, longest=40)
    line = planned_line(lengths, cycle_tokens=60_000, shares={"s0": 1}, segments=5)
    counts = KnownCounts(lengths)
    (plan,) = plan_cycles(line, counts, one_consumer(row_length=16, tokens_per_update=128), cycles=1)
    assert len(plan.sources["s0"].pieces) == 5
    total = sum(sum(map(sum, entries.values())) for entries in lengths["s0"].values())
    for segment in plan.sources["s0"].pieces:
        held: dict[str, int] = defaultdict(int)
        for docs in segment:
            held[docs.stratum] += docs.tokens(counts.ends["s0", docs.path])
        for name, entries in lengths["s0"].items():
            exact = 60_000 / 5 * sum(map(sum, entries.values())) / total
            assert abs(held[name] - exact) <= 2 * 40


def test_rows_are_whole_updates_and_the_order_runs_on_over_cycles() -> None:
    line, counts, _ = small_case()
    plans = plan_cycles(line, counts, one_consumer(row_length=16, tokens_per_update=144))
    for before, plan in pairwise(plans):
        assert plan.parts[0].num_rows == plan.parts[0].updates * 9 == 3000 // 144 * 9
        assert plan.parts[0].order_start == before.parts[0].order_start + before.parts[0].num_rows
        assert plan.parts[0].start_token == before.parts[0].start_token + before.parts[0].num_rows * 16
    sequence = np.concatenate([plan.parts[0].order.sequence for plan in plans])
    rows = np.bincount(sequence)
    assert abs(rows[0] - len(sequence) * 3 / 5) < 1


def test_the_order_runs_on_over_parts_and_segments_follow_their_tokens() -> None:
    line, counts, _ = small_case(segments=6)
    plans = plan_cycles(line, counts, CONSUMERS[1])
    assert [[part.row_length for part in plan.parts] for plan in plans[:3]] == [[16, 64, 8], [8], [8, 32]]
    parts = [part for plan in plans for part in plan.parts]
    for before, part in pairwise(parts):
        assert part.order_start == before.order_start + before.num_rows
        assert part.start_token == before.start_token + before.tokens
    whole = quota_sequence([3, 2], 0, sum(part.num_rows for part in parts))
    assert np.concatenate([part.order.sequence for part in parts]).tolist() == whole.tolist()
    assert [len(part.order.bounds) - 1 for part in plans[0].parts] == [2, 2, 2]
    assert len(plans[0].sources["s0"].pieces) == 6


def test_a_growing_batch_is_read_at_each_update() -> None:
    line, counts, _ = small_case()
    consumer = Consumer(
        line="/l",
        row_lengths=(ConsumerPiece(start=0, end=None, value=16),),
        batches=(
            ConsumerPiece(start=0, end=1000, value=160),
            ConsumerPiece(start=1000, end=None, value=320),
        ),
    )
    first, second = plan_cycles(line, counts, consumer, cycles=2)
    # Updates begin at 0, 160, ... 960 (seven of 160), then 1120, 1440, ... while 3000 holds them.
    assert (first.parts[0].updates, first.parts[0].num_rows) == (7 + 5, 7 * 10 + 5 * 20)
    assert (second.parts[0].updates, second.parts[0].num_rows) == (9, 180)


def test_planning_again_gives_the_same_plan() -> None:
    line, counts, _ = small_case()
    consumer = one_consumer(row_length=16, tokens_per_update=128)
    one, two = plan_cycles(line, counts, consumer), plan_cycles(line, counts, consumer)
    for a, b in zip(one, two, strict=True):
        assert a.sources == b.sources
        assert a.after.digest() == b.after.digest()
        assert a.parts[0].order.digest() == b.parts[0].order.digest()


def test_missing_counts_are_asked_for_all_at_once_and_estimates_change_nothing() -> None:
    line, counts, _ = small_case()
    consumer = one_consumer(row_length=16, tokens_per_update=128)
    whole = plan_cycle(line, consumer, PlanState(), counts, counts.estimate)
    for factor in (0.2, 1.0, 5.0):
        known: set[tuple[str, str]] = set()
        rounds = 0
        while True:
            try:
                plan = plan_cycle(
                    line,
                    consumer,
                    PlanState(),
                    lambda s, p: counts(s, p) if (s, p) in known else None,  # noqa: B023
                    lambda s, p: int(counts.estimate(s, p) * factor),  # noqa: B023
                )
                break
            except FilesNeeded as wanted:
                assert known.isdisjoint(wanted.files)
                known |= set(wanted.files)
                rounds += 1
        assert plan.sources == whole.sources
        assert plan.after.digest() == whole.after.digest()
        if factor <= 1.0:
            assert rounds <= 3


def test_a_used_up_stratum_is_named_with_cycle_and_tokens() -> None:
    lengths = {"books": {"old": {"old/a": [40] * 10}, "new": {"new/a": [10] * 400, "new/b": [10] * 400}}}
    line = planned_line(lengths, cycle_tokens=2000, shares={"books": 1})
    counts = KnownCounts(lengths)
    consumer = one_consumer(row_length=10, tokens_per_update=100)
    # 8,400 tokens: four whole cycles, the fifth finds 400 tokens.
    told = r"cycle 4, source books, stratum (old|new): used up, .* short\n.*append a recipe piece"
    with pytest.raises(DataUsedUp, match=told):
        plan_cycles(line, counts, consumer)
    # Nothing can be appended at cycle 0.
    with pytest.raises(DataUsedUp, match="make a new data line with a smaller --cycle-tokens") as ended:
        plan_cycles(planned_line(lengths, cycle_tokens=9000, shares={"books": 1}), counts, consumer)
    assert "append" not in str(ended.value)
    assert len(plan_cycles(line, counts, consumer, cycles=4)) == 4


def test_a_document_longer_than_a_cycle_is_trained_over_several_cycles() -> None:
    lengths = {"s": {"a": {"a/1": [5000, 30, 40], "a/2": [50] * 100}, "b": {"b/1": [20] * 600}}}
    line = planned_line(lengths, cycle_tokens=1000, shares={"s": 1}, segments=2)
    counts = KnownCounts(lengths)
    plans = plan_cycles(line, counts, one_consumer(row_length=10, tokens_per_update=100), cycles=9)
    trained: set[tuple[str, int]] = set()
    for plan in plans:
        stream = stream_of("s", plan, counts)
        assert trained.isdisjoint(stream[1:1001])
        trained |= set(stream[1:1001])
    assert sum(path == "a/1" for path, _ in trained) >= 1000


def test_one_source_one_stratum_and_empty_files() -> None:
    lengths = {"s": {"all": {"1": [], "2": [7] * 300, "3": [], "4": [9] * 300}}}
    line = planned_line(lengths, cycle_tokens=1000, shares={"s": 1})
    counts = KnownCounts(lengths)
    plans = plan_cycles(line, counts, one_consumer(row_length=10, tokens_per_update=100), cycles=4)
    paths = [d.path for plan in plans for segment in plan.sources["s"].pieces for d in segment]
    assert set(paths) == {"1", "2", "3", "4"}
    assert paths.count("1") == paths.count("3") == 1


def test_an_empty_file_may_be_the_one_left_open() -> None:
    lengths = {"s": {"all": {"1": [7] * 300, "2": [], "3": []}}}
    line = planned_line(lengths, cycle_tokens=1000, shares={"s": 1})
    counts = KnownCounts(lengths)
    for order in (("1", "2", "3"), ("2", "1", "3"), ("2", "3", "1")):
        line.sources[0]._orders[(line.seed, "all")] = order
        plans = plan_cycles(line, counts, one_consumer(row_length=10, tokens_per_update=100), cycles=2)
        assert sum(d.doc_to - d.doc_from for plan in plans for s in plan.sources["s"].pieces for d in s) > 280


def test_a_source_too_small_for_a_row_waits_for_its_turn() -> None:
    lengths = random_lengths(5)
    line = planned_line(lengths, cycle_tokens=320, shares={"s0": 99, "s1": 1})
    counts = KnownCounts(lengths)
    plans = plan_cycles(line, counts, one_consumer(row_length=16, tokens_per_update=320), cycles=10)
    with_rows = [plan.cycle for plan in plans if "s1" in plan.sources]
    assert len(with_rows) == 2
    assert sum(plan.parts[0].order.rows().get("s1", 0) for plan in plans) == 2


def test_what_cannot_be_planned_is_refused_by_name() -> None:
    line, counts, _ = small_case()
    with pytest.raises(Refused, match="no whole update of 4,096 tokens"):
        plan_cycles(line, counts, one_consumer(row_length=16, tokens_per_update=4096))
