"""Recipe pieces appended to a line: sources come, go to 0 and come back, and nothing planned changes."""

import shutil
from dataclasses import replace
from pathlib import Path

from tests.tools.tiny_data import (
    KnownCounts,
    disk_line,
    one_consumer,
    planned_line,
    published_bytes,
    random_lengths,
    register,
)
from trainer_core.data.plan.order import quota_sequence
from trainer_core.data.plan.planner import CyclePlan, plan_cycle
from trainer_core.data.plan.state import DocRange, PlanState
from trainer_core.data.prepare.preparer import CyclePreparer
from trainer_core.data.rows.line_rows import DataLineRows, Position
from trainer_core.data.sources import DataLine, Piece, load_data_line
from trainer_core.line.files import write_json
from trainer_core.line.paths import DataPaths

PIECES = (
    Piece(from_cycle=0, shares={"s0": 3, "s1": 2}),
    Piece(from_cycle=2, shares={"s1": 1, "s2": 4}),
    Piece(from_cycle=4, shares={"s0": 1, "s2": 1}),
)


def plans_of(line: DataLine, counts: KnownCounts, cycles: int) -> list[CyclePlan]:
    state, plans = PlanState(), []
    for _ in range(cycles):
        plans.append(
            plan_cycle(
                line, one_consumer(row_length=16, tokens_per_update=128), state, counts, counts.estimate
            )
        )
        state = PlanState.from_json(plans[-1].after.to_json())
    return plans


def grown(pieces: int) -> tuple[DataLine, KnownCounts]:
    lengths = random_lengths(6, sources=3, files=8)
    line = planned_line(lengths, cycle_tokens=2000, shares=PIECES[0].shares, segments=3)
    used = {name for piece in PIECES[:pieces] for name in piece.shares}
    sources = tuple(source for source in line.sources if source.name in used)
    return replace(line, pieces=PIECES[:pieces], sources=sources), KnownCounts(lengths)


def test_sources_come_and_go_and_come_back_where_they_stopped() -> None:
    line, counts = grown(3)
    plans = plans_of(line, counts, 6)
    assert [sorted(plan.sources) for plan in plans] == [["s0", "s1"]] * 2 + [["s1", "s2"]] * 2 + [
        ["s0", "s2"]
    ] * 2
    assert [plan.piece for plan in plans] == [0, 0, 1, 1, 2, 2]
    # Heads wait as long as their source has no share.
    assert plans[4].sources["s0"].head == plans[1].sources["s0"].head_out
    assert plans[3].after.sources["s0"] == plans[1].after.sources["s0"]
    assert plans[2].sources["s1"].head == plans[1].sources["s1"].head_out
    assert plans[2].sources["s2"].head == ()
    for source in ("s0", "s1", "s2"):
        taken: list[DocRange] = []
        for plan in plans:
            if source in plan.sources:
                taken += [docs for segment in plan.sources[source].pieces for docs in segment]
        seen = [(docs.path, doc) for docs in taken for doc in range(docs.doc_from, docs.doc_to)]
        assert len(seen) == len(set(seen)) > 0


def test_the_order_of_a_piece_begins_at_its_first_row() -> None:
    line, counts = grown(3)
    plans = plans_of(line, counts, 6)
    rows = plans[0].parts[0].num_rows
    assert [plan.parts[0].order_start for plan in plans] == [0, rows] * 3
    for plan in plans:
        shares = list(PIECES[plan.piece].shares.values())
        expected = quota_sequence(shares, plan.parts[0].order_start, rows)
        assert plan.parts[0].order.names == tuple(PIECES[plan.piece].shares)
        assert plan.parts[0].order.sequence.tolist() == expected.tolist()


def test_old_cycles_plan_the_same_after_pieces_and_sources_were_added() -> None:
    for pieces, cycles in ((1, 2), (2, 4)):
        line, counts = grown(pieces)
        whole, _ = grown(3)
        before, after = plans_of(line, counts, cycles), plans_of(whole, counts, cycles)
        for one, two in zip(before, after, strict=True):
            assert (one.sources, one.after) == (two.sources, two.after)
            assert one.parts[0].order.digest() == two.parts[0].order.digest()
        assert [line.digest(c) for c in range(cycles)] == [whole.digest(c) for c in range(cycles)]


def test_manifests_and_shards_of_old_cycles_come_back_identical_after_an_append(tmp_path: Path) -> None:
    work = disk_line(tmp_path, shares={"code": 2, "prose": 1, "late": 1}, consumer=False)
    paths = DataPaths(work)
    whole = load_data_line(work)
    first = replace(
        whole, sources=whole.sources[:2], pieces=(Piece(from_cycle=0, shares={"code": 2, "prose": 1}),)
    )
    second = replace(whole, pieces=(*first.pieces, Piece(from_cycle=2, shares={"prose": 1, "late": 3})))
    write_json(paths.data, first.to_json())
    register(work)
    for cycle in range(2):
        CyclePreparer(work).tokenize(cycle)
    before = {name: data for name, data in published_bytes(work).items() if name.startswith(("cyc", "man"))}
    read = DataLineRows(work).rows(Position(cycle=1, part=0, row=0), 120).ids.copy()
    write_json(paths.data, second.to_json())
    assert DataLineRows(work).ready(1) and CyclePreparer(work).published(1)
    assert (DataLineRows(work).rows(Position(cycle=1, part=0, row=0), 120).ids == read).all()
    CyclePreparer(work).tokenize(2)
    rows = DataLineRows(work).rows(Position(cycle=2, part=0, row=0), 120)
    assert rows.source_rows == {"prose": 30, "late": 90}
    after = published_bytes(work)
    assert {name: after[name] for name in before} == before
    for folder in (paths.cycles, paths.manifests, paths.open):
        shutil.rmtree(folder)
    paths.state.unlink()
    for cycle in range(3):
        CyclePreparer(work).tokenize(cycle)
    again = published_bytes(work)
    planned = [name for name in after if name.startswith(("cyc", "man"))]
    assert {name: again[name] for name in planned} == {name: after[name] for name in planned}
    assert again["state.json"] == after["state.json"]
