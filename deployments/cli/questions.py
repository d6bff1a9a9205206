"""The verbs that only look at a training line: check, status, logs, verify. None writes a file."""

from __future__ import annotations

import json as jsonlib
import time
from collections import deque
from collections.abc import Iterator
from pathlib import Path
from typing import Annotated, Any

from cyclopts import Parameter

from trainer_core.errors import Refused
from trainer_core.host import load_host, resolve
from trainer_core.line.no_line import require_line
from trainer_core.line.paths import LinePaths

Flag = Annotated[bool, Parameter(negative="")]

_SHOWN_CHECKPOINTS = 3


def _say(message: str) -> None:
    print(message, flush=True)


def _print_json(value: Any) -> None:
    print(jsonlib.dumps(value, indent=2), flush=True)


def _line(run: Path) -> LinePaths:
    """The files of a line. Raises Refused when the directory is none."""
    paths = LinePaths(resolve(run))
    require_line(paths.root)
    return paths


def check(run: Path, /) -> int:
    """Make every check of a start, without training, and trace every shape as a GPU would capture it.

    Parameters
    ----------
    run
        Directory of the line, or its name under work_root.
    """
    load_host()
    from trainer_core.ops.check import check_all

    for sentence in check_all(resolve(run)):
        _say(sentence)
    return 0


def status(run: Path, /, *, watch: Flag = False, json: Flag = False) -> int:
    """Say where a line stands, from its files alone.

    Parameters
    ----------
    run
        Directory of the line, or its name under work_root.
    watch
        Say it again every two seconds until Ctrl-C.
    json
        Print JSON.
    """
    load_host()
    from trainer_core.line.status import line_status

    while True:
        value = line_status(resolve(run))
        _print_json(value) if json else _say(status_lines(value))
        if not watch:
            return 0
        time.sleep(2.0)


def status_lines(value: dict[str, Any]) -> str:
    """A status in a few lines for people."""
    finished = value["state"] == "finished"
    done = f"update {value['update']}, {value['tokens']:,} tokens"
    where = f"{value['cycles_done']} cycles trained" if finished else f"cycle {value['cycle']}"
    lines = [f"{value['line']}: {value['state']} ({value['reason']})", f"  {done}, {where}"]
    if value["loss"] is not None:
        mix = next((loss for key, loss in value["validation"].items() if key.endswith("/mix")), None)
        lines.append(
            f"  loss {value['loss']:.4f}" + (f", validation mix {mix:.4f}" if mix is not None else "")
        )
    if rate := value["tokens_per_second"]:
        eta = value["eta_seconds"]
        lines.append(
            f"  {rate:,.0f} tokens/s over the last updates"
            + (f", {_duration(eta)} to go" if eta and not finished else "")
        )
    if points := value["checkpoints"]:
        newest = ", ".join(f"u{point['update']}" for point in points[-_SHOWN_CHECKPOINTS:])
        lines.append(
            f"  {len(points)} checkpoint{'s' if len(points) > 1 else ''}"
            + (f", the newest {newest}" if len(points) > _SHOWN_CHECKPOINTS else f": {newest}")
        )
    return "\n".join(lines)


def _duration(seconds: float) -> str:
    """Seconds in the unit that a person would choose."""
    if seconds >= 48 * 3600:
        return f"{seconds / 86_400:.1f} days"
    if seconds >= 3600:
        return f"{seconds / 3600:.1f} hours"
    return f"{seconds / 60:.0f} minutes" if seconds >= 90 else f"{seconds:.0f} seconds"


def logs(run: Path, /, *, lines: int = 40) -> int:
    """Show the end of a line's log.

    Parameters
    ----------
    run
        Directory of the line, or its name under work_root.
    lines
        Lines from the end.
    """
    load_host()
    if lines < 1:
        raise Refused(f"--lines {lines}: expected at least 1")
    path = _line(run).run_log
    if not path.exists():
        raise Refused(
            f"{path}: no log; a line has one once it was started through Prefect, an inline run prints to "
            "its terminal"
        )
    with open(path, encoding="utf-8", errors="replace") as file:
        for line in deque(file, maxlen=lines):
            _say(line.rstrip("\n"))
    return 0


def verify(run: Path, /, *, json: Flag = False) -> int:
    """Compare every byte of every checkpoint with its hashes; exit code 20 when one is damaged.

    Parameters
    ----------
    run
        Directory of the line, or its name under work_root.
    json
        Print JSON.
    """
    load_host()
    found = []
    for row in _verified(_line(run)):
        found.append(row)
        if not json:
            _say(f"u{row['update']}: {'sound' if row['ok'] else row['problem']}")
    if json:
        _print_json(found)
    elif not found:
        _say("no checkpoints yet")
    return 0 if all(row["ok"] for row in found) else 20


def _verified(paths: LinePaths) -> Iterator[dict[str, Any]]:
    """One row per published checkpoint, damaged ones included; none for one removed meanwhile."""
    from trainer_core.line.checkpoints import published
    from trainer_core.line.checkpoints import verify as verify_files

    for update, path in published(paths):
        try:
            problems = verify_files(path)
        except OSError as error:
            problems = [f"{error.filename or path}: cannot be read ({error.strerror})"]
        if path.exists():
            yield {"update": update, "ok": not problems, "problem": problems[0] if problems else None}
