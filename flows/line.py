"""The composition that runs a line: check, supervise, and per cycle download, tokenize, train, delete.

The line's files decide: `next_actions` says what may be done, this driver submits each thing once and
waits. The flow's main thread does the waiting, because a cancellation arrives there as an exception; it
becomes a stop request, so a cancelled line has its checkpoint. No server is needed between the start and
the end of a run.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from prefect import task
from prefect.cache_policies import NO_CACHE
from prefect.client.schemas.objects import StateType
from prefect.exceptions import TerminationSignal
from prefect.futures import PrefectFuture
from prefect.logging import get_run_logger
from prefect.states import Failed, State

from flows.names import line_root, tag_line
from flows.submission import this_submission
from tasks import cycles as cycle_tasks
from tasks import data as data_tasks
from tasks.artifacts import Pages
from tasks.gpu_worker import gpu_worker, state_of
from tasks.line_run import CachedFacts, LineRun
from tasks.notify import Courier
from tasks.views import Views, await_server
from trainer_core.errors import CRASHED, OUTCOMES, STUCK, NstrainError, Outcome, Refused
from trainer_core.host import load_host
from trainer_core.line.config import load_run
from trainer_core.line.cycles import Action, Delete, Download, LineFacts, Tokenize, Train, next_actions
from trainer_core.line.paths import DataPaths, LinePaths
from trainer_core.line.stop import request_stop
from trainer_core.supervise.lease import refuse_if_run
from trainer_core.supervise.reading import stop_wanted_since
from trainer_core.supervise.session import Session
from trainer_core.supervise.spawn import Command, trainer_command

STOPPED_SINCE = "a stop was asked for after this run was submitted; nothing was started"
"""What a run answers that waited for its start while the line was stopped."""

CANCEL_SECONDS = 20.0
"""How long a cancelled flow waits for its trainer's checkpoint; Prefect kills the flow after 30 s."""

SERVER_SECONDS = 24 * 3600.0
"""How long a finished run waits for a dead server, so that its last state is not lost."""

_POLL_SECONDS = 0.5
_AGAIN_SECONDS = 60.0
_LAST_VIEWS_SECONDS = 10.0
_CANCELLED_VIEWS_SECONDS = 2.0


def run_line(
    line: str,
    cycles: int | None,
    *,
    by: str,
    command: Command = trainer_command,
    step_command: data_tasks.StepCommand = data_tasks.step_command,
) -> State[Any]:
    """Run a line inside a flow and return the flow's final state."""
    from trainer_core.ops.facts import NOTHING_TO_DO, read_facts  # loads the data packages: not at import

    host = load_host()
    root = line_root(line)
    checked = check_line(root, return_state=True)
    if checked.is_failed():
        return Failed(name=checked.name, message=checked.message)
    if not next_actions(read_facts(root, cycles)):
        return State(type=StateType.COMPLETED, name=OUTCOMES[0].state_name, message=NOTHING_TO_DO)
    submission = this_submission()
    if stop_wanted_since(LinePaths(root), submission.time):
        return State(type=StateType.COMPLETED, name=OUTCOMES[10].state_name, message=STOPPED_SINCE)
    paths, views = LinePaths(root), Views()
    tag_line(views, paths.name)
    data = Path(load_run(paths).data)
    couriers = (Courier(paths, host.notify), Courier(DataPaths(data), host.notify))
    run = LineRun(
        paths=paths,
        data=data,
        cycles=cycles,
        session=Session(
            root, cycles=cycles, by=by, command=command, run=submission.id, asked_at=submission.time
        ),
        pages=Pages(paths, views),
        step_command=step_command,
        facts=CachedFacts(paths, DataPaths(data), cycles),
    )
    patience = _CANCELLED_VIEWS_SECONDS
    try:
        state = Driver(run).drive()
        await_server(SERVER_SECONDS)
        patience = _LAST_VIEWS_SECONDS
        return state
    finally:
        _close(views, couriers, patience)


def _close(views: Views, couriers: Sequence[Courier], patience: float) -> None:
    """Show and deliver what is left, at most this long, and say what was lost."""
    for courier in couriers:
        courier.hurry(patience)
    for courier in couriers:
        courier.close(patience)
    views.close(patience)
    failures = sum(courier.failures for courier in couriers)
    if views.dropped or failures:
        errors = [views.last_error, *(courier.last_error for courier in couriers)]
        why = next(filter(None, errors), "newer ones took their place")
        lost = f"{views.dropped} views not shown, {failures} deliveries repeated: {why}"
        get_run_logger().warning(lost)


@task(name="check-line", task_run_name="check-line", cache_policy=NO_CACHE, persist_result=False)
def check_line(root: Path) -> Any:
    """The start checks; Failed/Refused with every problem, or when somebody else runs the line."""
    from trainer_core.ops.start import start_line

    try:
        refuse_if_run(LinePaths(root))
        found = start_line(root)
    except Refused as error:
        return Failed(name=OUTCOMES[error.exit_code].state_name, message=str(error))
    for sentence in found:
        get_run_logger().info(sentence)
    return found


