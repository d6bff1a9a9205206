"""Makes a line directory for the stand-in trainer: a valid run.json and the stand-in's script."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

from tests.tools.real_line import CYCLE_TOKENS, UPDATE_TOKENS, make_real_line
from tests.tools.run_json import run_json
from trainer_core.data.prepare.preparer import CyclePreparer
from trainer_core.line.files import write_json
from trainer_core.line.paths import LinePaths
from trainer_core.supervise.spawn import Launch

TRAINER = Path(__file__).with_name("standin_trainer.py")


def standin_command(launch: Launch) -> list[str]:
    """Command line of the stand-in, in place of the real trainer's."""
    command = [sys.executable, str(TRAINER), "--line", str(launch.line), "--attempt", str(launch.attempt)]
    command += ["--lock-fd", str(launch.lock_fd), "--lease-fd", str(launch.lease_fd)]
    return command + (["--cycles", str(launch.cycles)] if launch.cycles is not None else [])


def make_line(
    root: Path, *, data: Path | None = None, guards: dict[str, Any] | None = None, **script: Any
) -> LinePaths:
    """A line at `root` whose stand-in follows `script`; failures are retried at once."""
    root.mkdir(parents=True)
    run = run_json(
        data=str(data or root.parent / "data"),
        tokens_per_update=100,
        lengths=[{"length": 10, "rows": 1}],
        checkpoints={"every_updates": 4},
        guards={"backoff_seconds": 0.0, **(guards or {})},
    )
    write_json(root / "run.json", run)
    write_json(root / "standin.json", script)
    return LinePaths(root)


UPDATES_PER_CYCLE = CYCLE_TOKENS // UPDATE_TOKENS


def make_line_with_data(
    root: Path, *, cycles: int = 3, prepared: int = 0, settings: tuple[str, ...] = (), **script: Any
) -> LinePaths:
    """A real data line and a line on it whose trainer is the stand-in: `cycles` cycles of 8 updates.

    The first `prepared` cycles are tokenized already.
    """
    paths = make_real_line(root, cycles=cycles, settings=settings)
    shape = {"updates_per_cycle": UPDATES_PER_CYCLE, "tokens_per_update": UPDATE_TOKENS, "cycles": cycles}
    write_json(paths.root / "standin.json", {**shape, "data": str(root / "data"), **script})
    preparer = CyclePreparer(root / "data")
    for cycle in range(prepared):
        preparer.download(cycle)
        preparer.tokenize(cycle)
    return paths
