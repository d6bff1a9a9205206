"""`nstrain data delete`: a cycle's shards go before their time, unless a running line still wants them."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from trainer_core.data.plan.consumer import read_consumer
from trainer_core.data.prepare.preparer import CyclePreparer
from trainer_core.errors import Refused
from trainer_core.line.checkpoints import newest
from trainer_core.line.lock import in_use
from trainer_core.line.paths import DataPaths, LinePaths


@dataclass(frozen=True, kw_only=True)
class Deleted:
    """What `delete_cycle` found."""

    deleted: bool
    """Whether there were shards."""
    wanted: bool
    """Whether the training line has not trained the cycle to its end, so that it is made again for it."""


def delete_cycle(work: Path, cycle: int) -> Deleted:
    """Remove a cycle's shards. Raises Refused while its training line runs and has not trained past it."""
    preparer = CyclePreparer(work)
    line = _consumer(preparer.paths)
    wanted = line is not None and _wants(line, cycle)
    if line is not None and wanted and preparer.paths.cycle(cycle).exists():
        _refuse_running(line, cycle)
    return Deleted(deleted=preparer.delete_cycle(cycle, consumed=False), wanted=wanted)


def _consumer(paths: DataPaths) -> LinePaths | None:
    """The training line that reads the data line; None when there is none (any more)."""
    if not paths.consumer.exists():
        return None
    line = LinePaths(Path(read_consumer(paths.root).line))
    return line if line.run_json.exists() else None


def _wants(line: LinePaths, cycle: int) -> bool:
    checkpoint = newest(line)
    return checkpoint is None or checkpoint.cycle <= cycle


def _refuse_running(line: LinePaths, cycle: int) -> None:
    running = in_use(line.lock)
    if running is not None:
        raise Refused(
            f"cycle {cycle} is not trained to its end yet and its training line runs: {running}; stop it "
            f"first (`nstrain stop {line.root}`), or wait: a trained cycle is deleted by itself"
        )
