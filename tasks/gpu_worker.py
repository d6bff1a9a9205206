"""The long-lived task of a line's run: it has the device, starts the trainer, and is the restart policy.

Prefect's retries drive the attempts with a constant short delay; how long to wait really, what counts, and
when to give up is decided by `trainer_core.supervise`, whose counts survive this process.
"""

from __future__ import annotations

from typing import Any

from prefect import task
from prefect.cache_policies import NO_CACHE
from prefect.client.schemas.objects import StateType, TaskRun
from prefect.logging import get_run_logger
from prefect.states import Failed, State
from prefect.tasks import Task

from tasks.line_run import LineRun
from trainer_core.supervise.outcome import Verdict

RETRIES = 1000
"""Starts of a trainer in one run of a flow; failures without progress end it long before."""


class TrainerEnded(Exception):
    """The trainer ended and is to be started again."""

    def __init__(self, verdict: Verdict) -> None:
        super().__init__(verdict.message)
        self.verdict = verdict


def worth_retrying(task: Task[Any, Any], run: TaskRun, state: State[Any]) -> bool:
    """Only what the verdict says is started again; a final outcome is returned as a state and is not."""
    return isinstance(state.data, TrainerEnded)


def state_of(verdict: Verdict) -> State[Any]:
    """The Prefect state of a final verdict; never Crashed, because nothing final is relaunched by itself."""
    outcome = verdict.outcome
    if outcome.state_type == "COMPLETED":
        return State(type=StateType.COMPLETED, name=outcome.state_name, message=verdict.message)
    return Failed(name=outcome.state_name, message=verdict.message)


@task(
    name="gpu-worker",
    task_run_name="gpu-worker",
    retries=RETRIES,
    retry_delay_seconds=1,
    retry_condition_fn=worth_retrying,
    cache_policy=NO_CACHE,
    persist_result=False,
)
def gpu_worker(run: LineRun) -> State[Any]:
    """Run one trainer to its end. Returns the final state, or raises TrainerEnded to be started again."""
    logger = get_run_logger()

    def say(text: str) -> None:
        logger.info(text)
        run.pages.message(text)

    run.session.say = say
    verdict = run.session.attempt()
    if verdict.retry:
        raise TrainerEnded(verdict)
    return state_of(verdict)
