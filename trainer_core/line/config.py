"""run.json: the configuration of a training line, strict, with every problem reported at once.

Users edit this file; `new` writes it. Keys a line keeps for its life are listed in `KEPT_KEYS`: they change
only when they are named in `allow_changes`.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any, Literal

from pydantic import BaseModel, ConfigDict, Field, PositiveFloat, PositiveInt, ValidationError

from trainer_core.complaints import validation_problems
from trainer_core.errors import Refused
from trainer_core.line.files import read_json, write_json
from trainer_core.line.paths import LinePaths
from trainer_core.schedule.pieces import end_of, problems
from trainer_core.schedule.rates import RatePiece
from trainer_core.schedule.tokens import TokenCount

KEPT_KEYS = (
    "model",
    "tokens_per_update",
    "optimizer",
    "seed",
    "exactness",
    "metrics",
    "lengths",
    "threads",
)
"""Settings a line keeps for its whole life (`lengths`: the row lengths; their shapes may be tuned)."""

DATA_IDENTITY = "data_identity"
"""Named in allow_changes, lets a line go on with another data line; its path alone may change freely."""


class Strict(BaseModel):
    """Base of everything a user writes: unknown keys and wrong types are refused."""

    model_config = ConfigDict(
        extra="forbid", strict=True, frozen=True, populate_by_name=True, allow_inf_nan=False
    )


class Model(Strict):
    """The model of the line."""

    name: str
    """Preset it was made from."""
    family: str
    """Model family in the registry."""
    vocab_size: PositiveInt
    """Entries of the vocabulary: the data line's largest token id plus one."""
    config: dict[str, Any]
    """Shape of the model, as its family defines it."""


class SchedulePiece(Strict):
    """One piece of the learning-rate schedule, by tokens trained."""

    start: TokenCount = Field(alias="from")
    """Tokens at which the piece begins."""
    end: TokenCount | None = Field(alias="to")
    """Tokens at which it ends; null in an open last piece."""
    kind: Literal["warmup", "constant", "decay"]
    """warmup: linear from 0 to peak_lr; constant: peak_lr; decay: linear from peak_lr to min_lr."""


class Optimizer(Strict):
    """AdamW with decoupled weight decay and a global gradient-norm clip."""

    peak_lr: PositiveFloat
    """Learning rate of the constant pieces."""
    min_lr: float = Field(ge=0)
    """Rate at the end of a decay piece."""
    betas: tuple[float, float]
    """Decay rates of the first and second moments."""
    eps: PositiveFloat
    """Added to the root of the second moment."""
    weight_decay: float = Field(ge=0)
    """Decay per unit of rate, on matrices only."""
    weight_decay_batch: TokenCount | None = None
    """With a value, an update's decay is weight_decay times its tokens over this many."""
    clip: PositiveFloat
    """Largest global gradient norm; larger gradients are scaled down to it."""


class Length(Strict):
    """One row length and its micro-batch shape."""

    length: PositiveInt
    """Tokens of a row."""
    rows: PositiveInt
    """Rows of a micro-batch."""
    ac: Literal["none", "full"] = "none"
    """Activation recomputation: none, or of every block."""


class Validation(Strict):
    """Plain validation on the held-out rows."""

    every_updates: PositiveInt
    """Updates between validations; each cycle end is validated too."""
    rows_per_stratum: PositiveInt
    """Held-out rows of each stratum."""


class Checkpoints(Strict):
    """Rolling checkpoints beside the kept ones (line start, cycle ends, schedule end)."""

    every_updates: PositiveInt
    """Updates between rolling checkpoints."""
    keep_last: PositiveInt = 2
    """Newest rolling checkpoints that stay."""


class Guards(Strict):
    """Limits that end or restart a trainer."""

    heartbeat_timeout_seconds: PositiveFloat = 1800.0
    """A trainer without a heartbeat for this long is killed and restarted."""
    max_nonfinite: PositiveInt = 20
    """Non-finite updates in a row that stop the line."""
    max_failures: PositiveInt = 5
    """Failures in a row without a new update after which the line is stuck."""
    backoff_seconds: float = Field(default=10.0, ge=0)
    """Wait before the first restart; it doubles with each failure without progress, up to ten minutes."""


class RunConfig(Strict):
    """The whole of run.json."""

    format: Literal["run/1"] = "run/1"
    """Format of the file."""
    model: Model
    """The model."""
    data: str
    """Absolute path of the data line."""
    schedule: list[SchedulePiece]
    """Learning-rate pieces; only appended to."""
    tokens_per_update: TokenCount
    """Tokens of an optimizer update; whole rows."""
    optimizer: Optimizer
    """The optimizer."""
    lengths: list[Length]
    """Row lengths in use with their shapes."""
    seed: int = Field(ge=0)
    """Seed of the initial weights."""
    exactness: Literal["exact"] = "exact"
    """exact: a resumed line repeats the bits of an uninterrupted one."""
    metrics: int = 1
    """Version of the metric set."""
    validation: Validation
    """Validation."""
    checkpoints: Checkpoints
    """Checkpoints."""
    guards: Guards = Guards()
    """Guards."""
    print_every: PositiveInt = 10
    """Updates between lines of run.log."""
    data_keep_cycles: int = Field(default=0, ge=0)
    """Trained cycles whose shards stay on disk."""
    threads: int = Field(default=1, ge=1, le=1024)
    """CPU threads of the trainer; the bits of a line depend on it."""
    allow_changes: list[str] = Field(default_factory=list)
    """Kept settings that were changed on purpose."""

    @property
    def rate_pieces(self) -> tuple[RatePiece, ...]:
        """The schedule as plain values."""
        return tuple(RatePiece(start=p.start, end=p.end, kind=p.kind) for p in self.schedule)

    @property
    def end_tokens(self) -> int | None:
        """Tokens at which the schedule ends, or None."""
        return end_of(self.rate_pieces)

    def dump(self) -> dict[str, Any]:
        """JSON values with the key names and the order users see."""
        return self.model_dump(mode="json", by_alias=True)


