"""Process entry of a tokenizer: `python -m trainer_core.data.prepare.worker DATA_LINE PARENT_PID SLOTS`.

Reads `[source, path]` lines, tokenizes one file after the other under a slot of the host, and answers each
with JSON lines: `{"started": true}` once it has a slot, then `{"done": true}` or `{"code", "problems"}` of an
error meant for people. Any other error ends it, as does the end of its parent. It holds the data line's lock
through a descriptor it inherits, so nobody else works on the line before it has ended. What it prints goes
to standard error.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any, TextIO

from trainer_core.data.prepare.slots import Slots
from trainer_core.data.sources import load_data_line
from trainer_core.data.tokens.open_files import OpenFiles
from trainer_core.errors import NstrainError
from trainer_core.line.parent import end_with_parent


def main(argv: Sequence[str] | None = None) -> int:
    """Work until standard input ends."""
    work, parent, slots = sys.argv[1:] if argv is None else argv
    answers, sys.stdout = sys.stdout, sys.stderr
    end_with_parent(int(parent))
    root = Path(work)
    files, limit = OpenFiles(root, load_data_line(root)), Slots("tokenize", int(slots))
    for line in sys.stdin:
        source, path = json.loads(line)
        with limit.hold():
            _say(answers, {"started": True})
            try:
                files.tokenize(source, path)
                answer: dict[str, Any] = {"done": True}
            except NstrainError as error:
                answer = {"code": error.exit_code, "problems": list(getattr(error, "problems", [str(error)]))}
        _say(answers, answer)
    return 0


def _say(out: TextIO, answer: dict[str, Any]) -> None:
    print(json.dumps(answer), file=out, flush=True)


if __name__ == "__main__":
    sys.exit(main())
