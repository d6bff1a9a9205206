"""The search for the fastest micro-batch shape of every row length of a line, on the device of this host.

Candidates that cannot fit by the trace are left out; the others are measured, each in a process of its own;
the fastest that leaves a margin wins. Owns the order of measuring; reads and writes no file.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any, Literal

from trainer_core.errors import Refused
from trainer_core.gpu.arena import SLACK
from trainer_core.line.config import RunConfig
from trainer_core.measure.candidates import (
    MARGIN,
    Candidate,
    Trial,
    choose,
    rows_of_updates,
    shortlist,
    size_text,
    sizes,
)
from trainer_core.measure.shapes import TracedShape, capture_problems, line_shapes, trace
from trainer_core.measure.tune_record import Device
from trainer_core.models.registry import recomputation

SECONDS = 3.0
"""Time that the measured updates of a shape may take together."""

GPU_CONTEXT_BYTES = 3 << 29
"""Memory that a process and the display may have on a GPU that counts as free."""

Ask = Callable[[Mapping[str, Any]], Mapping[str, Any]]
"""Has a request answered by a process of its own (`trial_process.ask`)."""

Say = Callable[[str], None]


@dataclass(frozen=True, kw_only=True)
class Room:
    """The device and the memory on it that a shape may use."""

    device: Device
    """The device."""
    room_bytes: int
    """Memory for one shape, before the margin."""
    reserve_bytes: int
    """Memory left to others."""

    @property
    def clock(self) -> Literal["cpu", "wall"]:
        """The seconds that speeds are in."""
        return "cpu" if self.device.kind == "cpu" else "wall"

    def __str__(self) -> str:
        left = f", {size_text(self.reserve_bytes)} left to others" if self.reserve_bytes else ""
        usable = size_text(round((1 - MARGIN) * self.room_bytes))
        return f"{self.device.name}: shapes of up to {usable}{left}"


@dataclass(frozen=True, kw_only=True)
class Tuned:
    """The result for one row length."""

    best: Trial
    """The shape that won."""
    trials: tuple[Trial, ...]
    """Everything that was measured, in this order."""


def find_room(ask: Ask, reserve_bytes: int) -> Room:
    """Asks for the device and its memory. Raises Refused when nothing is left, or others use it already."""
    found = ask({"what": "device"})
    if "problem" in found:
        raise Refused(f"the device of this host cannot be used: {found['problem']}")
    device = Device(kind=found["kind"], name=found["name"])
    total, free = int(found["total_bytes"]), int(found["free_bytes"])
    if device.kind == "cpu":
        room = free - reserve_bytes
    else:
        room = total - SLACK - reserve_bytes
        if total - free > reserve_bytes + GPU_CONTEXT_BYTES:
            raise Refused(
                f"{device.name}: other processes use {size_text(total - free)} of its memory; tune when "
                "they have left, or leave them a reserve with --shared GB"
            )
    if room <= 0:
        raise Refused(
            f"--shared {reserve_bytes / 1e9:g}: {device.name} has {size_text(free)} free, nothing is left"
        )
    return Room(device=device, room_bytes=room, reserve_bytes=reserve_bytes)


def tune(config: RunConfig, room: Room, *, ask: Ask, say: Say) -> list[Tuned]:
    """The fastest shape of every length of run.json, in its order.

    Raises Refused when a shape cannot be captured, and when nothing fits for some length: then with every
    such length and why each of its shapes does not fit.
    """
    found, problems = [], []
    for present in line_shapes(config):
        search = _Search(config, room, present, ask, say)
        trials = search.run()
        best = choose(trials, room=room.room_bytes, present=present)
        if best is None:
            problems.append(_nothing_fits(present, search.smallest(), trials, room))
        else:
            found.append(Tuned(best=best, trials=tuple(trials)))
    if problems:
        raise Refused(problems)
    return found


class _Search:
    """The measuring of one row length."""

    def __init__(self, config: RunConfig, room: Room, present: Candidate, ask: Ask, say: Say) -> None:
        self._config, self._room, self._present = config, room, present
        self._ask, self._say = ask, say
        self._sizes = sizes(rows_of_updates(config.spans(), present.length), present.rows)
        model = config.model
        self._modes = recomputation(model.family, model.config, model.vocab_size)
        self._traced: dict[Candidate, TracedShape] = {}

    def run(self) -> list[Trial]:
        """Without recomputation first; it costs time and buys only larger micro-batches, so with more of it
        only those that are larger than what fits with less, and the line's own shape."""
        trials: list[Trial] = []
        for ac in self._modes:
            room = self._room.room_bytes
            largest = max((trial.candidate.rows for trial in trials if trial.fits(room)), default=0)
            own = self._present.rows if self._present.ac == ac else 0
            trials += self._measure_mode(ac, [r for r in self._sizes if r > largest or r == own])
        return trials

    def smallest(self) -> TracedShape:
        """The shape that needs least memory."""
        return self._trace(self._shape(self._sizes[-1], self._modes[-1]))

    def _measure_mode(self, ac: str, rows: Sequence[int]) -> list[Trial]:
        chosen = shortlist(
            rows,
            lambda size: self._trace(self._shape(size, ac)).peak_bytes <= self._room.room_bytes,
            present=self._present.rows if self._present.ac == ac else None,
        )
        return [self._measure(self._shape(size, ac)) for size in chosen]

    def _shape(self, rows: int, ac: str) -> Candidate:
        return Candidate(length=self._present.length, rows=rows, ac=ac)

    def _trace(self, candidate: Candidate) -> TracedShape:
        if candidate not in self._traced:
            traced = trace(self._config, candidate)
            if problems := capture_problems([traced]):
                raise Refused(problems)
            self._traced[candidate] = traced
        return self._traced[candidate]

    def _measure(self, candidate: Candidate) -> Trial:
        request = {
            "what": "measure",
            "run": self._config.dump(),
            "shape": asdict(candidate),
            "room_bytes": self._room.room_bytes,
            "seconds": SECONDS,
        }
        traced = self._traced.get(candidate)
        trial = Trial(
            candidate=candidate,
            estimate_bytes=traced.peak_bytes if traced else None,
            **_figures(self._ask(request)),
        )
        self._say(f"{candidate}: {describe(trial, self._room)}")
        return trial


