"""The loop: whole runs, stops, resumes, waits and readings on rows in memory."""

import json
import math
import threading
import time

import pytest

from trainer_core.errors import NoData, NonFinite, Refused
from trainer_core.line.checkpoints import list_checkpoints, read_state
from trainer_core.line.files import iterate_jsonl
from trainer_core.line.ledger import live_rows
from trainer_core.telemetry.heartbeat import read_heartbeat
from trainer_core.train.loop import Stopped

TENSORS = ("params", "exp_avg", "exp_avg_sq")
VOLATILE = ("time", "seconds", "attempt")


def final_bytes(paths, update=12):
    return [(paths.checkpoint(update) / f"{name}.safetensors").read_bytes() for name in TENSORS]


def rows_of(paths, kind="update"):
    return [{k: v for k, v in row.items() if k not in VOLATILE} for row in live_rows(paths.metrics, kind)]


@pytest.fixture
def reference(rig):
    """An uninterrupted line of 12 updates."""
    whole = rig("reference")
    whole.loop().run(None)
    return whole.paths


def test_a_whole_line(rig, reference):
    updates = rows_of(reference)
    assert [row["update"] for row in updates] == list(range(1, 13))
    assert [row["tokens"] for row in updates] == [64 * n for n in range(1, 13)]
    assert [row["cycle"] for row in updates] == [0] * 4 + [1] * 4 + [2] * 4
    assert [row["lr"] for row in updates[:3]] == pytest.approx([0.005, 0.01, 0.01])
    assert updates[-1]["lr"] == pytest.approx(0.001)
    assert updates[-1]["train/loss"] < updates[0]["train/loss"]
    assert updates[0]["train/loss"] == pytest.approx(math.log(64), rel=0.05)
    validations = rows_of(reference, "validation")
    assert [row["update"] for row in validations] == [3, 4, 6, 8, 9, 12]
    for row in live_rows(reference.metrics):
        assert sum(row["seconds"].values()) > 0


def test_kept_and_rolling_checkpoints(reference):
    found = {c.update: c.kept for c in list_checkpoints(reference)}
    assert found == {0: "start", 4: "cycle-end", 6: None, 8: "cycle-end", 10: None, 12: "end"}
    assert reference.latest.read_text() == "u12\n"


def test_events_tell_each_cycle(reference):
    kinds = [(row["kind"], row.get("cycle")) for row in iterate_jsonl(reference.events)]
    assert kinds == [("cycle_completed", 0), ("cycle_completed", 1), ("cycle_completed", 2)]


@pytest.mark.parametrize("update", range(12))
def test_a_resume_at_any_update_repeats_the_bits(rig, reference, update):
    broken = rig("broken", checkpoints={"every_updates": 3})
    loop = broken.loop()
    real = loop._boundary

    def die(*what):
        if loop.progress.update == update:
            raise KeyboardInterrupt
        real(*what)

    loop._boundary = die
    if update:
        with pytest.raises(KeyboardInterrupt):
            loop.run(None)
        loop.saver._writer.idle(timeout=10)
    broken.loop().run(None)
    assert final_bytes(broken.paths) == final_bytes(reference)
    assert rows_of(broken.paths) == rows_of(reference)
    assert rows_of(broken.paths, "validation") == rows_of(reference, "validation")


def test_a_target_ends_at_the_cycle_and_goes_on(rig, reference):
    line = rig()
    line.loop().run(1)
    assert [c.update for c in list_checkpoints(line.paths)] == [0, 2, 4]
    line.loop().run(1)
    assert len(rows_of(line.paths)) == 4
    line.loop().run(None)
    assert final_bytes(line.paths) == final_bytes(reference)


def test_validation_and_checkpoints_move_no_bit_of_training(rig, reference):
    quiet = rig(validation={"every_updates": 100, "rows_per_stratum": 2}, checkpoints={"every_updates": 100})
    quiet.loop().run(None)
    assert final_bytes(quiet.paths) == final_bytes(reference)


def test_stop_at_an_update_and_go_on(rig, reference):
    line = rig()
    line.paths.stop.write_text(json.dumps({"id": "x", "at_update": 5, "by": "test"}))
    with pytest.raises(Stopped) as stopped:
        line.loop().run(None)
    assert stopped.value.reason.exit_code == 10
    assert list_checkpoints(line.paths)[-1].update == 5
    line.paths.stop.unlink()
    line.loop().run(None)
    assert final_bytes(line.paths) == final_bytes(reference)


