"""A trainer without a model: it speaks the trainer's whole protocol and trains nothing.

Usage: standin_trainer.py --line RUN [--cycles N] --lock-fd N --lease-fd N --attempt K

What it does is written in RUN/standin.json:
  updates_per_cycle  updates of a cycle (default 10)
  tokens_per_update  tokens of an update (default 100)
  cycles             cycles of its schedule; 0 for an open one (default 0)
  seconds            seconds of an update (default 0.01)
  checkpoint_every   updates between rolling checkpoints (default 4)
  data               folder in which cycles/<c> must exist before cycle c is trained (default: none needed)
  hold               {"update": U, "until": FILE}: after update U wait, at most a minute, for a file
  acts               [{"attempt": K or null for each, "update": U, "do": ACT}]: done after update U
ACT: an exit code, "SIGKILL", "hang" (no heartbeat, obeys SIGTERM), "hang hard" (ignores SIGTERM),
  {"say": TEXT, "code": N} (writes an error and ends), "start a child" (a copy of the process that ignores
  SIGHUP and SIGTERM and has every descriptor; its id is written to RUN/child).
"""

from __future__ import annotations

import argparse
import json
import os
import signal
import sys
import time
from pathlib import Path
from typing import Any

from trainer_core.line.checkpoints import newest
from trainer_core.line.events import record_event
from trainer_core.line.files import read_json, write_json
from trainer_core.line.identity import ProcessIdentity
from trainer_core.line.ledger import Ledger
from trainer_core.line.lock import FileLock
from trainer_core.line.paths import DataPaths, LinePaths
from trainer_core.line.stop import clear_stop, read_stop


