"""Prepares the cycles of a data line: sources to tokens to published shards, and their deletion.

Every call is idempotent, and a kill between any two file operations is repaired by the next call, which ends
with the same bytes. Publication has one order: the folder of shards, then the manifest, then the state. One
process at a time works on a line; who comes second waits and finds finished files.
"""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from threading import Event
from typing import Any

from trainer_core.data.files.source_files import SourceFiles
from trainer_core.data.hub.waiting import Patience, Say, say_nothing
from trainer_core.data.plan.consumer import read_consumer
from trainer_core.data.plan.manifest import (
    Manifest,
    manifest_value,
    plan_segments,
    plan_streams,
    read_cycle_manifest,
    write_manifest,
)
from trainer_core.data.plan.planner import CyclePlan, FilesNeeded, plan_cycle
from trainer_core.data.plan.state import PlanState
from trainer_core.data.plan.state_file import current_state, write_state
from trainer_core.data.prepare.assemble import write_segments
from trainer_core.data.prepare.cycle_log import log_step
from trainer_core.data.prepare.disk_bound import RAW_BUDGET_BYTES
from trainer_core.data.prepare.file_steps import Report, report_nothing
from trainer_core.data.prepare.files import Effort, FileWork
from trainer_core.data.prepare.rebuild import rebuild_shards
from trainer_core.data.prepare.sweep import delete_shards, sweep
from trainer_core.data.sources import last_written, load_data_line
from trainer_core.data.tokens.open_files import OpenFiles
from trainer_core.data.tokens.shards import Shard
from trainer_core.errors import DiskFull, Leaving, Refused, disk_full
from trainer_core.line.files import publish
from trainer_core.line.lock import Busy, FileLock
from trainer_core.line.paths import DataPaths

_LOCK_SECONDS = 0.05


@dataclass(frozen=True, kw_only=True)
class FileRef:
    """A source file that a cycle needs tokenized."""

    source: str
    """Source by nickname."""
    path: str
    """File within the source."""
    size: int
    """Bytes."""


