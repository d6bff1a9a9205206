"""A checkpoint of 400 MB beside training, against torch.distributed.checkpoint's async_save.

    python -m benchmarks.checkpoint

Each round trains alone, then while each contender writes the same tensors to the same disk. Blocked: how long
the call kept the loop, in wall time less the time for which other processes had its core (the kernel tells),
so that waiting for a thread, a lock or the disk counts and a busy machine does not. Slower: CPU seconds of
the training thread for a step, against alone in the same round; and, where training alone has a core for
itself, wall seconds, which tell about writers that take the core away. async_save is shown too with a stager
that is kept between saves, so that its copy is a warm one. One thread of training. The bar of milliseconds
is one at 10 GB/s; memory that copies slower in the same rounds, because others use it, moves it by as much.
Exits 1 when a bar is missed.
"""

from __future__ import annotations

import logging
import shutil
import statistics
import sys
import tempfile
import time
import warnings
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeVar

import torch
import torch.distributed.checkpoint as dcp
from torch import Tensor
from torch.distributed.checkpoint.staging import DefaultStager, StagingOptions

from benchmarks.contest import table
from trainer_core.engine.backends.eager_replay import EagerReplay
from trainer_core.engine.flat import flat_state
from trainer_core.engine.step import Step, UpdateScalars
from trainer_core.line.checkpoints import verify
from trainer_core.line.paths import LinePaths
from trainer_core.models.registry import build
from trainer_core.train.checkpoint import CheckpointWriter
from trainer_core.train.saving import writer_threads

BUFFERS, ELEMENTS = ("params", "exp_avg", "exp_avg_sq", "ema"), 25_000_000
MODEL = {"layers": 2, "width": 256, "heads": 4, "ffn": 688}
VOCAB, ROWS, LENGTH = 2_048, 2, 256
ROUNDS, STEPS_ALONE = 5, 10

COPY_RATE = 10e9
"""Bytes a second that one thread copies on a machine of its own."""
BAR_MS, BAR_RATIO, BAR_SLOWER, SLACK = 80.0, 3.0, 1.15, 1.1
OWN_CORE = 1.1
"""Wall over CPU seconds of a step alone up to which training has a core for itself."""

T = TypeVar("T")
Busy = Callable[[], bool]
"""Whether a checkpoint is still being written."""
Save = Callable[[], Busy]
"""Begins a checkpoint of the live tensors; returns when they may change again."""


def main() -> int:
    """Print the comparison and the bars; 1 when one is missed."""
    torch.set_num_threads(1)
    warnings.filterwarnings("ignore")
    logging.disable(logging.WARNING)
    step = _training()
    live = {name: torch.randn(ELEMENTS) for name in BUFFERS}
    with tempfile.TemporaryDirectory(dir=Path.cwd()) as name:
        folder = Path(name)
        saves = {
            "ours": _ours(folder, live),
            "async_save": _theirs(folder, live, None),
            "async_save, stager kept": _theirs(folder, live, _stager()),
        }
        seen, spare = {name: Seen() for name in saves}, torch.zeros(ELEMENTS)
        copies = []
        alone = [Pace.of(step)]
        for save in saves.values():  # what is only slow the first time
            _whole(save(), folder)
        for _ in range(ROUNDS):
            alone.append(Pace.of(step))
            copies.append(_timed(lambda: [spare.copy_(tensor) for tensor in live.values()])[0])
            for name, save in saves.items():
                seen[name].add(save, step, alone[-1])
                shutil.rmtree(folder / "checkpoints")
    _print(seen, alone)
    return _judge(seen, alone, copy_rate=4 * ELEMENTS * len(BUFFERS) / min(copies))


@dataclass(frozen=True, kw_only=True)
class Pace:
    """Seconds of a training step."""

    cpu: float
    """CPU seconds of the training thread."""
    wall: float
    """Wall seconds."""

    @classmethod
    def of(cls, step: Callable[[], object], more: Busy | None = None) -> Pace:
        """Steps while there is more to wait for, or a fixed number of them."""
        start, cpu, steps = time.perf_counter(), time.thread_time(), 0
        while more() if more else steps < STEPS_ALONE:
            step()
            steps += 1
        steps = max(steps, 1)
        return cls(cpu=(time.thread_time() - cpu) / steps, wall=(time.perf_counter() - start) / steps)


@dataclass(kw_only=True)
class Seen:
    """What one contender did, a number for each round."""

    blocked: list[float] = field(default_factory=list)
    """Seconds of the call, less those in which others had the core."""
    wall: list[float] = field(default_factory=list)
    """Wall seconds of the call."""
    writing: list[float] = field(default_factory=list)
    """Wall seconds from there until the checkpoint was complete."""
    paces: list[tuple[Pace, Pace]] = field(default_factory=list)
    """A step meanwhile, and alone in the same round."""

    def add(self, save: Save, step: Callable[[], object], alone: Pace) -> None:
        """One round."""
        blocked, wall, busy = _timed(save)
        called = time.perf_counter()
        self.paces.append((Pace.of(step, busy), alone))
        self.blocked.append(blocked)
        self.wall.append(wall)
        self.writing.append(time.perf_counter() - called)

    @property
    def slower(self) -> Pace:
        """A step meanwhile over a step alone: the median of the rounds."""
        cpu = statistics.median(meanwhile.cpu / alone.cpu for meanwhile, alone in self.paces)
        wall = statistics.median(meanwhile.wall / alone.wall for meanwhile, alone in self.paces)
        return Pace(cpu=cpu, wall=wall)


