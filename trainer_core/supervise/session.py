"""One supervised run of a line: from the first start of a trainer to the final outcome.

`attempt` is one life of a trainer, with everything before it (lock, backoff, device); whoever drives it calls
it again while the verdict says so. The line's lock is held from the first attempt to `close`, so a second
start is refused during a backoff too; the device is given back between attempts.
"""

from __future__ import annotations

import threading
import time
import traceback
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

from trainer_core.errors import CRASHED, OUTCOMES, STUCK, DiskFull, Outcome, Refused, disk_full
from trainer_core.line.checkpoints import newest
from trainer_core.line.config import RunConfig, load_run
from trainer_core.line.events import record_event
from trainer_core.line.identity import ProcessIdentity
from trainer_core.line.lock import FileLock
from trainer_core.line.paths import LinePaths
from trainer_core.line.stop import clear_stop, read_stop, request_stop, want
from trainer_core.supervise import lease
from trainer_core.supervise.backoff import Policy
from trainer_core.supervise.outcome import Ending, Verdict, judge
from trainer_core.supervise.reading import (
    last_attempt,
    last_error,
    last_words,
    newest_update,
    stop_wanted_since,
)
from trainer_core.supervise.record import State, SupervisorRecord, read_record, write_record
from trainer_core.supervise.spawn import Command, Launch, note, start, trainer_command
from trainer_core.supervise.watch import watch
from trainer_core.telemetry.heartbeat import read_heartbeat


