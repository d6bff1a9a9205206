"""What a line's files say that a supervisor needs: how far it is, and why its trainer ended. Writes nothing.

Reads only the ends of files that grow for weeks.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from trainer_core.line.checkpoints import newest
from trainer_core.line.files import parse_row, read_json
from trainer_core.line.paths import LinePaths

_TAIL_BYTES = 1 << 16

ATTEMPT_LINE = "--- attempt "
"""How the line of run.log begins that is written at each start of a trainer."""

_ERROR_BEGINS = ("Traceback (most recent call last)", "terminate called after throwing")
_ERROR_NAMED = re.compile(r"[A-Za-z_][\w.]*(?::|$)|\s*what\(\):")


def newest_update(paths: LinePaths) -> int:
    """The furthest the line has come: its newest complete checkpoint or the last row of its ledger."""
    checkpoint = newest(paths)
    return max(checkpoint.update if checkpoint else 0, _last_number(paths.metrics, "update"))


def last_attempt(paths: LinePaths) -> int:
    """Attempt number of the last row of the ledger, whoever started that trainer."""
    return _last_number(paths.metrics, "attempt")


def trained_tokens(paths: LinePaths) -> int:
    """Tokens trained by the last row of the ledger."""
    return _last_number(paths.metrics, "tokens")


def stop_wanted_since(paths: LinePaths, moment: float) -> bool:
    """Whether a stop was asked for after `moment` (seconds since the epoch) and no run has begun since."""
    if not paths.wanted.exists():
        return False
    value = read_json(paths.wanted)
    return value.get("wanted") == "stopped" and value.get("time", 0.0) > moment


def last_words(paths: LinePaths, returncode: int | None, *, since: float) -> str | None:
    """The message of the event with which a trainer started at `since` explained its exit code, if it did."""
    for row in tail_rows(paths.events):
        if row.get("exit_code") == returncode and row.get("time", 0.0) >= since:
            return str(row.get("message"))
    return None


def last_line(path: Path) -> str:
    """The last line with text of a log, shortened; empty when there is none."""
    lines = [line.strip() for line in _tail(path) if line.strip()]
    return lines[-1].decode("utf-8", errors="replace")[:300] if lines else ""


def last_error(path: Path) -> str:
    """What the newest attempt said last in a log, shortened; of an error the line that names it.

    Errors of a device go on for lines that name nothing. Empty when there is no text.
    """
    last, named = "", None
    for line in (found.decode("utf-8", errors="replace").rstrip() for found in _tail(path)):
        if line.startswith(ATTEMPT_LINE):
            last, named = "", None
            continue
        if line.startswith(_ERROR_BEGINS):
            named = ""
        elif named == "" and _ERROR_NAMED.match(line):
            named = line.strip()
        last = line.strip() or last
    return (named or last)[:300]


def tail_rows(path: Path) -> Iterator[dict[str, Any]]:
    """The last whole rows of a JSON-lines file, newest first."""
    for line in reversed(_tail(path)):
        if (row := parse_row(line)) is not None:
            yield row


def _tail(path: Path) -> list[bytes]:
    try:
        with open(path, "rb") as file:
            file.seek(0, os.SEEK_END)
            file.seek(max(0, file.tell() - _TAIL_BYTES))
            return file.read().splitlines()
    except FileNotFoundError:
        return []


def _last_number(path: Path, key: str) -> int:
    for row in tail_rows(path):
        if isinstance(row.get(key), int):
            return int(row[key])
    return 0