def describe(trial: Trial, room: Room) -> str:
    """A measured shape, for people."""
    why = trial.why_not(room.room_bytes)
    if trial.tokens_per_second is None or trial.peak_bytes is None:
        return f"does not fit: {why}"
    unit = "tokens per CPU second" if room.clock == "cpu" else "tokens/s"
    speed = f"{trial.tokens_per_second:,.0f} {unit}, {size_text(trial.peak_bytes)}"
    return speed if why is None else f"{speed}, does not fit: {why}"


def _figures(found: Mapping[str, Any]) -> dict[str, Any]:
    if problem := found.get("problem"):
        return {"problem": str(problem)}
    return {
        "tokens_per_second": float(found["tokens_per_second"]),
        "peak_bytes": int(found["peak_bytes"]),
    }


def _nothing_fits(present: Candidate, smallest: TracedShape, trials: list[Trial], room: Room) -> str:
    """Why a length has no shape: every measured one, or the smallest by its estimate."""
    shapes: dict[str | None, list[str]] = {}
    for trial in trials:
        shapes.setdefault(trial.why_not(room.room_bytes), []).append(str(trial.candidate))
    tried = [f"{', '.join(alike)} {why}" for why, alike in shapes.items()]
    if not tried:
        tried = [f"{smallest.shape} needs about {size_text(smallest.peak_bytes)}"]
    return (
        f"rows of {present.length}: no shape fits {room.device.name} with {size_text(room.room_bytes)}: "
        f"{'; '.join(tried)}. Use a smaller model, shorter rows, or a device with more memory"
    )
