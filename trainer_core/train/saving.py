"""When and as what the loop saves: one checkpoint per boundary, kept or rolling, and what goes afterwards."""

from __future__ import annotations

import platform
from collections.abc import Callable, Mapping
from importlib.metadata import version
from typing import Any

import torch

from trainer_core.engine.flat import FlatState
from trainer_core.host import cores
from trainer_core.line import retention
from trainer_core.line.checkpoints import list_checkpoints
from trainer_core.line.config import RunConfig
from trainer_core.line.ledger import Ledger
from trainer_core.line.paths import LinePaths
from trainer_core.train.checkpoint import CheckpointWriter
from trainer_core.train.progress import Progress
from trainer_core.train.snapshot import Host

NUMERICS_VERSION = 2
"""Rises whenever an update's bits change for the same input."""


def versions() -> dict[str, str]:
    """The code a checkpoint was made with."""
    return {
        "nstrain": version("nstrain"),
        "numerics": str(NUMERICS_VERSION),
        "torch": torch.__version__,
        "python": platform.python_version(),
    }


def writer_threads() -> int:
    """Threads that write checkpoints: as many cores as training leaves, one at least.

    One more than that would take turns with a thread of training, which all others of it wait for.
    """
    return max(1, cores() - torch.get_num_threads())


class Saver:
    """Owns the writer and the retention of one trainer."""

    def __init__(
        self,
        paths: LinePaths,
        config: RunConfig,
        state: FlatState,
        ledger: Ledger,
        *,
        data_identity: Mapping[str, Any],
        host: Host,
    ) -> None:
        """`host` is the backend that the state is updated through."""
        self._paths = paths
        self._config = config
        self._state = state
        self._ledger = ledger
        self._data_identity = dict(data_identity)
        self._writer = CheckpointWriter(paths, state.state_tensors(), host, threads=writer_threads())
        self._in_flight = False
        found = list_checkpoints(paths)
        self._saved = found[-1].update if found else None

    def save(
        self,
        progress: Progress,
        *,
        kept: str | None,
        position_proof: Mapping[str, Any],
        attempt: int,
        beat: Callable[[], None],
    ) -> None:
        """Snapshot this boundary, unless it is saved already, and start writing it after any earlier write.

        `position_proof` holds the manifest and order digests of a position inside a cycle.
        """
        if self._saved == progress.update:
            return
        self.wait(beat)
        state = progress.to_dict()
        state["position"].update(position_proof)
        self._writer.save(
            progress.update,
            {
                "format": "checkpoint-state/1",
                **state,
                "kept": kept,
                "scalars": self._state.scalars(),
                "layout_digest": self._state.layout.digest,
                "data": self._data_identity,
                "run": self._config.dump(),
                "versions": versions(),
                "attempt": attempt,
                "continuation": 0,
            },
            before=self._ledger.sync,
        )
        self._saved = progress.update
        self._in_flight = True

    def poll(self) -> None:
        """Notice a finished write and remove what it superseded; raises what the write raised."""
        if self._in_flight and self._idle():
            retention.apply(self._paths, keep_last=self._config.checkpoints.keep_last)

    def settle(self, error: BaseException) -> None:
        """After `error` ended the loop: let the write under way end, so that nothing of it lives on.

        A second error, of the write, is noted on the first.
        """
        while self._in_flight:
            try:
                self._in_flight = not self._writer.idle(timeout=0.25)
            except Exception as second:
                self._in_flight = False
                error.add_note(f"the checkpoint under way failed too: {second}")

    def wait(self, beat: Callable[[], None]) -> None:
        """Wait for the write under way, showing life."""
        while self._in_flight:
            beat()
            if self._idle(timeout=0.25):
                retention.apply(self._paths, keep_last=self._config.checkpoints.keep_last)

    def _idle(self, timeout: float = 0.0) -> bool:
        """Whether the write under way has ended; raises its error, once."""
        try:
            self._in_flight = not self._writer.idle(timeout)
        except BaseException:
            self._in_flight = False
            raise
        return not self._in_flight
