"""The training loop: update by update through the cycles of a row source, until the end or a reason to stop.

Reads top to bottom: `run` goes from cycle to cycle, `_train_cycle` from update to update, `_boundary` does
what is due between two updates. An update lies in one part of a cycle: it has one row length, and trains in
the shape of that length. The ledger follows one update behind (see `updates`) and is up to date wherever the
line is validated, saved or stopped, and at the end of a cycle. It talks only through the line directory;
nothing here knows of Prefect.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from trainer_core.data.rows.source import Part, RowSource
from trainer_core.engine.step import Step
from trainer_core.errors import NoData, Refused
from trainer_core.line.config import RunConfig
from trainer_core.line.events import record_event
from trainer_core.line.ledger import Ledger
from trainer_core.line.paths import LinePaths
from trainer_core.schedule.batch import update_rows, whole_updates
from trainer_core.telemetry.goodput import Stopwatch
from trainer_core.telemetry.heartbeat import Heartbeat, Stage
from trainer_core.train.boundary import Due, due_after
from trainer_core.train.control import Control, StopReason
from trainer_core.train.progress import Progress
from trainer_core.train.readings import Asked, update_scalars
from trainer_core.train.saving import Saver
from trainer_core.train.updates import Updates
from trainer_core.train.validate import Validator

POLL_SECONDS = 0.1
"""Between two looks for a cycle that is not published yet."""


class Stopped(Exception):
    """The loop stopped for a reason from outside, after a checkpoint."""

    def __init__(self, reason: StopReason) -> None:
        self.reason = reason
        super().__init__(reason.message)


@dataclass(kw_only=True, eq=False)
class Loop:
    """Trains one line from where it stands; the fields are the parts it is made of."""

    paths: LinePaths
    """Files of the line."""
    config: RunConfig
    """run.json."""
    rows: RowSource
    """Where rows come from."""
    step: Step
    """The engine."""
    saver: Saver
    """Checkpoints."""
    ledger: Ledger
    """metrics.jsonl."""
    heartbeat: Heartbeat
    """Heartbeat file."""
    control: Control
    """Reasons to stop."""
    progress: Progress
    """Where the next update begins; the ledger (`done`) is behind by one update at most."""
    attempt: int
    """Launch of the trainer, counted over the line's life."""
    wait_for_data: bool = True
    """Wait for a cycle that is not published; else NoData."""
    say: Callable[[str], None] = print
    """Where lines for people go (run.log)."""

    def __post_init__(self) -> None:
        self._watch = Stopwatch()
        self._updates = Updates(
            paths=self.paths,
            config=self.config,
            step=self.step,
            ledger=self.ledger,
            watch=self._watch,
            done=self.progress,
            say=self.say,
        )
        self._cycle: tuple[int, tuple[Part, ...]] | None = None
        self._validator = Validator(
            config=self.config,
            rows=self.rows,
            step=self.step,
            ledger=self.ledger,
            watch=self._watch,
            say=self.say,
        )
        # What is wrong with these rows is known before anything is trained.
        self._validator.rows(self.config.row_length(self.progress.tokens), self.progress.position.cycle)

    @property
    def done(self) -> Progress:
        """Where the line stands by its ledger."""
        return self._updates.done

    @property
    def finished(self) -> bool:
        """Whether the schedule has ended."""
        end = self.config.end_tokens
        return end is not None and self.progress.tokens >= end

    def run(self, target: int | None) -> None:
        """Train until the schedule's end or until cycles 0 .. target-1 are trained, and write the checkpoint.

        Raises Stopped, NoData, NonFinite, DiskFull or Refused; every state a resume needs is then on disk.
        """
        try:
            if self.progress.update == 0:
                self._save("start")
                self._drain()  # no update is ever recorded without a checkpoint to resume it from
            self._poll_stop()
            while not self.finished and (target is None or self.progress.position.cycle < target):
                self._await_cycle()
                self._train_cycle()
            self._drain()
        except BaseException as error:
            self.saver.settle(error)
            raise

    def _train_cycle(self) -> None:
        """Train the rest of the current cycle, or up to the schedule's end."""
        cycle = self.progress.position.cycle
        parts = self._parts(cycle)
        self._check_plan(cycle, parts)
        while self.progress.position.cycle == cycle and not self.finished:
            length = parts[self.progress.position.part].row_length
            self._boundary(length, self._update(parts))

    def _check_plan(self, cycle: int, parts: tuple[Part, ...]) -> None:
        """Whether the cycle was planned for this line. Raises Refused when not."""
        if self.progress.expected_tokens(parts) != self.progress.tokens:
            raise Refused(
                f"{self.config.data}: cycle {cycle}: the manifest puts this position at "
                f"{self.progress.expected_tokens(parts)} tokens, the line is at {self.progress.tokens}; "
                "this data line was planned for another history"
            )
        spans = self.config.spans()
        for part in parts:
            end = part.start_token + part.num_rows * part.row_length
            if not whole_updates(spans, part.row_length, part.start_token, end):
                raise Refused(
                    f"{self.config.data}: cycle {cycle}: its rows of {part.row_length} from "
                    f"{part.start_token} to {end} tokens are not whole updates by {self.paths.run_json}; put "
                    "back the schedule and tokens_per_update that the cycle was planned by"
                )

    def _update(self, parts: tuple[Part, ...]) -> Due:
        """Ask for one optimizer update; returns what is due after it, with every result that takes."""
        config, before = self.config, self.progress
        part = parts[before.position.part]
        count = update_rows(
            tokens_per_update=config.batch(before.tokens),
            row_length=part.row_length,
            tokens=before.tokens,
            end_tokens=config.end_tokens,
            rows_left_in_part=part.num_rows - before.position.row,
        )
        assert count > 0, "an update without rows"
        self._beat("training")
        with self._watch.cause("data"):
            batch = self.rows.rows(before.position, count)
        after, shape = before.after_rows(count, parts), config.shape(part.row_length)
        asked = Asked(
            before=before,
            after=after,
            source_rows=batch.source_rows,
            samples=batch.samples,
            shape=shape,
            scalars=update_scalars(config, before, after),
        )
        due = due_after(config, part.row_length, after)
        micro = [batch.ids[start : start + shape.rows] for start in range(0, count, shape.rows)]
        self._updates.train(asked, micro, drain=due.validation or due.checkpoint)
        self.progress = after
        return due

    def _boundary(self, trained: int, due: Due) -> None:
        """Do what is due after an update in rows of length `trained`: validation, checkpoint, stop."""
        if due.validation:
            cycle = self.progress.position.cycle if due.ended_cycle is None else due.ended_cycle
            self._beat("validating")
            self._validator.validate(self.progress, trained, cycle, lambda: self._beat("validating"))
        # A rolling one amid skipped updates would push out the last one before them.
        if due.checkpoint and (due.kept is not None or not self._updates.skipped_run):
            self._save(due.kept)
        self.saver.poll()
        if due.ended_cycle is not None:
            self._event("cycle_completed", f"cycle {due.ended_cycle} is trained", cycle=due.ended_cycle)
        if due.new_length is not None:
            self._event("row_length_changed", f"rows of {due.new_length} after rows of {trained}")
        self._poll_stop()

    def _poll_stop(self) -> None:
        """Stop here, after a checkpoint, when there is a reason to."""
        where = self.progress.position
        reason = self.control.poll(
            update=self.progress.update, cycles_done=where.cycle, at_cycle_end=self.progress.at_cycle_start
        )
        if reason is not None:
            self._updates.drain()
            self._save(None)
            self._drain()
            raise Stopped(reason)

    def _save(self, kept: str | None) -> None:
        self._beat("checkpointing")
        with self._watch.cause("checkpoint"):
            self.saver.save(
                self.progress,
                kept=kept,
                position_proof=self._proof(),
                attempt=self.attempt,
                beat=lambda: self._beat("checkpointing"),
            )

    def _drain(self) -> None:
        """Wait until everything saved is published."""
        with self._watch.cause("checkpoint"):
            self.saver.wait(lambda: self._beat("checkpointing"))

    def _proof(self) -> dict[str, Any]:
        """Digests that a resume inside a cycle compares; a cycle that has not begun has none yet."""
        if self.progress.at_cycle_start or self._cycle is None:
            return {"manifest_sha256": None, "order_digest": None}
        part = self._cycle[1][self.progress.position.part]
        return {"manifest_sha256": part.manifest_sha256, "order_digest": part.order_digest}

    def _await_cycle(self) -> None:
        """Wait inside, with heartbeats, until the current cycle is published."""
        cycle = self.progress.position.cycle
        if self.rows.ready(cycle):
            return
        if not self.wait_for_data:
            raise NoData(f"{self.config.data}: cycle {cycle} is not prepared (run `nstrain data prepare`)")
        self._event("awaiting_data", f"cycle {cycle} is not ready yet", cycle=cycle)
        self.say(f"waiting for cycle {cycle}")
        with self._watch.cause("awaiting_data"):
            while not self.rows.ready(cycle):
                self._beat("awaiting-data")
                self.saver.poll()
                time.sleep(POLL_SECONDS)
                self._stop_while_waiting()

    def _stop_while_waiting(self) -> None:
        where = self.progress.position
        if self.control.poll(
            update=self.progress.update, cycles_done=where.cycle, at_cycle_end=self.progress.at_cycle_start
        ):
            self._poll_stop()

    def _parts(self, cycle: int) -> tuple[Part, ...]:
        if self._cycle is None or self._cycle[0] != cycle:
            self._cycle = (cycle, self.rows.parts(cycle))
        return self._cycle[1]

    def check_position(self, proof: dict[str, Any]) -> None:
        """Compare a resumed position's digests with the cycle's manifest; raises Refused when they differ."""
        if proof.get("manifest_sha256") is None:
            return
        self._await_cycle()
        part = self._parts(self.progress.position.cycle)[self.progress.position.part]
        for key in ("manifest_sha256", "order_digest"):
            if proof[key] != getattr(part, key):
                raise Refused(
                    f"{self.config.data}: cycle {self.progress.position.cycle}: {key} is "
                    f"{getattr(part, key)}, the checkpoint was trained on {proof[key]}; restore the data line"
                )

    def _beat(self, stage: Stage) -> None:
        self.heartbeat.beat(stage, self.done.update)

    def _event(self, kind: str, message: str, **details: Any) -> None:
        record_event(
            self.paths.events,
            kind,
            message,
            update=self.progress.update,
            tokens=self.progress.tokens,
            **details,
        )
