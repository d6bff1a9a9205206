"""What the end of a trainer process means: final, or try again, and when. Pure functions of values.

The table of exit codes is `trainer_core.errors`; here are only the two things a code does not say: that a
trainer killed for its silence counts as a crash whatever it returned, and how failures add up.
"""

from __future__ import annotations

import signal
from dataclasses import dataclass, replace

from trainer_core.errors import CRASHED, STUCK, Outcome, outcome_of
from trainer_core.supervise.backoff import Policy, count_failures
from trainer_core.supervise.record import SupervisorRecord

AWAITING_GPU_CODE = 31


@dataclass(frozen=True, kw_only=True)
class Ending:
    """How one trainer process ended."""

    returncode: int | None
    """Its return code, negative for a signal; None when it never started or survived SIGKILL."""
    hung: bool = False
    """Whether it was killed because its heartbeat stopped."""
    unkillable: bool = False
    """Whether it was still there long after SIGKILL (a device that does not answer)."""
    detail: str = ""
    """What is known beyond the code."""

    @property
    def outcome(self) -> Outcome:
        """The row of the table; a silent trainer is a crash even if it left with a polite code."""
        if self.returncode is None or self.hung:
            return CRASHED
        return outcome_of(self.returncode)

    def describe(self) -> str:
        """One line for people."""
        if self.unkillable:
            text = "the trainer does not go away after SIGKILL"
        elif self.returncode is None:
            text = "no trainer ran to an end"
        elif self.returncode < 0:
            text = f"the trainer was killed by {_signal_name(-self.returncode)}"
        else:
            text = f"the trainer ended with exit code {self.returncode}"
        if self.hung:
            text += " after its heartbeat had stopped"
        return f"{text} ({self.detail})" if self.detail else text


@dataclass(frozen=True, kw_only=True)
class Verdict:
    """What to do after an ending."""

    outcome: Outcome
    """What it means; STUCK when the failures are too many."""
    retry: bool
    """Whether the trainer is started again."""
    delay_seconds: float
    """How long to wait before that."""
    message: str
    """Why, in one line."""


def judge(
    record: SupervisorRecord, ending: Ending, *, update: int, now: float, policy: Policy
) -> tuple[SupervisorRecord, Verdict]:
    """The record after this ending and what to do; `update` is the newest update the line has reached."""
    outcome = ending.outcome
    if update != record.progress_update:
        record = replace(record, progress_update=update, progress_time=now)
    if not outcome.retried:
        final = Verdict(outcome=outcome, retry=False, delay_seconds=0.0, message=ending.describe())
        return record, final
    if not outcome.counted:
        delay = policy.gpu_poll_seconds if outcome.code == AWAITING_GPU_CODE else policy.backoff_seconds
        return record, Verdict(outcome=outcome, retry=True, delay_seconds=delay, message=ending.describe())
    moved = record.failure_update is None or update > record.failure_update
    failures = count_failures(record.failures, moved=moved)
    record = replace(record, failures=failures, failure_update=update)
    if ending.unkillable or failures >= policy.max_failures:
        message = f"{ending.describe()}; failure {failures} without progress beyond update {update}"
        return record, Verdict(outcome=STUCK, retry=False, delay_seconds=0.0, message=message)
    delay = policy.delay(failures)
    message = f"{ending.describe()}; failure {failures} of {policy.max_failures} without progress"
    return record, Verdict(outcome=outcome, retry=True, delay_seconds=delay, message=message)


def _signal_name(number: int) -> str:
    try:
        return signal.Signals(number).name
    except ValueError:
        return f"signal {number}"