def _cross_checks(config: RunConfig, where: Path) -> list[str]:
    """Problems that one field alone does not show."""
    found = [f"{where}: {p}" for p in problems(config.rate_pieces, "schedule")]
    for index, piece in enumerate(config.schedule):
        if piece.kind != "constant" and piece.end is None:
            found.append(f"{where}: schedule[{index}].to: a {piece.kind} piece needs an end")
    if not Path(config.data).is_absolute():
        found.append(f"{where}: data: expected an absolute path, found {config.data!r}")
    if config.optimizer.min_lr > config.optimizer.peak_lr:
        found.append(f"{where}: optimizer.min_lr: must not be above peak_lr")
    for key, beta in zip(("betas.0", "betas.1"), config.optimizer.betas, strict=True):
        if not 0 <= beta < 1:
            found.append(f"{where}: optimizer.{key}: expected 0 <= beta < 1, found {beta}")
    if len(config.lengths) != 1:
        found.append(
            f"{where}: lengths: this version trains with one row length, found {len(config.lengths)}"
        )
    for shape in config.lengths:
        if config.tokens_per_update % shape.length or config.tokens_per_update < shape.length:
            found.append(
                f"{where}: tokens_per_update: expected a multiple of the row length {shape.length}, "
                f"found {config.tokens_per_update}"
            )
        if config.end_tokens is not None and config.end_tokens % shape.length:
            found.append(
                f"{where}: schedule: expected an end at a multiple of the row length {shape.length}, "
                f"found {config.end_tokens}"
            )
    known = (*KEPT_KEYS, DATA_IDENTITY)
    unknown = [key for key in config.allow_changes if key.split(".")[0] not in known]
    found += [
        f"{where}: allow_changes: {key!r} is not a kept setting ({', '.join(KEPT_KEYS)})" for key in unknown
    ]
    return found


def parse_run(value: dict[str, Any], where: Path) -> RunConfig:
    """Validate run.json's content; raises Refused listing every problem."""
    try:
        # JSON has no tuples, and strict mode would not make one of a list.
        config = RunConfig.model_validate_json(json.dumps(value))
    except ValidationError as error:
        raise Refused(validation_problems(error, where)) from None
    if found := _cross_checks(config, where):
        raise Refused(found)
    return config


def load_run(paths: LinePaths) -> RunConfig:
    """Read and validate a line's run.json."""
    if not paths.run_json.exists():
        raise Refused(
            f"{paths.root}: not a training line (no run.json); `nstrain new {paths.root}` makes one"
        )
    return parse_run(read_json(paths.run_json), paths.run_json)


def save_run(paths: LinePaths, config: RunConfig) -> None:
    """Write run.json."""
    write_json(paths.run_json, config.dump())


def _flatten(value: Any, key: str = "") -> dict[str, Any]:
    if isinstance(value, dict):
        return {k: v for name, item in value.items() for k, v in _flatten(item, f"{key}.{name}").items()}
    return {key.lstrip("."): value}


def _kept(run: dict[str, Any]) -> dict[str, Any]:
    kept = {key: run.get(key) for key in KEPT_KEYS if key != "lengths"}
    kept["lengths"] = [shape.get("length") for shape in run.get("lengths", [])]
    return _flatten(kept)


def check_kept(old: dict[str, Any], new: RunConfig, where: Path, *, tokens: int) -> list[str]:
    """Compare the copy of run.json in a checkpoint at `tokens` tokens with the present one.

    Returns the kept keys that changed with leave (for the record); raises Refused for the others, with old
    and new value and the way out. A schedule may only grow at its end, and its past never changes.
    """
    before, after = _kept(old), _kept(new.dump())
    changed = sorted(k for k in before.keys() | after.keys() if before.get(k) != after.get(k))
    allowed = set(new.allow_changes)
    refused = [
        f"{where}: {key}: a line keeps this setting; the checkpoint has {before.get(key)!r}, run.json has "
        f"{after.get(key)!r}. Restore it, or name {key!r} in allow_changes to change it on purpose"
        for key in changed
        if not {".".join(key.split(".")[:n]) for n in range(1, key.count(".") + 2)} & allowed
    ]
    refused += _schedule_problems(old.get("schedule", []), new, where, tokens)
    if refused:
        raise Refused(refused)
    return changed


def _schedule_problems(old: list[dict[str, Any]], new: RunConfig, where: Path, tokens: int) -> list[str]:
    pieces = new.dump()["schedule"]
    for index, piece in enumerate(old):
        found = pieces[index] if index < len(pieces) else None
        if found != piece and not (index == len(old) - 1 and _end_moved(piece, found, tokens)):
            return [
                f"{where}: schedule[{index}]: the schedule only grows at its end; "
                f"the checkpoint has {piece}, run.json has {found}"
            ]
    return []


def _end_moved(old: dict[str, Any], new: dict[str, Any] | None, tokens: int) -> bool:
    """Whether only the end of a constant last piece differs, and lies no earlier than what is trained."""
    if new is None or old["kind"] != "constant" or {**new, "to": None} != {**old, "to": None}:
        return False
    return new["to"] is None or new["to"] >= tokens
