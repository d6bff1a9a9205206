"""`nstrain tune`: measures the shapes of a line on this host and writes the fastest that fit into run.json.

Holds the line's lock, so that nothing trains meanwhile. tune.json is written before run.json: whatever ends
this in between, run.json has a shape that was found to fit.
"""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

from trainer_core.errors import Refused
from trainer_core.line.checkpoints import newest
from trainer_core.line.config import RunConfig, load_run
from trainer_core.line.cxx import compiler_problems
from trainer_core.line.events import record_event
from trainer_core.line.files import read_json, write_json
from trainer_core.line.lock import FileLock
from trainer_core.line.paths import LinePaths
from trainer_core.measure.trial_process import ask as ask_process
from trainer_core.measure.tune import Ask, Room, Say, Tuned, describe, find_room, tune
from trainer_core.measure.tune_record import LengthRecord, TrialRecord, TuneRecord, settings_digest
from trainer_core.supervise.lease import refuse_if_run


def tune_line(line: Path, *, shared_gb: float = 0.0, say: Say = print, ask: Ask = ask_process) -> TuneRecord:
    """Measures every row length of run.json, leaving `shared_gb` GB of the device to others.

    Returns what was written. Raises Refused, changing nothing, while the line is run, when no shape of a
    length fits, and when run.json was edited meanwhile.
    """
    paths = LinePaths(line)
    config = load_run(paths)
    refuse_if_run(paths)
    if problems := compiler_problems(paths, config):
        raise Refused(problems)
    with FileLock.acquire(paths.lock, role="tune"):
        room = find_room(ask, round(shared_gb * 1e9))
        say(str(room))
        tuned = tune(config, room, ask=ask, say=say)
        record = _record(config, room, tuned)
        before = [(shape.rows, shape.ac) for shape in config.lengths]
        changed = before != [(shape.rows, shape.ac) for shape in record.lengths]
        _write(paths, config, record, changed=changed)
        for present, found in zip(config.lengths, tuned, strict=True):
            best = found.best.candidate
            same = (best.rows, best.ac) == (present.rows, present.ac)
            kept = "stays" if same else f"instead of {present.rows} rows with ac {present.ac}"
            why = describe(found.best, room)
            say(f"rows of {present.length}: {best.rows} rows with ac {best.ac} {kept}: {why}")
        if changed:
            _tell(paths, record, say)
    return record


def _record(config: RunConfig, room: Room, tuned: list[Tuned]) -> TuneRecord:
    """What tune.json will say."""
    return TuneRecord(
        time=time.time(),
        device=room.device,
        clock=room.clock,
        room_bytes=room.room_bytes,
        reserve_bytes=room.reserve_bytes,
        settings=settings_digest(config),
        lengths=[
            LengthRecord(
                length=found.best.candidate.length,
                rows=found.best.candidate.rows,
                ac=found.best.candidate.ac,
                trials=[
                    TrialRecord(
                        rows=trial.candidate.rows,
                        ac=trial.candidate.ac,
                        estimate_bytes=trial.estimate_bytes,
                        peak_bytes=trial.peak_bytes,
                        tokens_per_second=trial.tokens_per_second,
                        problem=trial.why_not(room.room_bytes),
                    )
                    for trial in found.trials
                ],
            )
            for found in tuned
        ],
    )


def _write(paths: LinePaths, config: RunConfig, record: TuneRecord, *, changed: bool) -> None:
    """The record, then changed shapes into the file as its owner wrote it: its keys in its order."""
    if load_run(paths) != config:
        raise Refused(f"{paths.run_json}: was edited while its shapes were measured; tune again")
    value: dict[str, Any] = read_json(paths.run_json)
    write_json(paths.tune_json, record.model_dump(mode="json"))
    if not changed:
        return
    for entry, shape in zip(value["lengths"], record.lengths, strict=True):
        entry["rows"] = shape.rows
        entry["ac"] = shape.ac
    write_json(paths.run_json, value)


def _tell(paths: LinePaths, record: TuneRecord, say: Say) -> None:
    """The shapes are others now: an event, and what that means for a line that has trained already."""
    shapes = ", ".join(f"{shape.rows} x {shape.length} (ac {shape.ac})" for shape in record.lengths)
    point = newest(paths)
    record_event(
        paths.events,
        "shapes_tuned",
        f"shapes are {shapes} now",
        update=point.update if point else None,
        tokens=point.tokens if point else None,
    )
    if point is not None and point.update:
        say(
            f"from update {point.update + 1} on the line trains in the new shapes: the same updates, split "
            "into other micro-batches, so their bits differ by rounding from those of the old shapes. The "
            "next start records that"
        )
