"""Runs updates of a workload on the engine that a line would get, and times them and their parts.

Owns the workload, the rig that runs it and its clocks; judges and prints nothing. Rows are random tokens of a
fixed seed: speed does not depend on them, and every contender of a comparison gets the same.
"""

from __future__ import annotations

import time
from collections import defaultdict
from collections.abc import Hashable, Mapping
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from trainer_core.engine.assemble import Compile, Precision, make_step
from trainer_core.engine.backends.protocol import GraphBackend, Part, Wait
from trainer_core.engine.determinism import Exactness, exactness_of
from trainer_core.engine.flat import FlatState
from trainer_core.engine.step import Step, UpdateResult, UpdateScalars
from trainer_core.errors import Refused
from trainer_core.line.run_checks import MOST_MICRO_TOKENS, too_many_tokens
from trainer_core.models.base import Model
from trainer_core.models.preset import longest_row
from trainer_core.models.presets import find_preset
from trainer_core.models.registry import build, recomputation

SCALARS = UpdateScalars(lr=1e-3, weight_decay=0.1, clip=1.0, beta1=0.9, beta2=0.95, eps=1e-8)
"""Settings of every update that is measured, and of every contender."""


WARM_UP = 2
"""Updates before those that are timed."""


@dataclass(frozen=True, kw_only=True)
class Workload:
    """What one update consists of."""

    model: str
    """Preset, or family when `config` is all of its configuration."""
    vocab_size: int
    """Number of token ids."""
    seq_len: int
    """Tokens of a row."""
    rows: int
    """Rows of a micro-batch."""
    accum: int = 1
    """Micro-batches of an update."""
    ac: str = "none"
    """What the backward pass recomputes."""
    precision: Precision = "fp32"
    """bf16 computes on rounded weights."""
    ema: bool = False
    """Whether an average of the weights is kept."""
    compile: Compile = "none"
    """What torch compiles."""
    exactness: Exactness = "exact"
    """fast lets operators add in any order."""
    device: str = "cpu"
    """Device in torch's words."""
    config: Mapping[str, Any] | None = None
    """Configuration of the family, or what overrides the preset's."""
    seed: int = 0
    """Of the weights and the rows."""

    @property
    def tokens(self) -> int:
        """Tokens of an update."""
        return self.seq_len * self.rows * self.accum

    @property
    def batch_bytes(self) -> int:
        """Bytes of the rows of an update on the host."""
        return 8 * (self.seq_len + 1) * self.rows * self.accum

    def build(self) -> Model:
        """The model with its initial weights; under torch.device("meta") only its shapes."""
        return build(self.model, self.config, self.vocab_size, self.seed)

    def batches(self, updates: int) -> list[list[Tensor]]:
        """The micro-batches [rows, seq_len + 1] of each update, int64 on the host."""
        generator = torch.Generator("cpu").manual_seed(self.seed)
        shape = (updates, self.accum, self.rows, self.seq_len + 1)
        ids = torch.randint(self.vocab_size, shape, generator=generator, dtype=torch.int64, device="cpu")
        return [list(update.unbind()) for update in ids.unbind()]


def preset_workload(name: str, **settings: Any) -> Workload:
    """The workload of a preset at its own vocabulary; what is None is its default. Raises Refused."""
    preset = find_preset(name)
    defaults = {"seq_len": preset.training["row_length"], "rows": preset.training["rows"]}
    given = {key: value for key, value in settings.items() if value is not None}
    workload = Workload(model=name, vocab_size=preset.vocab_size, **defaults | given)
    problems = [
        f"--{key.replace('_', '-')} {getattr(workload, key)}: expected at least 1"
        for key in ("seq_len", "rows", "accum")
        if getattr(workload, key) < 1
    ]
    if workload.rows * workload.seq_len > MOST_MICRO_TOKENS:
        problems.append(f"--rows: {too_many_tokens(workload.rows, workload.seq_len)}")
    longest = longest_row(preset.config)
    if longest is not None and workload.seq_len > longest:
        problems.append(f"--seq-len {workload.seq_len}: {name} takes rows of at most {longest} tokens")
    modes = recomputation(preset.family, preset.config, preset.vocab_size)
    if workload.ac not in modes:
        problems.append(f"--ac {workload.ac}: {preset.family} can recompute {', '.join(modes)}")
    if torch.device(workload.device).type == "cuda" and not torch.cuda.is_available():
        problems.append(
            f"--device {workload.device}: torch sees no GPU; `nstrain doctor` says what is missing"
        )
    if problems:
        raise Refused(problems)
    return workload


