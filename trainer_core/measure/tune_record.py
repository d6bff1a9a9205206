"""tune.json: what was measured of a line's shapes, and whether a start may rely on it. Imports no torch.

A GPU is not started on a shape that nobody has measured there: a shape that does not fit fails after minutes
of capture, or hours later in a validation. A CPU takes any shape, and its presets ship one.
"""

from __future__ import annotations

import shlex
from collections.abc import Sequence
from typing import Literal

from pydantic import BaseModel, ConfigDict, ValidationError

from trainer_core.complaints import validation_problems
from trainer_core.errors import Refused
from trainer_core.line.config import RunConfig
from trainer_core.line.files import read_json, sha256_json
from trainer_core.line.paths import LinePaths

_SETTINGS = ("model", "precision", "compile", "exactness")
"""Keys of run.json that a shape's memory depends on, beside whether there is a moving average (`ema`)."""


class _Record(BaseModel):
    model_config = ConfigDict(extra="ignore", strict=True, frozen=True)


class Device(_Record):
    """A device, as far as shapes depend on it."""

    kind: str
    """cuda or cpu."""
    name: str
    """What the driver calls it."""


class TrialRecord(_Record):
    """One measured shape."""

    rows: int
    """Rows of a micro-batch."""
    ac: str
    """What the backward pass recomputes."""
    estimate_bytes: int | None
    """Peak memory by the trace without a device; null where a larger shape was found to fit by it."""
    peak_bytes: int | None
    """Measured peak memory; null when it did not run."""
    tokens_per_second: float | None
    """Measured speed; null when it did not run."""
    problem: str | None
    """Why it does not fit; null when it does."""


class LengthRecord(_Record):
    """Everything that was measured of a row length."""

    length: int
    """Tokens of a row."""
    rows: int
    """Rows of the shape that was chosen."""
    ac: str
    """Its recomputation."""
    trials: list[TrialRecord]
    """Every shape that was measured, in the order of measuring."""


class TuneRecord(_Record):
    """The whole of tune.json."""

    format: Literal["tune/1"] = "tune/1"
    """Format of the file."""
    time: float
    """When it was measured, in seconds since 1970."""
    device: Device
    """Where."""
    clock: Literal["cpu", "wall"]
    """Seconds that the speeds are in: of CPU time, or of the clock on the wall."""
    room_bytes: int
    """Memory that a shape could use, before the margin."""
    reserve_bytes: int
    """Memory that was left to others (`--shared`)."""
    settings: str
    """Digest of the settings that the figures depend on."""
    lengths: list[LengthRecord]
    """Every row length of the line."""


def settings_digest(config: RunConfig) -> str:
    """Digest of what a shape's memory and speed depend on in run.json."""
    run = config.dump()
    return sha256_json({key: run.get(key) for key in _SETTINGS} | {"ema": run.get("ema") is not None})


def read_record(paths: LinePaths) -> TuneRecord | None:
    """The line's record, or None. Raises Refused when the file is damaged."""
    if not paths.tune_json.exists():
        return None
    try:
        return TuneRecord.model_validate(read_json(paths.tune_json))
    except (ValidationError, Refused) as error:
        problems: Sequence[str] = (
            error.problems if isinstance(error, Refused) else validation_problems(error, paths.tune_json)
        )
        raise Refused([f"{problem}; {tune_command(paths)} makes it again" for problem in problems]) from None


def tune_command(paths: LinePaths) -> str:
    """The command that measures a line's shapes, as a word for people."""
    return f"`nstrain tune {shlex.quote(str(paths.root))}`"


def untuned(device: Device, config: RunConfig, record: TuneRecord | None, paths: LinePaths) -> list[str]:
    """Why a start on the device cannot rely on the shapes of run.json; empty when it can."""
    if device.kind == "cpu":
        return []
    way_out = f"run {tune_command(paths)} on this GPU"
    if record is None:
        return [f"{paths.run_json}: lengths: no shape was measured on {device.name}; {way_out}"]
    if record.device != device:
        return [
            f"{paths.tune_json}: the shapes were measured on {record.device.name}, this is {device.name}; "
            f"{way_out}"
        ]
    if record.settings != settings_digest(config):
        keys = ", ".join((*_SETTINGS, "ema"))
        return [
            f"{paths.tune_json}: the shapes were measured with other settings ({keys}) than those of "
            f"{paths.run_json}; {way_out}"
        ]
    measured = {
        (length.length, trial.rows, trial.ac)
        for length in record.lengths
        for trial in length.trials
        if trial.problem is None
    }
    return [
        f"{paths.run_json}: lengths[{index}]: {shape.rows} rows of {shape.length} with ac {shape.ac!r} were "
        f"not found to fit {device.name}; {way_out}"
        for index, shape in enumerate(config.lengths)
        if (shape.length, shape.rows, shape.ac) not in measured
    ]


def refuse_untuned(device: Device, config: RunConfig, paths: LinePaths) -> None:
    """Raise Refused where a start on the device would rely on shapes that nobody has measured there."""
    if device.kind != "cpu" and (problems := untuned(device, config, read_record(paths), paths)):
        raise Refused(problems)