class Standin:
    """The state of the stand-in: an update counter."""

    def __init__(self, line: Path, cycles: int | None, attempt: int) -> None:
        self.paths = LinePaths(line)
        self.script = json.loads((line / "standin.json").read_text())
        self.per_cycle = int(self.script.get("updates_per_cycle", 10))
        self.cycles = cycles or self.script.get("cycles") or None
        self.attempt = attempt
        self.ledger = Ledger(self.paths.metrics, attempt=attempt)
        checkpoint = newest(self.paths)
        self.update = checkpoint.update if checkpoint else 0
        self.terminated = False
        self.reason = "terminated"
        self.parent = os.getppid()

    def run(self) -> int:
        """Train to the end, or to whatever the script or a request says; the exit code."""
        self.beat("loading")
        self.act(0)
        while self.cycles is None or self.update < self.cycles * self.per_cycle:
            self.await_data(self.update // self.per_cycle)
            time.sleep(float(self.script.get("seconds", 0.01)))
            self.update += 1
            cycle_end = self.update % self.per_cycle == 0
            self.beat("training")
            row = {"tokens": self.tokens, "cycle": (self.update - 1) // self.per_cycle, "time": time.time()}
            row["seconds"] = {"train": float(self.script.get("seconds", 0.01))}
            self.ledger.append("update", self.update, {**row, "train/loss": 3.0 + 1.0 / self.update})
            if cycle_end or self.update % int(self.script.get("checkpoint_every", 4)) == 0:
                self.checkpoint("cycle-end" if cycle_end else None)
            self.act(self.update)
            self.hold()
            if (code := self.interrupted(cycle_end)) is not None:
                self.checkpoint("cycle-end" if cycle_end else None)
                return self.explain(code)
        return self.explain(0)

    def explain(self, code: int) -> int:
        """Record the event of a regular end, as the trainer does."""
        kind, reason = {0: ("finished", "trained"), 10: ("stopped", self.reason)}.get(
            code, ("terminated", "signal")
        )
        message = f"{reason}; checkpoint u{self.update}"
        record_event(self.paths.events, kind, message, update=self.update, exit_code=code)
        return code

    @property
    def tokens(self) -> int:
        return self.update * int(self.script.get("tokens_per_update", 100))

    def interrupted(self, cycle_end: bool) -> int | None:
        """The exit code of a stop request, a signal or a lost parent, if there is one."""
        stop = read_stop(self.paths)
        done = self.update // self.per_cycle
        if stop is not None and stop.due(update=self.update, cycles_done=done, at_cycle_end=cycle_end):
            clear_stop(self.paths)
            self.reason = f"stop requested by {stop.by}"
            return 10
        return 50 if self.terminated or os.getppid() != self.parent else None

    def await_data(self, cycle: int) -> None:
        """Wait, with heartbeats, until the cycle is there; leaves on a request as the trainer does."""
        if not self.script.get("data"):
            return
        while not DataPaths(Path(self.script["data"])).cycle(cycle).exists():
            self.beat("awaiting-data")
            if (code := self.interrupted(self.update % self.per_cycle == 0)) is not None:
                self.checkpoint(None)
                sys.exit(self.explain(code))
            time.sleep(0.05)

    def act(self, update: int) -> None:
        """Do what the script has for this attempt and update."""
        for item in self.script.get("acts", []):
            if item["update"] != update or item.get("attempt") not in (None, self.attempt):
                continue
            if isinstance(item["do"], int):
                sys.exit(item["do"])
            if isinstance(item["do"], dict):
                print(item["do"]["say"], file=sys.stderr)
                sys.exit(item["do"]["code"])
            if item["do"] == "start a child":
                self.start_a_child()
                continue
            if item["do"] == "SIGKILL":
                os.kill(os.getpid(), signal.SIGKILL)
            if item["do"] == "hang hard":
                signal.signal(signal.SIGTERM, signal.SIG_IGN)
            while not self.terminated:
                time.sleep(0.05)
            sys.exit(50)

    def start_a_child(self) -> None:
        """As a reader process that a killed trainer leaves behind."""
        if child := os.fork():
            (self.paths.root / "child").write_text(str(child))
            return
        for number in (signal.SIGHUP, signal.SIGTERM):
            signal.signal(number, signal.SIG_IGN)
        time.sleep(60)
        os._exit(0)

    def hold(self) -> None:
        """Wait where the script says so, with heartbeats."""
        hold = self.script.get("hold", {"update": -1})
        end = time.monotonic() + 60
        while hold["update"] == self.update and not Path(hold["until"]).exists() and time.monotonic() < end:
            self.beat("training")
            time.sleep(0.05)

    def beat(self, stage: str) -> None:
        beat = {"format": "heartbeat/1", "time": time.time(), "monotonic": time.monotonic()}
        beat |= {"update": self.update, "stage": stage, **ProcessIdentity.current().to_dict()}
        write_json(self.paths.heartbeat, beat)

    def checkpoint(self, kept: str | None) -> None:
        """A complete checkpoint as a reader sees it: a state and a manifest."""
        final = self.paths.checkpoint(self.update)
        if final.exists():
            return
        self.beat("checkpointing")
        part = final.with_name(final.name + ".part")
        part.mkdir(parents=True, exist_ok=True)
        position = {"cycle": self.update // self.per_cycle, "part": 0, "row": self.update % self.per_cycle}
        state: dict[str, Any] = {"update": self.update, "tokens": self.tokens, "position": position}
        write_json(part / "state.json", {**state, "kept": kept, "run": read_json(self.paths.run_json)})
        size = (part / "state.json").stat().st_size
        files = {"state.json": {"bytes": size, "digest": "", "chunks": []}}
        write_json(part / "manifest.json", {"format": "checkpoint/1", "chunk_bytes": 1, "files": files})
        part.rename(final)


def main() -> int:
    parser = argparse.ArgumentParser()
    parser.add_argument("--line", type=Path, required=True)
    parser.add_argument("--cycles", type=int)
    parser.add_argument("--attempt", type=int, required=True)
    parser.add_argument("--lock-fd", type=int, required=True)
    parser.add_argument("--lease-fd", type=int, required=True)
    given = parser.parse_args()
    held = [FileLock.adopt(given.lock_fd, given.line), FileLock.adopt(given.lease_fd, given.line)]
    trainer = Standin(given.line, given.cycles, given.attempt)

    def terminate(number: int, frame: object) -> None:
        trainer.terminated = True

    signal.signal(signal.SIGTERM, terminate)
    print(f"stand-in trainer, attempt {given.attempt}, from update {trainer.update}, {len(held)} locks")
    return trainer.run()


if __name__ == "__main__":
    sys.exit(main())