class Session:
    """Supervision of one run of one line; not shared between processes."""

    def __init__(
        self,
        line: Path,
        *,
        cycles: int | None,
        by: str,
        device: str = "cpu",
        policy: Policy | None = None,
        command: Command = trainer_command,
        say: Callable[[str], None] = lambda text: None,
        run: str | None = None,
        asked_at: float | None = None,
    ) -> None:
        """`run`: what the starter calls this run; `asked_at`: when it was asked for, now if not given."""
        self.paths = LinePaths(line)
        self.cycles = cycles
        self.by = by
        self.device = device
        self.command = command
        self.say = say
        """Called with each change of state, for a log or a page; must not raise or block."""
        self.over = threading.Event()
        """Set once no further trainer will be started by this session."""
        self.idle = threading.Event()
        """Set while no trainer of this session runs."""
        self.idle.set()
        self.verdict: Verdict | None = None
        """The verdict of the last attempt."""
        self._given_policy = policy
        self._policy = policy or Policy()
        self._run = run
        self._asked_at = time.time() if asked_at is None else asked_at
        self._lock: FileLock | None = None
        self._record = SupervisorRecord()
        self._delay = 0.0
        self._because: tuple[Outcome, str] | None = None
        self._noticed = ("", 0.0)

    def attempt(self) -> Verdict:
        """Start a trainer and see it to its end; never raises for what happens to the line."""
        try:
            verdict = self._attempt()
        except Refused as error:
            verdict = self._end(OUTCOMES[20], str(error))
        except DiskFull as error:
            verdict = self._end(OUTCOMES[32], str(error))
        except Exception as error:
            if isinstance(error, OSError) and disk_full(error):
                verdict = self._end(OUTCOMES[32], str(error))
            else:
                self.say(traceback.format_exc())
                verdict = self._judge(Ending(returncode=None, detail=repr(error)))
        self.verdict = verdict
        if not verdict.retry:
            self.close()
        return verdict

    def stop_because(self, outcome: Outcome, message: str) -> None:
        """Stop the line with a checkpoint for a reason of its driver, which becomes the session's outcome."""
        if self._because is None:
            self._because = (outcome, message)
            request_stop(self.paths, by=self.by)

    def stage(self) -> str | None:
        """What the running trainer last said it was doing; None while none runs or has said anything."""
        beat, trainer = read_heartbeat(self.paths.heartbeat), self._record.trainer
        if self.idle.is_set() or beat is None or trainer is None or beat.process != trainer:
            return None
        return beat.stage

    def owns_line(self) -> bool:
        """Whether this session has the line's lock."""
        return self._lock is not None

    def abandon(self) -> None:
        """End every wait of this session; a running trainer is left to its stop request."""
        self.over.set()

    def close(self) -> None:
        """Give the line back. Called when the session is over, whatever the reason."""
        self.over.set()
        if self._lock is not None and self.idle.is_set():
            self._give_back(self._lock)
            self._lock = None

    def _attempt(self) -> Verdict:
        run = load_run(self.paths)
        policy = self._policy = self._given_policy or Policy().guarded(run.guards)
        if self._lock is None and not self._take_line(run):
            return self._stopped_while_waiting()
        if not self._backoff():
            return self._stopped_while_waiting()
        device = lease.take_device(
            self.device,
            policy=policy,
            notice=lambda reason: self._waiting("awaiting-gpu", reason),
            give_up=self._stop_now,
        )
        if device is None:
            return self._stopped_while_waiting()
        try:
            ending = self._run_trainer(run, device)
        finally:
            self._give_back(device)
        return self._judge(ending)

    def _give_back(self, lock: FileLock) -> None:
        """Release a lock; if a trainer that could not be ended still has it, its holder stays on record."""
        trainer = self._record.trainer
        if trainer is not None and trainer.alive():
            lock.close()
        else:
            lock.release()

    def _judge(self, ending: Ending) -> Verdict:
        now = time.time()
        self._record, verdict = judge(
            self._record, ending, update=newest_update(self.paths), now=now, policy=self._policy
        )
        note(self.paths, verdict.message)
        if not verdict.retry:
            if self._because is not None and verdict.outcome.code == 10:
                return self._end(*self._because)
            if verdict.outcome is STUCK:
                return self._end(verdict.outcome, verdict.message)
            said = last_words(self.paths, ending.returncode, since=self._record.since)
            return self._end(verdict.outcome, said or verdict.message, recorded=said is not None)
        self._delay = verdict.delay_seconds
        self._event("backoff", f"{verdict.message}; next start in {self._delay:.0f} s")
        self._enter("backoff", verdict.message, next_start=now + self._delay)
        return verdict

    def _take_line(self, run: RunConfig) -> bool:
        """Take the line's lock; False when the line was stopped while an orphaned trainer was waited for."""
        self._lock = lease.take_line(
            self.paths,
            timeout_seconds=run.guards.heartbeat_timeout_seconds,
            policy=self._policy,
            notice=lambda reason: self.say(reason) if self._due(reason) else None,
            give_up=self.over.is_set,
        )
        if self._lock is None:
            return False
        record = read_record(self.paths)
        if record.outcome is not None:  # that run was over; only a run cut short hands its failures on
            record = replace(record, failures=0, failure_update=None, outcome=None)
        self._record = replace(record, supervisor=ProcessIdentity.current(), trainer=None, run=self._run)
        stop = read_stop(self.paths)
        if stop is not None and stop.time < self._asked_at:  # meant for a run that died before it could obey
            clear_stop(self.paths)
        if stop_wanted_since(self.paths, self._asked_at):
            return False  # the orphan obeyed the request, so only this is left of it
        want(self.paths, "running", self.by)
        self._enter("starting", f"started by {self.by}")
        return True

    def _backoff(self) -> bool:
        """Wait out the delay of the last verdict; False when a stop was asked for meanwhile."""
        end = time.monotonic() + self._delay
        while (left := end - time.monotonic()) > 0:
            if self._stop_now() or self.over.wait(min(left, self._policy.poll_seconds)):
                return False
        return not self._stop_now()

    def _run_trainer(self, run: RunConfig, device: FileLock) -> Ending:
        assert self._lock is not None
        attempt = max(self._record.launches, last_attempt(self.paths)) + 1
        self._record = replace(self._record, launches=attempt)
        launch = Launch(
            line=self.paths.root,
            cycles=self.cycles,
            attempt=attempt,
            lock_fd=self._lock.fd,
            lease_fd=device.fd,
        )
        self.idle.clear()
        try:
            try:
                child = start(launch, self.command)
            except OSError as error:
                note(self.paths, f"attempt {attempt} did not start: {error}")
                return Ending(returncode=None, detail=str(error))
            try:
                self._record = replace(self._record, trainer=ProcessIdentity.of(child.pid))
                self._event("launched", f"trainer process {child.pid}, attempt {attempt}", attempt=attempt)
                self._enter("running", f"trainer {child.pid}, attempt {attempt}")
                ending = watch(
                    child,
                    self.paths,
                    timeout_seconds=run.guards.heartbeat_timeout_seconds,
                    policy=self._policy,
                )
            finally:
                if child.poll() is None:
                    child.terminate()  # it checkpoints at its next update; nobody watches it any more
            if ending.hung:
                self._event("hung", ending.describe())
            elif ending.outcome is CRASHED:
                ending = replace(ending, detail=last_error(self.paths.run_log))
            return ending
        finally:
            self.idle.set()

    def _stop_now(self) -> bool:
        """Whether to stop without a trainer: abandoned, or a request without a bound is pending."""
        if self.over.is_set():
            return True
        stop = read_stop(self.paths)
        return stop is not None and stop.at_cycle_end is None and stop.at_update is None

    def _stopped_while_waiting(self) -> Verdict:
        if self._lock is not None:
            clear_stop(self.paths)
        if self._because is not None:
            return self._end(*self._because)
        checkpoint = newest(self.paths)
        where = f"checkpoint u{checkpoint.update}" if checkpoint else "no checkpoint yet"
        return self._end(OUTCOMES[10], f"stopped while no trainer was running; {where}")

    def _end(self, outcome: Outcome, message: str, *, recorded: bool = False) -> Verdict:
        """The final verdict, written down; `recorded`: the trainer has written the event itself."""
        if self._lock is not None:  # only the holder of the line writes into it
            self._record = self._record.ended(outcome, message)
            try:
                if not recorded:
                    self._event(outcome.status.replace("-", "_"), message)
                write_record(self.paths, self._record)
            except DiskFull as error:
                self.say(f"not recorded: {error}")
        self.say(f"{outcome.state_name}: {message}")
        return Verdict(outcome=outcome, retry=False, delay_seconds=0.0, message=message)

    def _waiting(self, state: State, reason: str) -> None:
        if self._record.state != state:
            self._event(state.replace("-", "_"), reason)
            self._enter(state, reason)
        elif self._due(reason):
            self.say(reason)

    def _due(self, reason: str) -> bool:
        """Whether a wait's reason should be said now: at first, and again after a while."""
        said, when = self._noticed
        if said == reason and time.monotonic() - when < self._policy.notice_seconds:
            return False
        self._noticed = (reason, time.monotonic())
        return True

    def _enter(self, state: State, reason: str, *, next_start: float | None = None) -> None:
        self._record = self._record.entering(state, reason, next_start=next_start)
        write_record(self.paths, self._record)
        self.say(f"{state}: {reason}")

    def _event(self, kind: str, message: str, **details: Any) -> None:
        update = newest_update(self.paths)
        row = record_event(self.paths.events, kind, message, update=update, **details)
        self._record = replace(self._record, last_event=row)
