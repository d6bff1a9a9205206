"""What leaves a data line: shards of trained cycles, files of which nothing is left to train, leftovers.

Deletes only what can be made again from the sources and the manifests. A deletion may be cut off anywhere and
is finished by the next one.
"""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

from trainer_core.data.plan.state import PlanState
from trainer_core.data.plan.streams import file_order
from trainer_core.data.prepare.cycle_log import log_step
from trainer_core.data.sources import DataLine
from trainer_core.data.tokens.open_files import OpenFiles
from trainer_core.errors import DiskFull
from trainer_core.line.files import publish
from trainer_core.line.paths import DataPaths


def delete_shards(paths: DataPaths, cycle: int, *, consumed: bool) -> bool:
    """Remove a cycle's shards; False when they were gone. `consumed` also logs that it was trained.

    Takes no lock: the next cycle may be in preparation for hours. The folder leaves by one rename.
    """
    folder = paths.cycle(cycle)
    doomed = folder.with_name(folder.name + ".deleted")
    told = not (consumed and paths.manifest(cycle).exists())
    if not told:
        with suppress(DiskFull):  # what is deleted here makes room for the row
            log_step(paths, cycle, "consumed")
            told = True
    size = sum(entry.stat().st_size for entry in _files_below(folder, doomed))
    found = folder.exists()
    if found:
        shutil.rmtree(doomed, ignore_errors=True)
        publish(folder, doomed)
    shutil.rmtree(doomed, ignore_errors=True)
    if not told:
        log_step(paths, cycle, "consumed")
    if size:
        log_step(paths, cycle, "deleted", bytes=size)
    return found


def sweep(paths: DataPaths, line: DataLine, files: OpenFiles, state: PlanState) -> None:
    """Delete files of which no document is left to train, raw ones, and leftovers of killed processes."""
    for source, path in files.sources.held():
        files.sources.discard(source, path)
    for source, path in files.on_disk():
        if _used_up(line, files, state, source, path):
            files.forget(source, path)
    for leftover in paths.cycles.glob("*.deleted"):
        shutil.rmtree(leftover, ignore_errors=True)
    for temporary in (*paths.manifests.glob(".*.tmp"), *paths.root.glob(".state.json.*.tmp")):
        temporary.unlink(missing_ok=True)


def _used_up(line: DataLine, files: OpenFiles, state: PlanState, source: str, path: str) -> bool:
    progress = state.sources.get(source)
    if progress is None:
        return False
    stratum_name = files.pinned(source, path).stratum
    stratum = progress.strata.get(stratum_name)
    if stratum is None or any(docs.path == path for docs in progress.head):
        return False
    opened = file_order(line, source, stratum_name)[: stratum.next_file]
    return path in opened and all(file.path != path for file in stratum.open)


def _files_below(*folders: Path) -> Iterator[Path]:
    for folder in folders:
        yield from (entry for entry in folder.rglob("*") if entry.is_file())