def _timed(call: Callable[[], T]) -> tuple[float, float, T]:
    """Seconds of a call, less those in which this thread was ready and had no core; wall seconds; result."""
    start, delay = time.perf_counter(), _delay()
    result = call()
    wall = time.perf_counter() - start
    return wall - (_delay() - delay), wall, result


def _delay() -> float:
    return int(Path("/proc/thread-self/schedstat").read_text().split()[1]) / 1e9


def _training() -> Callable[[], object]:
    model = build("llama", MODEL, VOCAB, 0)
    step = Step(
        model_loss=lambda ids, targets: model.loss(ids, targets, "none"),
        state=flat_state(model),
        backend=EagerReplay(),
    )
    rows = torch.randint(VOCAB, (ROWS, LENGTH + 1), generator=torch.Generator().manual_seed(0))
    scalars = UpdateScalars(lr=1e-4, weight_decay=0.1)
    step.update([rows], scalars)
    return lambda: step.update([rows], scalars)


def _ours(folder: Path, live: dict[str, Tensor]) -> Save:
    writer = CheckpointWriter(LinePaths(folder), live, EagerReplay(), threads=writer_threads())
    state = {"update": 0, "tokens": 0, "position": {"cycle": 0, "part": 0, "row": 0}, "kept": None}

    def save() -> Busy:
        writer.save(0, state, before=lambda: None)
        return lambda: not writer.idle()

    return save


def _stager() -> DefaultStager:
    return DefaultStager(StagingOptions(False, False, False, False))


def _theirs(folder: Path, live: dict[str, Tensor], stager: DefaultStager | None) -> Save:
    def save() -> Busy:
        future: Any = dcp.async_save(
            live, checkpoint_id=folder / "checkpoints", async_stager=stager, no_dist=True
        )

        def busy() -> bool:
            if not future.done():
                return True
            future.result()
            return False

        return busy

    return save


def _whole(busy: Busy, folder: Path) -> None:
    """Wait for a checkpoint and remove it; ours must be sound."""
    while busy():
        time.sleep(0.01)
    for path in (folder / "checkpoints").glob("u*"):
        assert verify(path) == [], verify(path)
    shutil.rmtree(folder / "checkpoints")


def _print(seen: dict[str, Seen], alone: list[Pace]) -> None:
    rows = [
        (
            name,
            f"{min(one.blocked) * 1e3:.0f}",
            f"{statistics.median(one.blocked) * 1e3:.0f}",
            f"{min(one.wall) * 1e3:.0f}",
            f"{statistics.median(one.writing):.1f}",
            f"{one.slower.cpu:.2f}",
            f"{1 / statistics.median(meanwhile.wall for meanwhile, _ in one.paces):.1f}",
            f"{one.slower.wall:.2f}",
        )
        for name, one in seen.items()
    ]
    steps = 1 / statistics.median(pace.wall for pace in alone)
    head = ["400 MB", "blocked ms", "median", "wall ms", "written s", "CPU s/step", "steps/s", "wall s/step"]
    print(table(head, [("alone", "", "", "", "", "1.00", f"{steps:.1f}", "1.00"), *rows]))


def _judge(seen: dict[str, Seen], alone: list[Pace], copy_rate: float) -> int:
    ours, theirs = seen["ours"], seen["async_save"]
    blocked = min(ours.blocked) * 1e3
    ratio = min(theirs.blocked) / min(ours.blocked)
    own_core = statistics.median(pace.wall / pace.cpu for pace in alone)
    slower = max(ours.slower.cpu, ours.slower.wall) if own_core <= OWN_CORE else ours.slower.cpu
    judged = "CPU and wall" if own_core <= OWN_CORE else "CPU alone: others use the cores"
    bar = BAR_MS * max(1.0, COPY_RATE / copy_rate)
    print(f"blocked {blocked:.0f} ms, bar {bar:.0f} ({BAR_MS:.0f} at 10 GB/s; here {copy_rate / 1e9:.1f})")
    print(f"async_save {ratio:.1f}x as long, bar {BAR_RATIO:.0f}x")
    print(f"a step meanwhile {slower:.2f}x, bar {BAR_SLOWER:.2f} ({judged})")
    missed = blocked > bar * SLACK or ratio < BAR_RATIO / SLACK or slower > BAR_SLOWER * SLACK
    return int(missed)


if __name__ == "__main__":
    sys.exit(main())
