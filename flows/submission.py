"""Which flow run this process is, and when it was asked for: a stop that came later also holds for it."""

from __future__ import annotations

import time
from dataclasses import dataclass

from prefect.client.schemas.objects import FlowRun
from prefect.context import FlowRunContext

from tasks.views import new_client

_RETRY = "AwaitingRetry"
"""Name of the state in which a person's retry puts a run that has ended."""


@dataclass(frozen=True, kw_only=True)
class Submission:
    """The request behind a run."""

    id: str | None
    """Id of the flow run; None outside of one."""
    time: float
    """When it was asked for or, if that is later, for when; seconds since the epoch."""


def this_submission() -> Submission:
    """The submission of the current flow run. Server and flows share a host, so their clocks are one."""
    context = FlowRunContext.get()
    run = context.flow_run if context is not None else None
    if run is None:
        return Submission(id=None, time=time.time())
    return Submission(id=str(run.id), time=min(time.time(), _asked(run)))


def _asked(run: FlowRun) -> float:
    expected = run.expected_start_time or run.created
    times = [expected.timestamp() if expected is not None else time.time()]
    if run.run_count > 1:
        with new_client() as client:
            states = client.read_flow_run_states(run.id)
        planned = [state.state_details.scheduled_time for state in states if state.name == _RETRY]
        times += [moment.timestamp() for moment in planned if moment is not None]
    return max(times)
