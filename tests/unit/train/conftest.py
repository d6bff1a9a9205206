"""A whole trainer on rows in memory, assembled from the real parts."""

from __future__ import annotations

import pytest
import torch

from tests.tools.memory_rows import MemoryRows
from tests.tools.run_json import run_json
from trainer_core.engine.assemble import make_step
from trainer_core.line.checkpoints import discard_partial
from trainer_core.line.config import parse_run
from trainer_core.line.ledger import Ledger
from trainer_core.line.paths import LinePaths
from trainer_core.models.registry import build
from trainer_core.telemetry.heartbeat import Heartbeat
from trainer_core.train.control import Control
from trainer_core.train.loop import Loop
from trainer_core.train.progress import START, Progress
from trainer_core.train.resume import check_resume, find_resume_point, load_state
from trainer_core.train.saving import Saver, versions

torch.set_num_threads(1)


def three_cycles(**changes) -> dict:
    """16 rows of 16 tokens a cycle, 4 rows an update: 4 updates a cycle; the schedule ends after 3 cycles."""
    model = {"layers": 1, "width": 16, "heads": 2, "ffn": 32}
    value = run_json(
        model={"name": "llama-nano-cpu", "family": "llama", "vocab_size": 64, "config": model},
        schedule=[
            {"from": 0, "to": 128, "kind": "warmup"},
            {"from": 128, "to": 512, "kind": "constant"},
            {"from": 512, "to": 768, "kind": "decay"},
        ],
        lengths=[{"length": 16, "rows": 3}],
        validation={"every_updates": 3, "rows_per_stratum": 2},
        checkpoints={"every_updates": 2, "keep_last": 2},
        print_every=1,
    )
    return value | changes


class Rig:
    """A line directory and everything to train it in this process."""

    def __init__(self, root, planned=None, **changes) -> None:
        self.paths = LinePaths(root)
        root.mkdir(parents=True, exist_ok=True)
        self.changes = changes
        self.rows = MemoryRows(planned=planned)
        self.lines: list[str] = []
        self.attempt = 0
        self.control: Control | None = None

    @property
    def config(self) -> dict:
        return three_cycles(**self.changes)

    def loop(self, *, wait: bool = True) -> Loop:
        """A fresh trainer at the newest checkpoint, as a new process would make it."""
        self.attempt += 1
        config = parse_run(self.config, self.paths.run_json)
        discard_partial(self.paths)
        point = find_resume_point(self.paths)
        model = build(config.model.family, config.model.config, config.model.vocab_size, config.seed)
        self.state, step = make_step(
            model,
            precision=config.precision,
            ema=config.ema is not None,
            recompute={shape.length: shape.ac for shape in config.lengths},
        )
        progress = START
        if point is not None:
            check_resume(
                point,
                config,
                self.paths,
                layout_digest=self.state.layout.digest,
                data_identity=self.rows.identity(),
                versions=versions(),
            )
            load_state(point, self.state)
            progress = Progress.from_dict(point.state)
        ledger = Ledger(self.paths.metrics, attempt=self.attempt)
        self.control = Control(self.paths, parent=None)
        loop = Loop(
            paths=self.paths,
            config=config,
            rows=self.rows,
            step=step,
            saver=Saver(
                self.paths,
                config,
                self.state,
                ledger,
                data_identity=self.rows.identity(),
                host=step.backend,
            ),
            ledger=ledger,
            heartbeat=Heartbeat(self.paths.heartbeat),
            control=self.control,
            progress=progress,
            attempt=self.attempt,
            wait_for_data=wait,
            say=self.lines.append,
        )
        if point is not None:
            loop.check_position(point.state["position"])
        return loop


@pytest.fixture
def rig(tmp_path):
    """Makes rigs in directories of their own."""

    def make(name: str = "line", planned=None, **changes) -> Rig:
        return Rig(tmp_path / name, planned, **changes)

    return make
