"""Every file of a training line and of a data line, and what marks an exported folder, named once.

Never touches the disk.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

EXPORT_RECORD = "nstrain.json"
"""File that says of an exported folder what it is."""


@dataclass(frozen=True)
class LinePaths:
    """Files of a training line; formats and writers are listed in docs/files.md."""

    root: Path

    @property
    def name(self) -> str:
        """The line's name in Prefect, in notifications and in titles."""
        return self.root.name

    @property
    def run_json(self) -> Path:
        return self.root / "run.json"

    @property
    def tune_json(self) -> Path:
        return self.root / "tune.json"

    @property
    def checkpoints(self) -> Path:
        return self.root / "checkpoints"

    @property
    def latest(self) -> Path:
        return self.checkpoints / "latest"

    @property
    def metrics(self) -> Path:
        return self.root / "metrics.jsonl"

    @property
    def events(self) -> Path:
        return self.root / "events.jsonl"

    @property
    def acked(self) -> Path:
        return self.root / "events.acked"

    @property
    def wanted(self) -> Path:
        return self.root / "wanted.json"

    @property
    def supervisor(self) -> Path:
        return self.root / "supervisor.json"

    @property
    def stop(self) -> Path:
        return self.root / "STOP"

    @property
    def heartbeat(self) -> Path:
        return self.root / "heartbeat"

    @property
    def lock(self) -> Path:
        return self.root / "lock"

    @property
    def run_log(self) -> Path:
        return self.root / "run.log"

    @property
    def supervisor_out(self) -> Path:
        return self.root / "supervisor.out"

    def checkpoint(self, update: int) -> Path:
        """Directory of the checkpoint after `update` updates."""
        return self.checkpoints / f"u{update}"


@dataclass(frozen=True)
class DataPaths:
    """Files of a data line."""

    root: Path

    @property
    def name(self) -> str:
        """The data line's name in Prefect and in notifications."""
        return self.root.name

    @property
    def recipe(self) -> Path:
        return self.root / "recipe.json"

    @property
    def data(self) -> Path:
        return self.root / "data.json"

    @property
    def consumer(self) -> Path:
        return self.root / "consumer.json"

    @property
    def state(self) -> Path:
        return self.root / "state.json"

    @property
    def manifests(self) -> Path:
        return self.root / "manifests"

    def manifest(self, cycle: int) -> Path:
        """Permanent record of a cycle."""
        return self.manifests / f"{cycle:06d}.json"

    @property
    def cycles_log(self) -> Path:
        return self.root / "cycles.jsonl"

    @property
    def events(self) -> Path:
        return self.root / "events.jsonl"

    @property
    def acked(self) -> Path:
        return self.root / "events.acked"

    @property
    def preparer_log(self) -> Path:
        return self.root / "preparer.log"

    @property
    def calibration(self) -> Path:
        return self.root / "calibration.json"

    @property
    def heldout(self) -> Path:
        return self.root / "heldout"

    @property
    def cycles(self) -> Path:
        return self.root / "cycles"

    def cycle(self, cycle: int) -> Path:
        """Directory of a cycle's shards; deleted after training."""
        return self.cycles / f"{cycle:06d}"

    @property
    def open(self) -> Path:
        return self.root / "open"

    @property
    def incoming(self) -> Path:
        return self.root / "incoming"

    @property
    def hashes(self) -> Path:
        return self.root / "hashes"

    @property
    def lock(self) -> Path:
        return self.root / "lock"
