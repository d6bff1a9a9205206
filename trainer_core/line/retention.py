"""Which checkpoints stay: the newest, every kept point, and the newest `keep_last` rolling ones."""

from __future__ import annotations

import shutil
from collections.abc import Sequence

from trainer_core.line.checkpoints import CheckpointInfo, list_checkpoints
from trainer_core.line.files import fsync_dir
from trainer_core.line.paths import LinePaths


def superseded(checkpoints: Sequence[CheckpointInfo], *, keep_last: int) -> list[CheckpointInfo]:
    """The checkpoints that may go, oldest first. Pure; the newest one never goes."""
    rolling = [info for info in checkpoints if info.kept is None]
    stay = {info.update for info in rolling[-keep_last:]} | {info.update for info in checkpoints[-1:]}
    return [info for info in rolling if info.update not in stay]


def apply(paths: LinePaths, *, keep_last: int) -> list[int]:
    """Remove what is superseded; returns the updates removed.

    A directory is renamed to a partial name first, so that a kill in between leaves nothing that looks
    complete; the next start discards it.
    """
    gone = superseded(list_checkpoints(paths), keep_last=keep_last)
    for info in gone:
        doomed = info.path.with_name(f"{info.path.name}.part")
        shutil.rmtree(doomed, ignore_errors=True)
        info.path.rename(doomed)
        fsync_dir(paths.checkpoints)
        shutil.rmtree(doomed)
    return [info.update for info in gone]