class Driver:
    """Submits the tasks of one run and waits for them on the main thread."""

    def __init__(self, run: LineRun) -> None:
        self._run = run
        self._futures: dict[Action, PrefectFuture[Any]] = {}
        self._when: dict[Action, float] = {}
        self._first: int | None = None
        self._current = 0
        self._failure: tuple[Outcome, str] | None = None
        self._said = ""

    def drive(self) -> State[Any]:
        """From the first start of a trainer to the run's final state."""
        worker = gpu_worker.submit(self._run)
        try:
            while state_when_done(worker) is None:
                self._advance()
                worker.wait(_POLL_SECONDS)
            self._finish()
        except BaseException as error:
            cancelled = isinstance(error, TerminationSignal | KeyboardInterrupt)
            if self._run.session.owns_line():  # or else the stop would be somebody else's
                request_stop(self._run.paths, by="cancel" if cancelled else "an error of the flow")
            self._run.leaving.set()
            self._run.session.idle.wait(CANCEL_SECONDS)
            self._run.session.abandon()
            raise
        return self._final(worker)

    def _advance(self) -> None:
        """Submit everything that may be done and is not under way; stop the line when its data ends."""
        for action in self._actions():
            if not (isinstance(action, Download | Tokenize) and self._deleting()):
                self._submit_once(action)
        for action, future in self._futures.items():
            state = state_when_done(future)
            if self._failure is None and isinstance(action, Download | Tokenize) and state is not None:
                self._failure = _failure_of(state)
        if self._failure is not None:
            self._said_once(f"no further cycle: {self._failure[1]}")
            if self._run.session.stage() == "awaiting-data":
                self._run.session.stop_because(*self._failure)

    def _deleting(self) -> bool:
        """Whether a trained cycle is still leaving: the disk bound has no room for another one beside it."""
        deletions = (future for action, future in self._futures.items() if isinstance(action, Delete))
        return any(state_when_done(future) is None for future in deletions)

    def _actions(self, *, fresh: bool = False) -> list[Action]:
        """What may be done now, and the train tasks of cycles that were trained between two looks."""
        try:
            facts: LineFacts = self._run.facts(fresh=fresh)
        except (NstrainError, OSError) as error:  # the trainer goes on; its next start will say the same
            self._said_once(f"cannot see where the cycles stand: {error}")
            return []
        self._go_back_to(facts.current)
        self._first = facts.current if self._first is None else min(self._first, facts.current)
        return [*(Train(cycle) for cycle in range(self._first, facts.current)), *next_actions(facts)]

    def _go_back_to(self, current: int) -> None:
        """A damaged checkpoint was set aside: what this run did for cycles to be trained again is undone."""
        if current < self._current:
            for action in [a for a in self._futures if a.cycle >= current]:
                if state_when_done(self._futures[action]) is not None:
                    del self._futures[action]
        self._current = current

    def _said_once(self, text: str) -> None:
        if text != self._said:
            self._said = text
            get_run_logger().error(text)

    def _submit_once(self, action: Action) -> None:
        known = self._futures.get(action)
        if known is not None:
            # Done and needed again: somebody removed what it made. Train tasks only look, so once is enough.
            state = state_when_done(known)
            again = state is not None and state.is_completed() and not isinstance(action, Train)
            if not again or time.monotonic() - self._when[action] < _AGAIN_SECONDS:
                return
        future = self._submit(action)
        if future is not None:
            self._futures[action] = future
            self._when[action] = time.monotonic()

    def _submit(self, action: Action) -> PrefectFuture[Any] | None:
        run, after = self._run, self._completed
        step: dict[str, Any] = {"work": run.data, "leaving": run.leaving, "command": run.step_command}
        match action:
            case Download(cycle):
                return data_tasks.download.submit(cycle=cycle, **step)
            case Tokenize(cycle):
                return data_tasks.tokenize.submit(cycle=cycle, **step, wait_for=after(Download(cycle)))
            case Train(cycle):
                edges = after(Tokenize(cycle), Train(cycle - 1))
                return cycle_tasks.train.submit(run, cycle, wait_for=edges)
            case Delete(cycle):
                return data_tasks.delete.submit(run.data, cycle, wait_for=after(Train(cycle)))
            case _:
                return None

    def _completed(self, *actions: Action) -> list[PrefectFuture[Any]]:
        """Futures of these actions that are done in this run: edges of the graph that cost no wait."""
        futures = [self._futures[action] for action in actions if action in self._futures]
        states = [(future, state_when_done(future)) for future in futures]
        return [future for future, state in states if state is not None and state.is_completed()]

    def _finish(self) -> None:
        """After the trainer's end: end the tasks that wait for one, delete what is trained."""
        self._run.leaving.set()
        self._wait_for_all()
        for action in self._actions(fresh=True):
            if isinstance(action, Train | Delete) and action not in self._futures:
                if isinstance(action, Train) and action.cycle >= self._run.facts().current:
                    continue
                self._submit_once(action)
                self._wait_for_all()

    def _wait_for_all(self) -> None:
        for future in self._futures.values():
            while state_when_done(future) is None:
                future.wait(_POLL_SECONDS)

    def _final(self, worker: PrefectFuture[Any]) -> State[Any]:
        verdict = self._run.session.verdict
        if verdict is not None and not verdict.retry:
            return state_of(verdict)
        state = state_when_done(worker)
        return Failed(name=CRASHED.state_name, message=state.message if state else None)


def state_when_done(future: PrefectFuture[Any]) -> State[Any] | None:
    """The final state of a task run, None while it runs. `future.state` would ask the server."""
    inner = future.wrapped_future
    if not inner.done():
        return None
    if inner.cancelled() or inner.exception() is not None:
        return Failed(message=f"the task did not end by itself: {inner}")
    state: State[Any] = inner.result()
    return state


def _failure_of(state: State[Any]) -> tuple[Outcome, str] | None:
    """What a data task's final state means for the line; None when it is no failure."""
    if not state.is_failed():
        return None
    named = [outcome for outcome in OUTCOMES.values() if outcome.state_name == state.name]
    return (named[0] if named else STUCK), state.message or "preparing the data failed"