def test_stop_at_a_cycle_end(rig):
    line = rig()
    line.paths.stop.write_text(json.dumps({"id": "x", "at_cycle_end": 1, "by": "test"}))
    with pytest.raises(Stopped):
        line.loop().run(None)
    assert list_checkpoints(line.paths)[-1].update == 8


def test_without_waiting_missing_data_is_an_error(rig):
    line = rig()
    line.rows.published = {0}
    with pytest.raises(NoData, match="cycle 1 is not prepared"):
        line.loop(wait=False).run(None)
    assert list_checkpoints(line.paths)[-1].update == 4


def test_waiting_beats_and_goes_on_when_the_cycle_is_published(rig, reference):
    line = rig()
    line.rows.published = {0, 2}
    loop = line.loop()
    thread = threading.Thread(target=loop.run, args=(None,))
    thread.start()
    try:
        deadline = time.monotonic() + 60
        while not line.paths.checkpoint(4).exists() or (
            (beat := read_heartbeat(line.paths.heartbeat)) is None or beat.stage != "awaiting-data"
        ):
            assert time.monotonic() < deadline
            time.sleep(0.02)
    finally:
        line.rows.published = None
        thread.join()
    assert final_bytes(line.paths) == final_bytes(reference)
    waited = [row["seconds"].get("awaiting_data", 0) for row in live_rows(line.paths.metrics)]
    assert waited[4] > 0
    assert sum(waited) == waited[4]


def test_other_data_is_refused(rig):
    line = rig()
    line.loop().run(1)
    line.rows = type(line.rows)(seed=1)
    with pytest.raises(Refused, match="rows is 'memory-1', the checkpoint was trained on 'memory-0'"):
        line.loop()


def test_other_data_needs_its_own_leave_and_is_recorded(rig):
    line = rig(allow_changes=["data_identity"])
    line.loop().run(1)
    line.rows = type(line.rows)(seed=1)
    assert line.loop().progress.update == 4


def test_other_numerics_are_refused(rig, monkeypatch):
    line = rig()
    line.loop().run(1)
    monkeypatch.setattr("trainer_core.train.saving.NUMERICS_VERSION", 99)
    with pytest.raises(Refused, match="made with numerics version 2, this is 99"):
        line.loop()


def test_another_order_of_the_same_data_is_refused(rig):
    line = rig()
    line.paths.stop.write_text(json.dumps({"at_update": 2}))
    with pytest.raises(Stopped):
        line.loop().run(None)
    line.paths.stop.unlink()
    line.rows.seed = 7
    line.rows.identity = lambda: {"rows": "memory-0"}
    with pytest.raises(Refused, match="manifest_sha256"):
        line.loop()


def test_an_update_of_unequal_micro_batches_counts_every_target_once(rig, reference):
    one = rig(lengths=[{"length": 16, "rows": 4}])
    one.loop().run(1)
    whole = [row["train/loss"] for row in rows_of(one.paths)]
    assert whole == pytest.approx([row["train/loss"] for row in rows_of(reference)[:4]], abs=1e-5)


def test_non_finite_updates_are_skipped_and_then_stop_the_line(rig):
    line = rig(guards={"max_nonfinite": 2})
    loop = line.loop()
    loop.run(1)
    before = line.state.P.clone(), line.state.M.clone()
    line.state.P[0] = float("nan")
    poisoned = line.state.P.clone()
    with pytest.raises(NonFinite, match="2 updates in a row"):
        loop.run(None)
    assert line.state.P.isnan().equal(poisoned.isnan())
    assert line.state.M.equal(before[1])
    rows = rows_of(line.paths)
    assert [row["skipped"] for row in rows] == [False] * 4 + [True] * 2
    assert rows[-1]["train/grad_norm"] is None
    assert rows[-1]["lr"] != rows[-3]["lr"] or rows[-1]["tokens"] == 6 * 64
    state = read_state(list_checkpoints(line.paths)[-1].path)
    assert state["update"] == 4


def test_a_skipped_run_is_counted_across_a_resume(rig):
    line = rig(guards={"max_nonfinite": 3})
    loop = line.loop()
    loop.run(1)
    line.state.P[0] = float("nan")
    line.paths.stop.write_text(json.dumps({"at_update": 6}))
    with pytest.raises(Stopped):
        loop.run(None)
    line.paths.stop.unlink()
    with pytest.raises(NonFinite, match="3 updates in a row"):
        line.loop().run(None)
    assert [row["skipped"] for row in rows_of(line.paths)] == [False] * 4 + [True] * 3
