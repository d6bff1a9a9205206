"""What a start does before anything is planned or trained: every check, then what run.json has grown by.

Called by whoever holds the line, so that a run.json edited beside a running trainer tells the data line
nothing before that trainer has ended. A second call changes nothing.
"""

from __future__ import annotations

from pathlib import Path

from trainer_core.data.heldout.validation import pin_missing_rows
from trainer_core.data.plan.consumer import read_consumer, register_consumer
from trainer_core.line.config import load_run
from trainer_core.line.events import record_event
from trainer_core.line.paths import LinePaths
from trainer_core.ops.check import check_line


def start_line(line: Path) -> list[str]:
    """The sentences of `check_line`. Raises Refused with every problem; then nothing was changed.

    When the schedule or the batch has grown, validation rows of new lengths are cut first, then the data line
    is told: its next cycles are planned by it.
    """
    found = check_line(line)
    paths = LinePaths(line)
    config = load_run(paths)
    data = Path(config.data)
    lengths = [shape.length for shape in config.lengths]
    pin_missing_rows(data, lengths, config.validation.rows_per_stratum)
    before = read_consumer(data)
    after = register_consumer(data, line=before.line, **config.consumer_schedules())
    if after != before:
        record_event(paths.events, "schedule_grown", f"{data} plans by the schedule of {paths.run_json} now")
    return found
