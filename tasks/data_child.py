"""Process entry for one step of preparing a cycle: `python -m tasks.data_child STEP DATA_LINE CYCLE`.

A process of its own because tokenizing holds the interpreter's lock, which the flow's process needs for
its heartbeats and for signals. What the step prints goes to standard error; standard output carries JSON
lines: one for each file that is begun or through, and at last the result, or the error whose exit code this
process ends with. A full disk is waited for.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from trainer_core.data.prepare.file_steps import FileStep, Report
from trainer_core.errors import NstrainError
from trainer_core.host import load_host
from trainer_core.line.parent import end_with_parent

STEPS = ("download", "tokenize")


def run_step(step: str, work: Path, cycle: int, report: Report) -> Any:
    """One call of the preparer."""
    from trainer_core.data.prepare.disk_wait import with_room
    from trainer_core.data.prepare.preparer import CyclePreparer

    assert step in STEPS
    preparer = CyclePreparer(work, report=report, say=_say)
    return with_room(preparer, cycle, lambda: getattr(preparer, step)(cycle), say=_say)


def _say(message: str) -> None:
    print(message, file=sys.stderr, flush=True)


def main(argv: Sequence[str] | None = None) -> int:
    """Do the step; returns the exit code."""
    step, work, cycle = sys.argv[1:] if argv is None else argv
    answer, sys.stdout = sys.stdout, sys.stderr
    end_with_parent()

    def report(file_step: FileStep) -> None:
        print(json.dumps({"file": asdict(file_step)}), file=answer, flush=True)

    try:
        load_host()
        result, code = {"result": run_step(step, Path(work), int(cycle), report)}, 0
    except NstrainError as error:
        result, code = {"error": str(error)}, error.exit_code
    print(json.dumps(result), file=answer, flush=True)
    return code


if __name__ == "__main__":
    sys.exit(main())