class TimedBackend:
    """A backend that notes how long each kind of part took: CPU seconds, or a GPU's own clock."""

    def __init__(self, inner: GraphBackend, device: torch.device) -> None:
        self._inner = inner
        self._on_gpu = device.type == "cuda"
        self._spans: list[tuple[str, Any, Any]] = []

    def replay(self, key: Hashable) -> None:
        begin = self._now()
        self._inner.replay(key)
        self._spans.append((str(key[0] if isinstance(key, tuple) else key), begin, self._now()))

    def take_seconds(self) -> dict[str, float]:
        """Seconds by kind of part since the last call. On a GPU the device must be idle."""
        seconds: dict[str, float] = defaultdict(float)
        for kind, begin, end in self._spans:
            seconds[kind] += begin.elapsed_time(end) / 1e3 if self._on_gpu else end - begin
        self._spans.clear()
        return dict(seconds)

    def active(self) -> AbstractContextManager[None]:
        return self._inner.active()

    def capture(self, part: Part) -> None:
        self._inner.capture(part)

    def release(self) -> None:
        self._inner.release()

    def host_buffer(self, size: int, dtype: torch.dtype) -> Tensor:
        return self._inner.host_buffer(size, dtype)

    def mark(self) -> Wait:
        return self._inner.mark()

    def _now(self) -> Any:
        if not self._on_gpu:
            return time.process_time()
        event = torch.cuda.Event(enable_timing=True)  # type: ignore[no-untyped-call]
        event.record()
        return event


@dataclass(frozen=True, kw_only=True)
class Measured:
    """The times of some updates."""

    losses: tuple[float, ...]
    """Loss of each update, the untimed first ones included."""
    wall_seconds: float
    """Seconds of an update, mean over all timed ones."""
    cpu_seconds: float
    """CPU seconds of this process in its best update."""
    part_seconds: Mapping[str, float]
    """Seconds of an update by kind of part (micro, norm, update): CPU seconds, or a GPU's; its best."""


class Rig:
    """An engine over a workload, ready to run updates."""

    def __init__(self, workload: Workload) -> None:
        self.workload = workload
        self.model = workload.build()
        self.timed: TimedBackend
        self.state: FlatState
        self.step: Step
        self.state, self.step = make_step(
            self.model,
            device=workload.device,
            precision=workload.precision,
            ema=workload.ema,
            recompute={workload.seq_len: workload.ac},
            compile=workload.compile,
            wrap=self._time,
        )

    def update(self, batches: list[Tensor]) -> UpdateResult:
        """One update, waited for."""
        return self.step.update(batches, SCALARS)

    def measure(self, updates: int = 5, warm_up: int = WARM_UP) -> Measured:
        """Times updates after some that are not timed; results are read one update late, as lines do."""
        batches = self.workload.batches(warm_up + updates)
        losses: list[float] = []
        walls, cpus, parts = [], [], []
        with exactness_of(self.workload.exactness):
            for index, batch in enumerate(batches):
                if index in (0, warm_up):
                    losses += [result.loss for result in self.step.results()]
                    wait_for(self.state.device)
                    self.timed.take_seconds()
                wall, cpu = time.perf_counter(), time.process_time()
                self.step.submit(batch, SCALARS)
                losses += [result.loss for result in self.step.results(lag=1)]
                if index >= warm_up:
                    walls.append(time.perf_counter() - wall)
                    cpus.append(time.process_time() - cpu)
                    if self.state.device.type == "cpu":
                        parts.append(self.timed.take_seconds())
            wall = time.perf_counter()
            losses += [result.loss for result in self.step.results()]
            wait_for(self.state.device)
            walls[-1] += time.perf_counter() - wall
        if not parts:
            parts = [{kind: s / updates for kind, s in self.timed.take_seconds().items()}]
        return Measured(
            losses=tuple(losses),
            wall_seconds=sum(walls) / updates,
            cpu_seconds=min(cpus),
            part_seconds={kind: min(part[kind] for part in parts) for kind in parts[0]},
        )

    def _time(self, backend: GraphBackend) -> GraphBackend:
        self.timed = TimedBackend(backend, torch.device(self.workload.device))
        return self.timed


def wait_for(device: torch.device) -> None:
    """Returns when the device has done everything that it was asked."""
    if device.type == "cuda":
        torch.cuda.synchronize(device)
