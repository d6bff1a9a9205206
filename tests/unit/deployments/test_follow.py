"""From a run's final state to an exit code, and a ledger to a line of progress."""

from __future__ import annotations

from pathlib import Path

import pytest

from deployments.follow import exit_code, progress_line, running_server, submit
from deployments.home import Home, ServerRecord, write_record
from trainer_core.errors import OUTCOMES, Refused


@pytest.mark.parametrize("code", sorted(OUTCOMES))
def test_states_of_the_table_come_back_as_their_codes(code: int) -> None:
    outcome = OUTCOMES[code]
    assert exit_code({"type": outcome.state_type, "name": outcome.state_name}) == code


@pytest.mark.parametrize(
    ("kind", "name", "code"),
    [
        ("COMPLETED", "Completed", 0),
        ("CANCELLED", "Cancelled", 10),
        ("CRASHED", "Crashed", 1),
        ("FAILED", "Stuck", 1),
        ("FAILED", "Failed", 1),
    ],
)
def test_other_states(kind: str, name: str, code: int) -> None:
    assert exit_code({"type": kind, "name": name}) == code


def test_progress_is_of_the_newest_updates() -> None:
    rows = [
        {
            "update": u,
            "tokens": 100 * u,
            "train/loss": 5.0 - u / 100,
            "seconds": {"train": 2.0 if u > 5 else 60.0},
        }
        for u in range(1, 41)
    ]
    assert progress_line(rows) == "update 40: 4,000 tokens, loss 4.6000, 50 tokens/s"
    assert progress_line(rows[:1]) == "update 1: 100 tokens, loss 4.9900, 2 tokens/s"


def test_without_a_running_server_the_way_out_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    with pytest.raises(Refused, match="nstrain up"):
        running_server()
    write_record(Home.default(), ServerRecord(port=1))
    with pytest.raises(Refused, match=r"127\.0\.0\.1:1/"):
        submit(tmp_path, None)
