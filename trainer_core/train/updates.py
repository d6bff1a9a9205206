"""Updates on their way: asked of the device one after another, and written down one update later.

Owns how far the ledger is (`done`). What happened in an update is read once the next one has been asked for,
so that a device always has work; whoever needs the newest results drains first. At most one update is asked
for beyond the ledger.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Sequence

from trainer_core.engine.step import Rows, Step, UpdateResult
from trainer_core.errors import NonFinite
from trainer_core.line.config import RunConfig
from trainer_core.line.ledger import Ledger
from trainer_core.line.paths import LinePaths
from trainer_core.telemetry.goodput import Stopwatch
from trainer_core.train.progress import Progress
from trainer_core.train.readings import Asked, update_row


class Updates:
    """Trains updates in order and writes a ledger row for each."""

    def __init__(
        self,
        *,
        paths: LinePaths,
        config: RunConfig,
        step: Step,
        ledger: Ledger,
        watch: Stopwatch,
        done: Progress,
        say: Callable[[str], None],
    ) -> None:
        self.done = done
        """Where the line stands by its ledger."""
        self.skipped_run = 0
        """Updates in a row, up to `done`, that were skipped; 0 before the first of this process."""
        self._paths = paths
        self._config = config
        self._step = step
        self._ledger = ledger
        self._watch = watch
        self._say = say
        self._unwritten: deque[tuple[Asked, float, dict[str, float]]] = deque()

    def train(self, asked: Asked, micro_batches: Sequence[Rows], *, drain: bool) -> None:
        """Ask for an update, and write the rows of those before it; with `drain` its own too.

        Raises NonFinite when too many in a row were skipped; the rows after the last of them are not written.
        """
        with self._watch.cause("train"):
            self._step.submit(micro_batches, asked.scalars)
            results = self._step.results(lag=0 if drain else 1)
        self._unwritten.append((asked, time.time(), self._watch.take()))
        self._write(results)

    def drain(self) -> None:
        """Wait for every update that was asked for, and write its row. Raises NonFinite as `train` does."""
        with self._watch.cause("train"):
            results = self._step.results()
        self._write(results)

    def _write(self, results: Sequence[UpdateResult]) -> None:
        for result in results:
            asked, at, seconds = self._unwritten.popleft()
            row = update_row(asked, result=result, mode=self._config.exactness, seconds=seconds)
            self._ledger.append("update", asked.after.update, {"time": at, **row})
            self.done, self.skipped_run = asked.after, result.skipped_run
            if self.done.update % self._config.print_every == 0:
                self._say(
                    f"update {self.done.update}  tokens {self.done.tokens:,}  "
                    f"cycle {asked.before.position.cycle}  loss {result.loss:.4f}  "
                    f"grad norm {result.grad_norm:.3f}  lr {row['lr']:.3e}"
                )
            self._check_finite()

    def _check_finite(self) -> None:
        if self.skipped_run >= self._config.guards.max_nonfinite:
            raise NonFinite(
                f"{self._paths.root}: {self.skipped_run} updates in a row had a non-finite gradient norm, "
                f"the last is {self.done.update}; skipped updates changed nothing. Look at the data of "
                "these updates, or lower optimizer.peak_lr and name it in allow_changes"
            )
