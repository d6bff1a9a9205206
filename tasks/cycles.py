"""The task of training a cycle, as the UI shows it: it waits on the line's files and relays progress.

It does not train: the trainer does, and may be restarted under a waiting task any number of times. The
task ends when the cycle's last checkpoint is there, or when the run leaves.
"""

from __future__ import annotations

import time
from typing import Any

from prefect import task
from prefect.cache_policies import NO_CACHE
from prefect.states import Cancelled, Completed, State

from tasks.line_run import LineRun
from trainer_core.errors import NstrainError, Refused
from trainer_core.line.cycles import LineFacts, token_span
from trainer_core.line.files import read_json
from trainer_core.line.paths import DataPaths
from trainer_core.supervise.reading import tail_rows, trained_tokens

_POLL_SECONDS = 0.5
_PROGRESS_SECONDS = 2.0
LEAST_PERCENT = 0.1
MOST_PERCENT = 99.9


@task(name="train", task_run_name="train-c{cycle}", cache_policy=NO_CACHE, persist_result=False)
def train(run: LineRun, cycle: int) -> State[Any]:
    """Wait until the cycle is trained; Completed then, Cancelled when the run ended before."""
    last_shown, shown_validation = float("-inf"), -1
    run.pages.progress(cycle, LEAST_PERCENT)
    while not _trained(run, cycle):
        if run.leaving.wait(_POLL_SECONDS):
            if _trained(run, cycle, fresh=True):
                break
            return Cancelled(message=f"the run ended at {percent(run, cycle):.1f} % of cycle {cycle}")
        if time.monotonic() - last_shown >= _PROGRESS_SECONDS:
            last_shown = time.monotonic()
            run.pages.progress(cycle, percent(run, cycle))
            newest = newest_validation(run)
            if newest > shown_validation >= 0:
                run.pages.losses()
            shown_validation = newest
    run.pages.progress(cycle, 100.0)
    run.pages.cycles(cycle)
    return Completed(message=f"cycle {cycle} is trained")


def is_trained(facts: LineFacts, cycle: int) -> bool:
    """Whether a cycle is trained to its end or to the end of the schedule, and checkpointed."""
    return facts.current > cycle or facts.finished


def _trained(run: LineRun, cycle: int, *, fresh: bool = False) -> bool:
    try:
        return is_trained(run.facts(fresh=fresh), cycle)
    except (NstrainError, OSError):
        return False  # a file is being changed or is broken; the trainer and the next start will say so


def percent(run: LineRun, cycle: int) -> float:
    """How much of the cycle is trained, always above 0 and below 100 while it trains."""
    try:
        start, end = token_span(read_json(DataPaths(run.data).manifest(cycle))["parts"])
    except (Refused, KeyError, OSError):
        return LEAST_PERCENT
    share = (trained_tokens(run.paths) - start) / max(1, end - start)
    return min(MOST_PERCENT, max(LEAST_PERCENT, 100.0 * share))


def newest_validation(run: LineRun) -> int:
    """Update of the newest validation near the end of the ledger; 0 when there is none."""
    for row in tail_rows(run.paths.metrics):
        if row.get("kind") == "validation":
            return int(row["update"])
    return 0