class CyclePreparer:
    """Downloads, tokenizes, publishes and deletes the cycles of one data line."""

    def __init__(
        self,
        work: Path,
        *,
        report: Report = report_nothing,
        leaving: Event | None = None,
        say: Say = say_nothing,
        effort: Effort | None = None,
        patience: Patience = Patience(),  # noqa: B008 (frozen)
    ) -> None:
        """Open the line; nothing is read from its sources yet.

        `report` is told of every file, `say` of waits; once `leaving` is set, work ends with Leaving.
        """
        self.paths = DataPaths(Path(work))
        self._leaving = leaving or Event()
        self._effort, self._report = effort or Effort.of_host(), report
        self._say, self._patience = say, patience
        self._open_line()

    def _open_line(self) -> None:
        """Read data.json and make everything that is for this data line."""
        self._written = last_written(self.paths.root)
        self.line = load_data_line(self.paths.root)
        stop = Event()
        sources = SourceFiles(self.paths, self.line, leaving=stop, say=self._say, patience=self._patience)
        self.files = OpenFiles(self.paths.root, self.line, sources)
        self._work = FileWork(
            self.paths.root,
            self.files,
            effort=self._effort,
            report=self._report,
            leaving=self._leaving,
            stop=stop,
        )

    def _refresh(self) -> None:
        """Open the line again when its recipe may have grown since it was read."""
        if last_written(self.paths.root) != self._written:
            self._open_line()

    def has_manifest(self, cycle: int) -> bool:
        """Whether the cycle is planned for good."""
        return self.paths.manifest(cycle).exists()

    def published(self, cycle: int) -> bool:
        """Whether the cycle can be trained: its manifest and every shard are in place."""
        if not self.has_manifest(cycle):
            return False
        self._refresh()
        manifest = self._manifest(cycle)
        folder = self.paths.cycle(cycle)
        return all((folder / shard["path"]).exists() for shards in manifest.shards() for shard in shards)

    def needed(self, cycle: int) -> list[FileRef]:
        """Files still to download and tokenize, by estimate until exact counts are known; [] = none."""
        self._refresh()
        return [
            FileRef(source=source, path=path, size=self.files.pinned(source, path).size)
            for source, path in self._needed(cycle)
        ]

    def bytes_needed(self, cycle: int) -> int:
        """Bytes that preparing the cycle is expected to add to the disk, from here to its publication."""
        self._refresh()
        width = 2 if self.line.token_dtype == "uint16" else 4
        files = self._needed(cycle)
        tokens = sum(self._estimate(*key) for key in files)
        raw = sum(self.files.pinned(*key).size for key in files if self.files.sources.is_hub(key[0]))
        shards = 0 if self.published(cycle) else self.line.cycle_tokens
        return (tokens + shards) * width + min(raw, RAW_BUDGET_BYTES)

    def download(self, cycle: int) -> dict[str, Any]:
        """Compare the needed files of folders with their hashes, and download ahead from hubs.

        Downloads no more than may lie here at once; `tokenize` gets the rest. Raises Refused naming every
        file that is wrong.
        """
        with self._working():
            files = self._work.download(self._needed(cycle))
            size = sum(self.files.pinned(source, path).size for source, path in files)
            if not self.published(cycle):
                log_step(self.paths, cycle, "downloaded", files=len(files), bytes=size)
            return {"cycle": cycle, "files": len(files), "bytes": size}

    def tokenize(self, cycle: int) -> dict[str, Any]:
        """Tokenize what the cycle needs, publish it, and advance the state; done work is not repeated."""
        with self._working() as lock:
            if not self.published(cycle):
                self.files.on_disk()  # for what killed workers left
                while needed := self._needed(cycle):
                    log_step(self.paths, cycle, "tokenize_started")
                    self._work.tokenize(needed, lock.fd)
                log_step(self.paths, cycle, "tokenize_started")
                self._publish(cycle)
            state = self._state()
            write_state(self.paths, state)
            manifest = self._manifest(cycle)
            log_step(self.paths, cycle, "published", manifest_sha256=manifest.sha256)
            sweep(self.paths, self.line, self.files, state)
            return self._summary(manifest)

    def delete_cycle(self, cycle: int, *, consumed: bool = True) -> bool:
        """Remove a cycle's shards; False when they were gone. `consumed` also logs that it was trained."""
        return delete_shards(self.paths, cycle, consumed=consumed)

    def rebuild(self, cycle: int, out: Path) -> None:
        """Write a cycle's shards to a new folder from its manifest and the sources, and compare digests."""
        with self._working() as lock:
            self._work.tokenize(self._untokenized(cycle), lock.fd)
            self._rebuild(cycle, out)
            sweep(self.paths, self.line, self.files, self._state())

    def _needed(self, cycle: int) -> list[tuple[str, str]]:
        if self.has_manifest(cycle):
            return [] if self.published(cycle) else self._untokenized(cycle)
        state = self._state()
        if cycle != state.next_cycle:
            raise Refused(
                f"{self.paths.root}: cycle {cycle} can only be prepared after cycle {cycle - 1}; "
                f"the next one is {state.next_cycle}"
            )
        try:
            self._plan(state)
        except FilesNeeded as wanted:
            return list(wanted.files)
        return []

    def _manifest(self, cycle: int) -> Manifest:
        return read_cycle_manifest(self.paths, cycle, line=self.line)

    def _state(self) -> PlanState:
        return current_state(self.paths, line=self.line)

    def _untokenized(self, cycle: int) -> list[tuple[str, str]]:
        """Files of a planned cycle that are not tokenized (any more)."""
        streams = self._manifest(cycle).streams()
        wanted = dict.fromkeys((name, docs.path) for name, stream in streams.items() for docs in stream)
        return [key for key in wanted if self.files.counts(*key) is None]

    def _plan(self, state: PlanState) -> CyclePlan:
        return plan_cycle(self.line, read_consumer(self.paths.root), state, self.files.counts, self._estimate)

    def _estimate(self, source: str, path: str) -> int:
        return self.line.source(source).estimated_tokens(path)

    def _publish(self, cycle: int) -> None:
        """Write the shards, then the manifest; the state follows in `tokenize`."""
        folder = self.paths.cycle(cycle)
        part = folder.with_name(folder.name + ".part")
        shutil.rmtree(part, ignore_errors=True)
        shutil.rmtree(folder, ignore_errors=True)  # published halfway: its manifest or a shard is missing
        self.paths.cycles.mkdir(parents=True, exist_ok=True)
        try:
            if self.has_manifest(cycle):
                self._rebuild(cycle, part)
                publish(part, folder)
                return
            consumer = read_consumer(self.paths.root)
            plan = self._plan(self._state())
            rows = sum(part_plan.num_rows for part_plan in plan.parts)
            log_step(self.paths, cycle, "planned", num_rows=rows)
            shards = write_segments(
                part, plan_segments(plan), plan_streams(plan), self._read, self.line.token_dtype
            )
            tokens = sum(shard["tokens"] for records in shards for shard in records)
            log_step(self.paths, cycle, "tokenized", tokens=tokens)
            if read_consumer(self.paths.root) != consumer:  # it grew meanwhile, maybe inside this cycle
                self._publish(cycle)
                return
            publish(part, folder)
            write_manifest(self.paths.manifest(cycle), manifest_value(self.line, plan, self.files, shards))
        except BaseException:
            shutil.rmtree(part, ignore_errors=True)
            raise

    def _rebuild(self, cycle: int, out: Path) -> None:
        """All files are tokenized: write the shards, which must be the recorded ones."""
        rebuild_shards(self._manifest(cycle), out, self.files, self._read, self.line.token_dtype)

    def _read(self, source: str, path: str) -> Shard:
        shard = self.files.shard(source, path)
        assert shard is not None, (source, path)
        return shard

    @contextmanager
    def _working(self) -> Iterator[FileLock]:
        """Hold the line's lock, waiting for it; a full disk becomes DiskFull."""
        with self._locked() as lock:
            self._refresh()
            try:
                yield lock
            except OSError as error:
                if disk_full(error):
                    raise DiskFull(f"{self.paths.root}: no space left; free space and start again") from error
                raise

    def _locked(self) -> FileLock:
        while True:
            try:
                return FileLock.acquire(self.paths.lock, role="prepare")
            except Busy as busy:
                if self._leaving.wait(_LOCK_SECONDS):
                    raise Leaving(f"left while waiting for the data line: {busy}") from None

    def _summary(self, manifest: Manifest) -> dict[str, Any]:
        shards = [shard for records in manifest.shards() for shard in records]
        return {
            "cycle": manifest.cycle,
            "rows": sum(part["num_rows"] for part in manifest.parts),
            "updates": sum(part["updates"] for part in manifest.parts),
            "tokens": sum(shard["tokens"] for shard in shards),
            "shards": len(shards),
            "manifest_sha256": manifest.sha256,
        }
