"""A Prefect task run for every source file that is downloaded or tokenized, while it is.

A view of what the step's process reports: nothing waits for it, and a server that does not answer delays only
what is shown. A run costs the flow's process some milliseconds, so a step shows a bounded number of files, at
most so many at once; the others are counted. Failures are shown in any case.
"""

from __future__ import annotations

import contextvars
from threading import Event
from typing import Any, Literal

from prefect import task
from prefect.cache_policies import NO_CACHE
from prefect.states import Completed, Failed, State
from prefect.tasks import Task
from prefect.transactions import Transaction

from trainer_core.data.prepare.file_steps import FileStep

MOST_SHOWN = 400
"""Files of a step that are shown; those of a real cycle are far fewer."""

MOST_AT_ONCE = 32
"""Runs that have not ended: each is a thread."""


class Showing:
    """A file in work, shared with its task run."""

    def __init__(self) -> None:
        self.ended = Event()
        self.failure: str | None = None
        """Why it failed; None when it did not."""


def _file_task(step: Literal["download", "tokenize"]) -> Task[..., Any]:
    @task(
        name=f"{step}-file",
        task_run_name=step + "-{source}/{path}",
        cache_policy=NO_CACHE,
        persist_result=False,
    )
    def show(source: str, path: str, showing: Showing) -> State[Any]:
        """Wait for the file's end; the work is done by the step's process."""
        showing.ended.wait()
        if showing.failure is not None:
            return Failed(message=showing.failure)
        return Completed(message=f"{source}/{path}")

    return show


_TASKS = {"download": _file_task("download"), "tokenize": _file_task("tokenize")}


class FileTasks:
    """The task runs of one step's files; lives as long as the step's process."""

    def __init__(self) -> None:
        self.hidden = 0
        """Files that were not shown, because there were too many."""
        self._shown = 0
        self._open: dict[tuple[str, str, str], Showing] = {}

    def __call__(self, step: FileStep) -> None:
        """Show what has happened to a file."""
        key = (step.step, step.source, step.path)
        if step.state == "started":
            self._begin(key)
        elif key in self._open or (step.state == "failed" and self._begin(key, anyway=True)):
            self._end(key, step.message if step.state == "failed" else None)

    def close(self, why: str) -> None:
        """The step has ended: what is still shown as running was cut off."""
        for key in list(self._open):
            self._end(key, why)

    def _begin(self, key: tuple[str, str, str], *, anyway: bool = False) -> bool:
        if key in self._open:  # begun again, because a worker died over it
            return True
        if not anyway and (self._shown >= MOST_SHOWN or len(self._open) >= MOST_AT_ONCE):
            self.hidden += 1
            return False
        step, source, path = key
        self._shown += 1
        self._open[key] = showing = Showing()
        # Within the step's transaction, a step that fails would roll its finished files back.
        context = contextvars.copy_context()
        context.run(Transaction.__var__.set, None)
        context.run(_TASKS[step].submit, source, path, showing)
        return True

    def _end(self, key: tuple[str, str, str], failure: str | None) -> None:
        showing = self._open.pop(key)
        showing.failure = failure
        showing.ended.set()
