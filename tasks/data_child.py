"""Process entry for one step of preparing a cycle: `python -m tasks.data_child STEP DATA_LINE CYCLE`.

A process of its own because tokenizing holds the interpreter's lock, which the flow's process needs for
its heartbeats and for signals. What the step prints goes to standard error; standard output carries one
JSON line: the result, or the error whose exit code this process ends with.
"""

from __future__ import annotations

import json
import os
import sys
import threading
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from trainer_core.errors import NstrainError
from trainer_core.host import load_host

STEPS = ("download", "tokenize")
_PARENT_SECONDS = 1.0


def run_step(step: str, work: Path, cycle: int) -> Any:
    """One call of the preparer."""
    from trainer_core.data.prepare import CyclePreparer

    assert step in STEPS
    return getattr(CyclePreparer(work), step)(cycle)


def end_with_parent() -> None:
    """Leave when the parent has: every step is safe to be cut off, and nobody waits for it any more."""
    parent = os.getppid()

    def look() -> None:
        while os.getppid() == parent:
            time.sleep(_PARENT_SECONDS)
        os._exit(50)

    threading.Thread(target=look, daemon=True).start()


def main(argv: Sequence[str] | None = None) -> int:
    """Do the step; returns the exit code."""
    step, work, cycle = sys.argv[1:] if argv is None else argv
    answer, sys.stdout = sys.stdout, sys.stderr
    end_with_parent()
    try:
        load_host()
        result, code = {"result": run_step(step, Path(work), int(cycle))}, 0
    except NstrainError as error:
        result, code = {"error": str(error)}, error.exit_code
    print(json.dumps(result), file=answer, flush=True)
    return code


if __name__ == "__main__":
    sys.exit(main())
