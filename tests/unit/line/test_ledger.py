"""The live rows are those an uninterrupted line would have."""

from trainer_core.line.events import acknowledge, new_ulid, pending_events, record_event
from trainer_core.line.ledger import Ledger, live_rows
from trainer_core.line.paths import LinePaths


def test_replayed_updates_replace_what_was_lost(tmp_path):
    path = tmp_path / "metrics.jsonl"
    first = Ledger(path, attempt=1)
    for update in range(1, 8):
        first.append("update", update, {"loss": update})
    first.append("validation", 4, {"val": 4.0})
    second = Ledger(path, attempt=2)  # resumes from a checkpoint at update 4
    for update in range(5, 7):
        second.append("update", update, {"loss": update * 10})
    assert [(r["update"], r["loss"]) for r in live_rows(path)] == [
        (1, 1),
        (2, 2),
        (3, 3),
        (4, 4),
        (5, 50),
        (6, 60),
    ]
    assert [r["update"] for r in live_rows(path, "validation")] == [4]


def test_lost_validations_are_dropped_too(tmp_path):
    path = tmp_path / "metrics.jsonl"
    first = Ledger(path, attempt=1)
    first.append("update", 5, {})
    first.append("validation", 5, {"val": 1.0})
    second = Ledger(path, attempt=2)
    second.append("update", 5, {})
    assert live_rows(path, "validation") == []


def test_events_are_pending_until_acknowledged(tmp_path):
    paths = LinePaths(tmp_path)
    first = record_event(paths.events, "started", "begins")
    second = record_event(paths.events, "stopped", "ends", update=3, tokens=30, by="me")
    assert pending_events(paths) == [first, second]
    acknowledge(paths, [first["id"]])
    assert pending_events(paths) == [second]
    assert second["by"] == "me"


def test_ulids_sort_by_time():
    one, two = new_ulid(), new_ulid()
    assert len(one) == 26
    assert one[:8] <= two[:8]
    assert one != two
