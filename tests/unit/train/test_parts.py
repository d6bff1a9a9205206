"""A line whose row length and batch change inside a cycle, on rows in memory, killed and resumed anywhere."""

import pytest

from tests.unit.train.conftest import Rig
from tests.unit.train.test_loop import final_bytes, rows_of
from trainer_core.errors import Refused
from trainer_core.line.checkpoints import list_checkpoints
from trainer_core.line.files import iterate_jsonl

STAGES = {
    "schedule": [
        {"from": 0, "to": 128, "kind": "warmup"},
        {"from": 128, "to": 320, "kind": "constant"},
        {"from": 320, "to": 768, "kind": "constant", "length": 32},
    ],
    "lengths": [{"length": 16, "rows": 3}, {"length": 32, "rows": 1, "ac": "full"}],
}
"""Rows of 16, and of 32 from 320 tokens on: after the first update of cycle 1."""

PLANNED = {1: [(16, 4), (32, 6)], 2: [(32, 8)]}


@pytest.fixture(scope="module")
def reference(tmp_path_factory):
    """An uninterrupted line of 12 updates of 64 tokens."""
    whole = Rig(tmp_path_factory.mktemp("reference"), PLANNED, **STAGES)
    whole.loop().run(None)
    return whole.paths


def test_every_token_once_and_no_update_of_two_lengths(reference):
    updates = rows_of(reference)
    assert [row["shape"] for row in updates] == ["3x16"] * 5 + ["1x32"] * 7
    assert [(row["cycle"], row["part"], row["row"]) for row in updates[3:7]] == [
        (0, 0, 12),
        (1, 0, 0),
        (1, 1, 0),
        (1, 1, 2),
    ]
    assert [row["samples"] for row in updates] == [
        *(f"{64 * n}+4x16" for n in range(5)),
        *(f"{64 * n}+2x32" for n in range(5, 12)),
    ]
    assert [row["tokens"] for row in updates] == [64 * n for n in range(1, 13)]


def test_the_change_is_validated_told_and_kept(reference):
    kept = {c.update: (c.kept, c.cycle, c.part, c.row) for c in list_checkpoints(reference) if c.kept}
    assert kept == {
        0: ("start", 0, 0, 0),
        4: ("cycle-end", 1, 0, 0),
        5: ("length-change", 1, 1, 0),
        8: ("cycle-end", 2, 0, 0),
        12: ("end", 3, 0, 0),
    }
    by_update = {row["update"]: row for row in rows_of(reference, "validation")}
    assert list(by_update) == [3, 4, 5, 6, 8, 9, 12]
    for update, row in by_update.items():
        names = {name.split("/")[0] for name in row if name.startswith("val_")}
        assert names == {"val_16" if update <= 5 else "val_32"}
    events = [(row["kind"], row["update"]) for row in iterate_jsonl(reference.events)]
    assert events == [
        ("cycle_completed", 4),
        ("row_length_changed", 5),
        ("cycle_completed", 8),
        ("cycle_completed", 12),
    ]


def test_a_change_at_a_cycles_end_is_kept_as_that(rig):
    schedule = [
        {"from": 0, "to": 256, "kind": "constant"},
        {"from": 256, "to": 512, "kind": "decay", "length": 32},
    ]
    line = rig("line", {1: [(32, 8)]}, schedule=schedule, lengths=STAGES["lengths"])
    line.loop().run(None)
    kept = {c.update: c.kept for c in list_checkpoints(line.paths) if c.kept}
    assert kept == {0: "start", 4: "cycle-end", 8: "end"}
    assert [row["shape"] for row in rows_of(line.paths)] == ["3x16"] * 4 + ["1x32"] * 4
    assert ("row_length_changed", 4) in [(r["kind"], r["update"]) for r in iterate_jsonl(line.paths.events)]


def interrupted(line, update, *, after_boundary):
    """Train until something ends the process at an update, before or after what is due there."""
    loop = line.loop()
    real = loop._boundary

    def die(*what):
        if after_boundary:
            real(*what)
            loop.saver.wait(lambda: None)
        if loop.progress.update == update:
            raise KeyboardInterrupt
        if not after_boundary:
            real(*what)

    loop._boundary = die
    with pytest.raises(KeyboardInterrupt):
        loop.run(None)


