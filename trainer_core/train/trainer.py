"""Assembles a trainer from a line directory: configuration, data, model, engine state, checkpoint, loop.

The one place that knows every part by its class; a part is exchanged here and nowhere else.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import torch

from trainer_core.data.rows.line_rows import DataLineRows
from trainer_core.engine.assemble import line_device, make_step
from trainer_core.engine.determinism import set_exactness
from trainer_core.engine.flat import FlatState
from trainer_core.engine.step import Step
from trainer_core.errors import Refused
from trainer_core.line.checkpoints import discard_partial
from trainer_core.line.config import RunConfig, load_run
from trainer_core.line.cxx import compiler_problems
from trainer_core.line.events import record_event
from trainer_core.line.ledger import Ledger
from trainer_core.line.paths import LinePaths
from trainer_core.line.run_checks import not_recomputable, too_long
from trainer_core.measure.device import described
from trainer_core.measure.tune_record import refuse_untuned
from trainer_core.models.registry import build
from trainer_core.telemetry.heartbeat import Heartbeat
from trainer_core.train.control import Control
from trainer_core.train.loop import Loop
from trainer_core.train.progress import START, Progress
from trainer_core.train.resume import ResumePoint, check_resume, find_resume_point, load_state
from trainer_core.train.saving import Saver, versions


def make_trainer(
    paths: LinePaths,
    *,
    control: Control,
    attempt: int,
    wait_for_data: bool = True,
    say: Callable[[str], None] = print,
) -> Loop:
    """Build the loop of a line at its newest sound checkpoint, or at its start.

    The caller holds the line's lock. Raises Refused when something would make the line differ from itself.
    """
    config = load_run(paths)
    heartbeat = Heartbeat(paths.heartbeat)
    heartbeat.beat("loading", 0)
    torch.set_num_threads(config.threads)
    set_exactness(config.exactness)
    point = recover(paths)
    rows = DataLineRows(Path(config.data), beat=lambda: heartbeat.beat("loading", 0))
    state, step = _engine(config, paths)
    progress = START if point is None else _load(point, config, paths, state, rows)
    ledger = Ledger(paths.metrics, attempt=attempt)
    loop = Loop(
        paths=paths,
        config=config,
        rows=rows,
        step=step,
        saver=Saver(paths, config, state, ledger, data_identity=rows.identity(), host=step.backend),
        ledger=ledger,
        heartbeat=heartbeat,
        control=control,
        progress=progress,
        attempt=attempt,
        wait_for_data=wait_for_data,
        say=say,
    )
    _announce(paths, progress, point, say)
    if point is not None:
        loop.check_position(point.state["position"])
    return loop


def recover(paths: LinePaths) -> ResumePoint | None:
    """Put the checkpoints in order after whatever happened, and return the one to go on from."""
    removed = discard_partial(paths)
    if removed:
        record_event(
            paths.events, "checkpoint_discarded", f"removed what was half-written: {', '.join(removed)}"
        )
    return find_resume_point(paths)


def _engine(config: RunConfig, paths: LinePaths) -> tuple[FlatState, Step]:
    """The model's parameters in flat buffers, and the step over them."""
    device = line_device()
    refuse_untuned(described(device), config, paths)
    try:
        model = build(config.model.family, config.model.config, config.model.vocab_size, config.seed)
    except Refused as refused:
        raise Refused([f"{paths.run_json}: {problem}" for problem in refused.problems]) from None
    problems = [
        *too_long(config, model.config.rope_max_seq_len),
        *not_recomputable(config, model.recomputation),
    ]
    if found := [
        *(f"{paths.run_json}: {problem}" for problem in problems),
        *compiler_problems(paths, config),
    ]:
        raise Refused(found)
    return make_step(
        model,
        device=device,
        precision=config.precision,
        ema=config.ema is not None,
        recompute={shape.length: shape.ac for shape in config.lengths},
        compile=config.compile,
        seed=config.seed,
    )


def _load(
    point: ResumePoint, config: RunConfig, paths: LinePaths, state: FlatState, rows: DataLineRows
) -> Progress:
    """Compare and load a checkpoint."""
    changed = check_resume(
        point,
        config,
        paths,
        layout_digest=state.layout.digest,
        data_identity=rows.identity(),
        versions=versions(),
    )
    load_state(point, state)
    if changed:
        record_event(paths.events, "settings_changed", f"changed since the checkpoint: {', '.join(changed)}")
    return Progress.from_dict(point.state)


def _announce(
    paths: LinePaths, progress: Progress, point: ResumePoint | None, say: Callable[[str], None]
) -> None:
    kind = "started" if point is None else "resumed"
    where = "from the start" if point is None else f"from {point.info.path.name}"
    record_event(paths.events, kind, f"{kind} {where}", update=progress.update, tokens=progress.tokens)
    say(f"{kind} {where}: update {progress.update}, {progress.tokens:,} tokens")
