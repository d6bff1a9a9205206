"""What endings mean and how failures add up, by values."""

from __future__ import annotations

import signal

import pytest

from trainer_core.supervise.backoff import Policy, count_failures
from trainer_core.supervise.outcome import Ending, judge
from trainer_core.supervise.record import SupervisorRecord

POLICY = Policy(backoff_seconds=10.0, gpu_poll_seconds=60.0)


def test_backoff_doubles_up_to_its_limit() -> None:
    assert [POLICY.delay(failures) for failures in range(1, 9)] == [10, 20, 40, 80, 160, 320, 600, 600]
    assert POLICY.delay(10_000) == 600


def test_failures_start_again_after_progress() -> None:
    assert count_failures(3, moved=False) == 4
    assert count_failures(3, moved=True) == 1


@pytest.mark.parametrize(
    ("code", "name"),
    [
        (0, "Finished"),
        (10, "Stopped"),
        (20, "Refused"),
        (32, "DiskFull"),
        (33, "DataUsedUp"),
        (40, "NonFinite"),
    ],
)
def test_codes_that_are_final(code: int, name: str) -> None:
    record, verdict = judge(SupervisorRecord(), Ending(returncode=code), update=5, now=1.0, policy=POLICY)
    assert (verdict.outcome.state_name, verdict.retry, record.failures) == (name, False, 0)
    assert record.progress_update == 5


def test_foreign_signal_and_busy_gpu_are_retried_without_counting() -> None:
    for code, delay in ((50, 10.0), (31, 60.0)):
        record = SupervisorRecord(failures=4, failure_update=5)
        record, verdict = judge(record, Ending(returncode=code), update=5, now=1.0, policy=POLICY)
        assert (verdict.retry, verdict.delay_seconds, record.failures) == (True, delay, 4)


@pytest.mark.parametrize("code", [-signal.SIGKILL, -signal.SIGSEGV, 1, 3, 139, None])
def test_everything_else_is_a_counted_crash(code: int | None) -> None:
    record, verdict = judge(SupervisorRecord(), Ending(returncode=code), update=0, now=1.0, policy=POLICY)
    assert (verdict.outcome.status, verdict.retry, verdict.delay_seconds) == ("crashed", True, 10.0)
    assert record.failures == 1


def test_a_hung_trainer_counts_whatever_code_it_left_with() -> None:
    for code in (0, 50, -signal.SIGKILL):
        ending = Ending(returncode=code, hung=True)
        record, verdict = judge(SupervisorRecord(), ending, update=0, now=1.0, policy=POLICY)
        assert (verdict.retry, record.failures) == (True, 1)


def test_stuck_after_five_failures_at_one_place_and_not_before() -> None:
    record, seen = SupervisorRecord(), []
    for _ in range(5):
        record, verdict = judge(record, Ending(returncode=-9), update=150, now=1.0, policy=POLICY)
        seen.append((record.failures, verdict.retry, verdict.delay_seconds))
    assert seen == [(1, True, 10), (2, True, 20), (3, True, 40), (4, True, 80), (5, False, 0)]
    assert verdict.outcome.state_name == "Stuck"
    assert "SIGKILL" in verdict.message and "update 150" in verdict.message


def test_progress_between_failures_keeps_a_line_alive() -> None:
    record = SupervisorRecord()
    for update in range(0, 200, 10):
        record, verdict = judge(record, Ending(returncode=-9), update=update, now=1.0, policy=POLICY)
        assert (record.failures, verdict.retry, verdict.delay_seconds) == (1, True, 10)


def test_replaying_up_to_the_old_place_is_no_progress() -> None:
    record = SupervisorRecord(failures=2, failure_update=150)
    record, _ = judge(record, Ending(returncode=-9), update=149, now=1.0, policy=POLICY)
    assert record.failures == 3


def test_a_process_that_survives_sigkill_ends_the_line_at_once() -> None:
    ending = Ending(returncode=None, hung=True, unkillable=True)
    _, verdict = judge(SupervisorRecord(), ending, update=0, now=1.0, policy=POLICY)
    assert (verdict.retry, verdict.outcome.state_name) == (False, "Stuck")
    assert "SIGKILL" in verdict.message


def test_time_of_progress_moves_only_with_the_line() -> None:
    record = SupervisorRecord(progress_update=7, progress_time=100.0)
    record, _ = judge(record, Ending(returncode=-9), update=7, now=200.0, policy=POLICY)
    assert record.progress_time == 100.0
    record, _ = judge(record, Ending(returncode=-9), update=8, now=300.0, policy=POLICY)
    assert (record.progress_update, record.progress_time) == (8, 300.0)
