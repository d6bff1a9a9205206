"""run.json: the configuration of a training line, strict, with every problem reported at once.

Users edit this file; `new` writes it. What one field alone does not show is in run_checks.py, what a line
keeps for its life in kept.py.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import (
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    PlainSerializer,
    PositiveFloat,
    PositiveInt,
    ValidationError,
)

from trainer_core.complaints import validation_problems
from trainer_core.errors import Refused
from trainer_core.line.files import read_json, write_json
from trainer_core.line.kept import compile_word
from trainer_core.line.no_line import require_line
from trainer_core.line.paths import LinePaths
from trainer_core.line.run_checks import cross_checks
from trainer_core.schedule.batch import UpdateSpan, update_spans
from trainer_core.schedule.pieces import ValuePiece, end_of, piece_at, runs
from trainer_core.schedule.rates import RatePiece
from trainer_core.schedule.tokens import TokenCount, parse_tokens

MOST_THREADS = 1024
"""CPU threads that a trainer or a measurement may have."""


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
    length: PositiveInt | None = None
    """Row length of the updates that begin in it; None: the first one of `lengths`."""


class BatchPiece(Strict):
    """One piece of the batch-size ramp, by tokens trained."""

    start: TokenCount = Field(alias="from")
    """Tokens at which the piece begins."""
    end: TokenCount | None = Field(alias="to")
    """Tokens at which it ends; null in an open last piece."""
    tokens: Annotated[TokenCount, Field(gt=0)]
    """Tokens of the updates that begin in it."""


def _batch_pieces(value: Any) -> Any:
    """One number is one open piece."""
    if isinstance(value, list):
        return value
    return [{"from": 0, "to": None, "tokens": parse_tokens(value)}]


def _batch_form(pieces: list[BatchPiece]) -> Any:
    """One open piece is written as its number."""
    if [(piece.start, piece.end) for piece in pieces] == [(0, None)]:
        return pieces[0].tokens
    return [{"from": piece.start, "to": piece.end, "tokens": piece.tokens} for piece in pieces]


Batch = Annotated[list[BatchPiece], BeforeValidator(_batch_pieces), PlainSerializer(_batch_form)]
"""A number of tokens, or a list of pieces."""


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


class Average(Strict):
    """A moving average of the parameters, kept and validated beside them."""

    horizon_tokens: Annotated[TokenCount, Field(gt=0)]
    """Tokens that the average looks back: an update moves it by the update's tokens over these."""
    from_tokens: TokenCount
    """Tokens trained up to which the average is a copy of the parameters."""


Compile = Annotated[Literal["none", "cross_entropy", "model"], BeforeValidator(compile_word)]
"""What torch compiles."""


class Length(Strict):
    """One row length and its micro-batch shape."""

    length: PositiveInt
    """Tokens of a row."""
    rows: PositiveInt
    """Rows of a micro-batch."""
    ac: str = "none"
    """Activation recomputation: none, full, or another mode that the model's family has."""


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
    """Learning-rate pieces with their row lengths; only appended to."""
    tokens_per_update: Batch
    """Tokens of an optimizer update, whole rows: a number, or pieces that are only appended to."""
    optimizer: Optimizer
    """The optimizer."""
    lengths: list[Length]
    """Row lengths in use with their shapes; the first is that of schedule pieces that name none."""
    seed: int = Field(ge=0)
    """Seed of the initial weights."""
    precision: Literal["fp32", "bf16"] = "fp32"
    """fp32: the model computes on the weights; bf16: on weights rounded to bfloat16 after every update."""
    compile: Compile = "none"
    """What torch compiles: nothing, the loss of the head on a CPU (seconds), the whole model (minutes)."""
    ema: Average | None = None
    """Moving average of the parameters, or none."""
    exactness: Literal["exact", "fast"] = "exact"
    """exact: a resumed line repeats the bits of an uninterrupted one; fast: on a GPU it need not."""
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
    threads: int = Field(default=1, ge=1, le=MOST_THREADS)
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

    @property
    def batch_pieces(self) -> tuple[ValuePiece, ...]:
        """Tokens per update by tokens trained."""
        return tuple(ValuePiece(start=p.start, end=p.end, value=p.tokens) for p in self.tokens_per_update)

    @property
    def length_pieces(self) -> tuple[ValuePiece, ...]:
        """Row length of each schedule piece."""
        first = self.lengths[0].length
        return tuple(ValuePiece(start=p.start, end=p.end, value=p.length or first) for p in self.schedule)

    def batch(self, tokens: int) -> int:
        """Tokens of the update that begins at a token count."""
        return piece_at(self.batch_pieces, tokens).value

    def row_length(self, tokens: int) -> int:
        """Row length of the update that begins at a token count."""
        return piece_at(self.length_pieces, tokens).value

    def shape(self, row_length: int) -> Length:
        """The shape of a row length in use."""
        return next(shape for shape in self.lengths if shape.length == row_length)

    def spans(self) -> tuple[UpdateSpan, ...]:
        """The updates of the line, from its first on."""
        return update_spans(self.batch_pieces, self.length_pieces, end=self.end_tokens)

    def consumer_schedules(self) -> dict[str, list[dict[str, int | None]]]:
        """What the data line is told: `row_lengths` and `batch`, open at the end, no equal neighbours."""
        lengths, batches = runs(self.length_pieces), runs(self.batch_pieces)
        return {
            "row_lengths": [{"from": p.start, "to": p.end, "length": p.value} for p in lengths],
            "batch": [{"from": p.start, "to": p.end, "tokens": p.value} for p in batches],
        }

    def dump(self) -> dict[str, Any]:
        """JSON values with the key names and the order users see; a row length only where one is named."""
        value = self.model_dump(mode="json", by_alias=True)
        for piece in value["schedule"]:
            if piece["length"] is None:
                del piece["length"]
        return value


def parse_run(value: dict[str, Any], where: Path) -> RunConfig:
    """Validate run.json's content; raises Refused listing every problem."""
    try:
        # JSON has no tuples, and strict mode would not make one of a list.
        config = RunConfig.model_validate_json(json.dumps(value))
    except ValidationError as error:
        raise Refused(validation_problems(error, where)) from None
    if found := cross_checks(config, where):
        raise Refused(found)
    return config


def load_run(paths: LinePaths) -> RunConfig:
    """Read and validate a line's run.json."""
    require_line(paths.root)
    return parse_run(read_json(paths.run_json), paths.run_json)


def save_run(paths: LinePaths, config: RunConfig) -> None:
    """Write run.json."""
    write_json(paths.run_json, config.dump())