def test_interrupted_on_either_side_of_the_change_the_bits_are_the_same(rig, reference):
    line = rig("line", PLANNED, **STAGES)
    for update, after_boundary in ((4, True), (5, False), (5, True), (6, False)):
        interrupted(line, update, after_boundary=after_boundary)
    loop = line.loop()
    assert (loop.progress.update, loop.progress.position.part) == (5, 1)
    loop.run(None)
    assert final_bytes(line.paths) == final_bytes(reference)
    assert rows_of(line.paths) == rows_of(reference)
    assert rows_of(line.paths, "validation") == rows_of(reference, "validation")


def test_the_kept_checkpoint_at_the_change_resumes_into_the_new_length(rig, reference):
    line = rig("line", PLANNED, **STAGES)
    line.loop().run(None)
    for point in list_checkpoints(line.paths):
        if point.update > 5:
            point.path.rename(point.path.with_name(f"away-{point.path.name}"))
    loop = line.loop()
    assert (loop.progress.position.cycle, loop.progress.position.part) == (1, 1)
    loop.run(None)
    assert final_bytes(line.paths) == final_bytes(reference)


@pytest.mark.parametrize(
    ("planned", "said"),
    [
        ([(32, 8)], "its rows of 32 from 256 to 512 tokens"),
        ([(16, 8), (32, 4)], "its rows of 16 from 256 to 384 tokens"),
        ([(16, 4), (32, 5), (32, 1)], "its rows of 32 from 320 to 480 tokens"),
    ],
)
def test_a_cycle_planned_for_another_schedule_is_refused(rig, planned, said):
    line = rig("line", {1: planned}, **STAGES)
    with pytest.raises(Refused, match=f"cycle 1: {said} are not whole updates by .*run.json"):
        line.loop().run(None)
    assert list_checkpoints(line.paths)[-1].update == 4


RAMP = [
    {"from": 0, "to": 256, "tokens": 64},
    {"from": 256, "to": 512, "tokens": 128},
    {"from": 512, "to": None, "tokens": 256},
]


@pytest.fixture(scope="module")
def ramped(tmp_path_factory):
    """An uninterrupted line whose batch grows after updates 4 and 6."""
    whole = Rig(tmp_path_factory.mktemp("ramped"), tokens_per_update=RAMP)
    whole.loop().run(None)
    return whole.paths


def test_the_batch_is_read_at_the_token_count_and_the_decay_follows_it(rig, ramped):
    assert [row["tokens"] for row in rows_of(ramped)] == [64, 128, 192, 256, 384, 512, 768]
    optimizer = {**rig().config["optimizer"], "weight_decay_batch": 256}
    other = rig("other", tokens_per_update=RAMP, optimizer=optimizer)
    other.loop().run(2)
    decays = [row["weight_decay"] for row in rows_of(other.paths)]
    assert decays == [0.1 * n / 256 for n in (64, 64, 64, 64, 128, 128)]


def test_a_ramp_resumes_in_its_piece(rig, ramped):
    line = rig("line", tokens_per_update=RAMP)
    for update, after_boundary in ((4, False), (4, True), (5, False)):
        interrupted(line, update, after_boundary=after_boundary)
    line.loop().run(None)
    assert rows_of(line.paths) == rows_of(ramped)
    assert final_bytes(line.paths, 7) == final_bytes(ramped, 7)


def test_a_ramp_that_grows_goes_on_from_what_is_trained(rig, ramped):
    line = rig("line", tokens_per_update=[{**RAMP[0], "to": None}])
    line.loop().run(1)
    line.changes["tokens_per_update"] = RAMP
    line.loop().run(None)
    assert rows_of(line.paths) == rows_of(ramped)
    line.changes["tokens_per_update"] = [*RAMP[:2], {**RAMP[2], "from": 512, "tokens": 512}]
    with pytest.raises(Refused, match=r"tokens_per_update\[2\]: it only grows at its end"):
        line.loop()
