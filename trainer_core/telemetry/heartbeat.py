"""The heartbeat file: that the trainer lives, and what it is doing.

Written by the training loop itself, never by a thread of its own, so that a hung step stops beating. It is
replaced atomically but not fsynced: it matters only while the host is up.
"""

from __future__ import annotations

import json
import os
import time
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Literal, get_args

from trainer_core.errors import DiskFull, disk_full
from trainer_core.line.identity import ProcessIdentity

Stage = Literal[
    "starting",
    "loading",
    "capture",
    "training",
    "validating",
    "checkpointing",
    "awaiting-data",
    "finishing",
]


@dataclass(frozen=True, kw_only=True)
class Beat:
    """One sign of life."""

    time: float
    """Seconds since the epoch."""
    monotonic: float
    """The host's monotonic clock, seconds since boot."""
    update: int
    """Updates done."""
    stage: Stage
    """What the trainer was doing."""
    process: ProcessIdentity
    """The trainer."""


class Heartbeat:
    """Writer; beats are dropped while the last one of the same stage is younger than `every_seconds`."""

    def __init__(self, path: Path, *, every_seconds: float = 1.0) -> None:
        self._path = path
        self._every = every_seconds
        self._last = float("-inf")
        self._stage: Stage | None = None
        self._who = ProcessIdentity.current()

    def beat(self, stage: Stage, update: int) -> None:
        """Say that the trainer is in `stage` with `update` updates done."""
        now = time.monotonic()
        if stage == self._stage and now - self._last < self._every:
            return
        self._stage, self._last = stage, now
        beat = Beat(time=time.time(), monotonic=now, update=update, stage=stage, process=self._who)
        temporary = self._path.with_name(f".{self._path.name}.{os.getpid()}.tmp")
        try:
            temporary.write_text(json.dumps(_to_json(beat)) + "\n")
            os.replace(temporary, self._path)
        except OSError as error:
            if disk_full(error):
                raise DiskFull(
                    f"{self._path}: no space left for the heartbeat; free space and start again"
                ) from error
            raise


def _to_json(beat: Beat) -> dict[str, object]:
    plain = asdict(beat)
    return {"format": "heartbeat/1", **plain.pop("process"), **plain}


def read_heartbeat(path: Path) -> Beat | None:
    """The last beat, or None when there is none (or it cannot be read)."""
    try:
        value = json.loads(path.read_text(encoding="utf-8"))
        process = ProcessIdentity.from_dict(value)
        if process is None or value["stage"] not in get_args(Stage):
            return None
        return Beat(
            time=float(value["time"]),
            monotonic=float(value["monotonic"]),
            update=int(value["update"]),
            stage=value["stage"],
            process=process,
        )
    except (OSError, ValueError, KeyError, TypeError):
        return None
