"""What a line is doing, from its directory alone: no server, no GPU, no torch."""

from __future__ import annotations

import shutil
import time
from pathlib import Path
from typing import Any

from trainer_core.errors import Refused
from trainer_core.line.checkpoints import list_checkpoints
from trainer_core.line.config import RunConfig, load_run
from trainer_core.line.files import iterate_jsonl, read_json
from trainer_core.line.ledger import live_rows
from trainer_core.line.lock import held
from trainer_core.line.paths import DataPaths, LinePaths
from trainer_core.telemetry.heartbeat import read_heartbeat

ENDED = (
    "finished",
    "stopped",
    "refused",
    "stuck",
    "disk-full",
    "data-used-up",
    "non-finite",
    "crashed",
)
"""States of a line that nobody runs."""

_RECENT_UPDATES = 50
_WAITS = ("awaiting-gpu", "backoff")
_STAGES = {"loading": "starting", "capture": "starting", "finishing": "stopping"}


def line_status(root: Path) -> dict[str, Any]:
    """The answer of `nstrain status --json`; keys as docs/files.md lists them."""
    paths = LinePaths(root)
    config = load_run(paths)
    updates = live_rows(paths.metrics)
    last = updates[-1] if updates else {}
    checkpoints = list_checkpoints(paths)
    events = list(iterate_jsonl(paths.events))
    state, reason = _state(paths, config, checkpoints[-1].tokens if checkpoints else 0, events)
    rate = tokens_per_second(updates)
    tokens = int(last.get("tokens", 0))
    validations = live_rows(paths.metrics, "validation")
    supervisor = _read(paths.supervisor)
    return {
        "line": str(root),
        "state": state,
        "reason": reason,
        "update": int(last.get("update", 0)),
        "tokens": tokens,
        "cycle": last.get("cycle", 0),
        "cycles_done": checkpoints[-1].cycle if checkpoints else 0,
        "loss": last.get("train/loss"),
        "validation": {k: v for k, v in validations[-1].items() if k.startswith(("val_", "ema/val_"))}
        if validations
        else {},
        "tokens_per_second": rate,
        "mfu": None,
        "goodput": goodput(updates),
        "eta_seconds": (config.end_tokens - tokens) / rate
        if rate and config.end_tokens is not None
        else None,
        "checkpoints": [{"update": c.update, "kept": c.kept, "bytes": c.bytes} for c in checkpoints],
        "failures_without_progress": int(supervisor.get("failures_without_progress", 0)),
        "last_event": events[-1] if events else None,
        "next_cycle_ready": _ready(DataPaths(Path(config.data)), last),
        "disk": {"used_bytes": _size(root), "free_bytes": shutil.disk_usage(root).free},
    }


def _state(
    paths: LinePaths, config: RunConfig, saved_tokens: int, events: list[dict[str, Any]]
) -> tuple[str, str]:
    """State and its reason in a sentence."""
    beat = read_heartbeat(paths.heartbeat)
    if held(paths.lock):
        if paths.stop.exists():
            return "stopping", "a stop was requested"
        if beat is not None and beat.process.alive():
            return _STAGES.get(beat.stage, beat.stage), f"last heartbeat {time.time() - beat.time:.0f} s ago"
        record = _read(paths.supervisor)
        state = record.get("state")
        return state if state in _WAITS else "starting", str(record.get("reason", ""))
    if config.end_tokens is not None and saved_tokens >= config.end_tokens:
        return "finished", "the schedule has ended"
    for event in reversed(events):
        kind = str(event.get("kind", "")).replace("_", "-")
        if kind == "finished":  # but not by the schedule as it is now
            return kind, f"{event.get('message', '')}; a start goes on"
        if kind in ENDED:
            return kind, str(event.get("message", ""))
        if kind in ("started", "resumed"):
            return "crashed", "the trainer ended without a word; start the line again to resume it"
    return "new", "not started yet"


def tokens_per_second(updates: list[dict[str, Any]]) -> float | None:
    """Tokens per second of training time over the newest updates, waits and validations included."""
    recent = updates[-_RECENT_UPDATES:]
    if len(recent) < 2:
        return None
    seconds = sum(sum(row.get("seconds", {}).values()) for row in recent[1:])
    return (recent[-1]["tokens"] - recent[0]["tokens"]) / seconds if seconds > 0 else None


def goodput(updates: list[dict[str, Any]]) -> dict[str, float]:
    """Share of the trainers' seconds by cause, over the whole line."""
    totals: dict[str, float] = {}
    for row in updates:
        for cause, seconds in row.get("seconds", {}).items():
            totals[cause] = totals.get(cause, 0.0) + seconds
    whole = sum(totals.values())
    return {cause: round(seconds / whole, 4) for cause, seconds in totals.items()} if whole else {}


def _read(path: Path) -> dict[str, Any]:
    try:
        return read_json(path)
    except Refused:
        return {}


def _ready(data: DataPaths, last: dict[str, Any]) -> bool:
    """Whether the cycle after the one in training is published."""
    return data.cycle(int(last.get("cycle", -1)) + 1).is_dir()


def _size(root: Path) -> int:
    """Bytes of a directory's files; files that vanish meanwhile count nothing."""
    total = 0
    for path in root.rglob("*"):
        try:
            total += path.stat().st_size if path.is_file() else 0
        except OSError:
            continue
    return total
