"""Results are read one update late: the ledger is behind by one at most, and up to date where it matters."""

import json
import time

import pytest

from tests.unit.train.test_loop import final_bytes, rows_of
from trainer_core.errors import NonFinite
from trainer_core.line.checkpoints import list_checkpoints
from trainer_core.line.files import iterate_jsonl
from trainer_core.train.loop import Stopped
from trainer_core.train.outcome import Session, run_to_end

QUIET = {"checkpoints": {"every_updates": 100}, "validation": {"every_updates": 100, "rows_per_stratum": 2}}
"""Nothing is due inside a cycle."""


class Journal:
    """Order of what the loop asks of the step, the ledger and the saver."""

    def __init__(self, loop) -> None:
        self.seen: list[str] = []
        self._watch(loop.step, "submit", lambda *_: f"ask {loop.progress.update + 1}")
        self._watch(loop.step, "evaluate", lambda *_: "evaluate")
        self._watch(loop.ledger, "append", lambda kind, update, row: f"{kind} {update}")
        self._watch(loop.saver, "save", lambda progress: f"save {progress.update}")

    def _watch(self, owner, name, describe) -> None:
        real = getattr(owner, name)

        def call(*args, **kwargs):
            known = (
                args if describe.__code__.co_argcount == len(args) else args[: describe.__code__.co_argcount]
            )
            line = describe(*known)
            if self.seen[-1:] != [line]:
                self.seen.append(line)
            return real(*args, **kwargs)

        setattr(owner, name, call)


def test_the_next_update_is_asked_for_before_the_last_is_written(rig):
    loop = rig(**QUIET).loop()
    journal = Journal(loop)
    loop.run(1)
    assert journal.seen == [
        "save 0",
        *("ask 1", "ask 2", "update 1", "ask 3", "update 2"),
        *("ask 4", "update 3", "update 4", "evaluate", "validation 4", "save 4"),
    ]


def test_what_needs_the_newest_results_waits_for_them(rig):
    loop = rig(
        validation={"every_updates": 3, "rows_per_stratum": 2}, checkpoints={"every_updates": 2}
    ).loop()
    journal = Journal(loop)
    loop.paths.stop.write_text(json.dumps({"id": "x", "at_update": 5, "by": "test"}))
    with pytest.raises(Stopped):
        loop.run(None)
    assert journal.seen == [
        "save 0",
        *("ask 1", "ask 2", "update 1", "update 2", "save 2"),
        *("ask 3", "update 3", "evaluate", "validation 3"),
        *("ask 4", "update 4", "evaluate", "validation 4", "save 4"),
        *("ask 5", "update 5", "save 5"),
    ]
    assert loop.done == loop.progress


def test_every_row_has_the_seconds_and_the_time_of_its_own_update(rig):
    line = rig(**QUIET)
    loop = line.loop()
    real = loop.rows.rows

    def slow_third(position, count):
        if position.row == 8:
            time.sleep(0.3)
        return real(position, count)

    loop.rows.rows = slow_third
    loop.run(1)
    rows = list(iterate_jsonl(line.paths.metrics))
    data = [row["seconds"]["data"] for row in rows if row["kind"] == "update"]
    assert [seconds >= 0.3 for seconds in data] == [False, False, True, False]
    times = [row["time"] for row in rows]
    assert times == sorted(times)


def poison(loop, first):
    """Makes the weights NaN just before an update: it and all after it are skipped."""
    real = loop.step.submit

    def submit(micro, scalars):
        if loop.progress.update + 1 == first:
            loop.step._state.P[0] = float("nan")
        real(micro, scalars)

    loop.step.submit = submit


def test_too_many_skipped_updates_stop_the_line_one_update_late(rig):
    line = rig(guards={"max_nonfinite": 2}, **QUIET)
    loop = line.loop()
    poison(loop, 5)
    with pytest.raises(NonFinite, match=r"2 updates in a row .* the last is 6;"):
        loop.run(None)
    rows = rows_of(line.paths)
    assert [(row["update"], row["skipped"]) for row in rows[4:]] == [(5, True), (6, True)]
    assert (loop.done.update, loop.progress.update) == (6, 6), "update 7 was asked for, and is not done"
    assert list_checkpoints(line.paths)[-1].update == 4


def test_the_end_of_a_line_that_stopped_late_names_the_update_of_the_ledger(rig):
    line = rig(guards={"max_nonfinite": 2}, **QUIET)
    loop = line.loop()
    poison(loop, 5)
    session = Session(lambda: loop)
    code, _ = run_to_end(line.paths, session, lambda: session.train(None))
    assert code == 40
    last = list(iterate_jsonl(line.paths.events))[-1]
    assert (last["kind"], last["update"], last["exit_code"]) == ("non_finite", 6, 40)


def test_skipped_updates_push_out_no_checkpoint_from_before_them(rig):
    line = rig(guards={"max_nonfinite": 6}, checkpoints={"every_updates": 1, "keep_last": 1})
    loop = line.loop()
    poison(loop, 3)
    with pytest.raises(NonFinite, match="the last is 8"):
        loop.run(None)
    found = [(c.update, c.kept) for c in list_checkpoints(line.paths)]
    assert found == [(0, "start"), (2, None), (4, "cycle-end")]


@pytest.mark.parametrize("written", [5, 6])
def test_an_update_that_was_asked_for_is_trained_again_written_or_not(rig, written):
    whole = rig("whole", **QUIET)
    whole.loop().run(None)
    line = rig("killed", **QUIET)
    loop = line.loop()
    real = loop._boundary

    def die(*what):
        if loop.progress.update == 6:
            if written == 6:
                loop._updates.drain()
            raise KeyboardInterrupt
        real(*what)

    loop._boundary = die
    with pytest.raises(KeyboardInterrupt):
        loop.run(None)
    assert len(rows_of(line.paths)) == written
    line.loop().run(None)
    assert final_bytes(line.paths) == final_bytes(whole.paths)
    assert rows_of(line.paths) == rows_of(whole.paths)
