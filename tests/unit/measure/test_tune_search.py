"""The search for shapes, with processes that are made up: what is measured, in which order, what is said."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import pytest
import torch

from tests.tools.run_json import run_json
from trainer_core.engine.capture_check import CaptureReport, check_capture
from trainer_core.errors import Refused
from trainer_core.gpu.arena import SLACK
from trainer_core.line.config import RunConfig, parse_run
from trainer_core.measure import shapes
from trainer_core.measure import tune as search
from trainer_core.measure.candidates import Candidate
from trainer_core.measure.shapes import TracedShape, line_shapes, micro_rows, trace
from trainer_core.measure.tune import Room, find_room, tune
from trainer_core.measure.tune_record import Device

torch.set_num_threads(1)

MODEL = {"layers": 1, "width": 16, "heads": 2, "ffn": 32}
GB = 10**9
STAGES = {
    "schedule": [
        {"from": 0, "to": 1280, "kind": "constant"},
        {"from": 1280, "to": None, "kind": "constant", "length": 32},
    ],
    "lengths": [{"length": 16, "rows": 4}, {"length": 32, "rows": 2}],
}


def config(**changes: Any) -> RunConfig:
    """Updates of 8 rows of 16 tokens."""
    model = {"name": "llama-nano-cpu", "family": "llama", "vocab_size": 64, "config": MODEL}
    return parse_run(run_json(model=model, tokens_per_update=128, **changes), Path("run.json"))


def room(size: int = 100 * GB) -> Room:
    return Room(device=Device(kind="cpu", name="CPU"), room_bytes=size, reserve_bytes=0)


def estimate(rows: int, ac: str) -> int:
    """Peak bytes of the made-up trace."""
    return 10**6 + rows * {"none": 10**5, "scan": 8 * 10**4, "full": 6 * 10**4}[ac]


@pytest.fixture(autouse=True)
def quick_trace(monkeypatch: pytest.MonkeyPatch) -> None:
    """A trace that takes no time."""

    def traced(settings: RunConfig, shape: Candidate) -> TracedShape:
        size = estimate(shape.rows, shape.ac)
        return TracedShape(shape=shape, problems=(), state_bytes=10**6, activation_bytes=size - 10**6)

    monkeypatch.setattr(search, "trace", traced)


class Processes:
    """Answers as a device whose speed and memory follow rows and mode; remembers what it was asked."""

    def __init__(self, answer: Callable[[int, str], Mapping[str, Any]]) -> None:
        self.answer = answer
        self.asked: list[str] = []

    def __call__(self, request: Mapping[str, Any]) -> Mapping[str, Any]:
        shape = Candidate(**request["shape"])
        self.asked.append(str(shape))
        assert request["run"]["model"]["config"] == MODEL and request["room_bytes"] > 0
        return self.answer(shape.rows, shape.ac)


def ran(speed: float, peak: int = GB) -> dict[str, Any]:
    return {"tokens_per_second": speed, "peak_bytes": peak}


def run(processes: Processes, settings: RunConfig, size: int = 100 * GB) -> tuple[list[str], list[str]]:
    said: list[str] = []
    found = tune(settings, room(size), ask=processes, say=said.append)
    return [str(tuned.best.candidate) for tuned in found], said


def test_recomputation_is_measured_only_for_larger_micro_batches() -> None:
    processes = Processes(lambda rows, ac: ran(100.0 * rows))
    assert run(processes, config())[0] == ["8 x 16 (ac none)"]
    assert processes.asked == [f"{rows} x 16 (ac none)" for rows in (8, 4, 2, 1)]

    def device(rows: int, ac: str) -> Mapping[str, Any]:
        return {"problem": "out of memory"} if ac == "none" and rows > 2 else ran(100.0 * rows)

    processes = Processes(device)
    best, said = run(processes, config())
    assert best == ["8 x 16 (ac full)"]
    assert processes.asked[4:] == ["8 x 16 (ac full)", "4 x 16 (ac full)"]
    assert said[0] == "8 x 16 (ac none): does not fit: out of memory"
    assert said[2] == "2 x 16 (ac none): 200 tokens per CPU second, 1.00 GB"


def test_each_mode_is_measured_for_what_only_it_makes_fit(monkeypatch: pytest.MonkeyPatch) -> None:
    """A family of three modes, of which each fits twice the rows."""
    limits = {"none": 1, "scan": 2, "full": 4}
    monkeypatch.setattr(search, "recomputation", lambda *_: tuple(limits))

    def device(rows: int, ac: str) -> Mapping[str, Any]:
        return ran(100.0 * rows) if rows <= limits[ac] else {"problem": "out of memory"}

    processes = Processes(device)
    best, _ = run(processes, config())
    assert best == ["4 x 16 (ac full)"]
    asked = {ac: [a.split()[0] for a in processes.asked if f"ac {ac})" in a] for ac in limits}
    assert asked == {"none": ["8", "4", "2", "1"], "scan": ["8", "4", "2"], "full": ["8", "4"]}


def test_the_shape_of_the_line_is_measured_whatever_it_is() -> None:
    processes = Processes(lambda rows, ac: ran(100.0 if (rows, ac) == (5, "full") else 10.0 * rows))
    best, _ = run(processes, config(lengths=[{"length": 16, "rows": 5, "ac": "full"}]))
    assert best == ["5 x 16 (ac full)"] and processes.asked[-1] == "5 x 16 (ac full)"


def test_every_length_gets_its_shape() -> None:
    processes = Processes(lambda rows, ac: ran(100.0 / rows))
    assert run(processes, config(**STAGES))[0] == ["1 x 16 (ac none)", "1 x 32 (ac none)"]


def test_what_cannot_fit_by_its_estimate_is_never_measured() -> None:
    assert estimate(2, "none") < estimate(4, "full") < estimate(4, "none"), "the test needs this order"
    processes = Processes(lambda rows, ac: ran(100.0 * rows, peak=1))
    best, _ = run(processes, config(), estimate(4, "full"))
    assert processes.asked == ["2 x 16 (ac none)", "1 x 16 (ac none)", "4 x 16 (ac full)"]
    assert best == ["4 x 16 (ac full)"]


def test_when_nothing_fits_every_length_says_why() -> None:
    processes = Processes(lambda rows, ac: {"problem": "did not end within 9 seconds"})
    with pytest.raises(Refused) as refused:
        run(processes, config(**STAGES))
    assert len(refused.value.problems) == 2
    assert "rows of 16: no shape fits CPU" in refused.value.problems[0]
    assert "8 x 16 (ac none), 4 x 16 (ac none), " in refused.value.problems[0]
    assert refused.value.problems[0].count("did not end within 9 seconds") == 1, "what is alike is said once"
    assert "1 x 32 (ac full) did not end within 9 seconds" in refused.value.problems[1]
    with pytest.raises(Refused, match=r"1 x 16 \(ac full\) needs about 1\.1 MB"):
        run(processes, config(), size=10)


def test_a_model_that_cannot_be_captured_is_refused_before_anything_is_measured(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    processes = Processes(lambda rows, ac: ran(1.0))
    monkeypatch.setattr(search, "trace", _with_a_problem)
    with pytest.raises(Refused, match=r"8 x 16 \(ac none\): micro 8 17: host-sync: aten.equal"):
        run(processes, config())
    assert processes.asked == []


def _with_a_problem(settings: RunConfig, shape: Candidate) -> Any:
    problem = f"micro {shape.rows} {shape.length + 1}: host-sync: aten.equal: a value is read"
    return TracedShape(shape=shape, problems=(problem,), state_bytes=1, activation_bytes=1)


@pytest.mark.parametrize(
    ("rows", "counts", "expected"),
    [(4, 128, (4,)), (3, 128, (3, 2)), (16, 128, (8,))],
)
def test_micro_batches_of_a_line_are_traced_with_their_short_ones(rows, counts, expected) -> None:
    settings = config(lengths=[{"length": 16, "rows": rows}])
    (shape,) = line_shapes(settings)
    assert micro_rows(settings, shape) == expected


def test_rows_that_no_update_and_no_validation_has_are_not_traced(monkeypatch: pytest.MonkeyPatch) -> None:
    traced: dict[str, Any] = {}

    def check(model: object, loss: object, **settings: Any) -> CaptureReport:
        traced.update(settings)
        return check_capture(model, loss, **settings)  # type: ignore[arg-type]

    monkeypatch.setattr(shapes, "check_capture", check)
    more = trace(config(), Candidate(length=16, rows=10**6, ac="none"))
    assert (traced["micro"], traced["evaluations"]) == ([(8, 16)], [(2, 16)])
    assert more.peak_bytes == trace(config(), Candidate(length=16, rows=8, ac="none")).peak_bytes


def test_average_and_shadow_are_counted() -> None:
    shape = Candidate(length=16, rows=4, ac="none")
    plain = trace(config(), shape)
    both = trace(config(ema={"horizon_tokens": 640, "from_tokens": 0}, precision="bf16"), shape)
    assert plain.problems == both.problems == ()
    assert both.state_bytes * 16 == pytest.approx(plain.state_bytes * 22, rel=1e-3)
    assert trace(config(), Candidate(length=16, rows=8, ac="none")).peak_bytes > plain.peak_bytes


def device(kind: str, total: int, free: int) -> Callable[[Mapping[str, Any]], Mapping[str, Any]]:
    return lambda request: {"kind": kind, "name": kind.upper(), "total_bytes": total, "free_bytes": free}


def test_the_room_of_a_device() -> None:
    assert find_room(device("cpu", 20 * GB, 8 * GB), 0).room_bytes == 8 * GB
    assert find_room(device("cpu", 20 * GB, 8 * GB), 3 * GB).room_bytes == 5 * GB
    gpu = find_room(device("cuda", 100 * GB, 99 * GB), 10 * GB)
    assert gpu.room_bytes == 90 * GB - SLACK and gpu.clock == "wall"
    assert str(gpu) == "CUDA: shapes of up to 81.42 GB, 10.00 GB left to others"


@pytest.mark.parametrize(
    ("asked", "reserve", "said"),
    [
        (device("cpu", 20 * GB, 8 * GB), 8 * GB, "nothing is left"),
        (device("cuda", 100 * GB, 70 * GB), 20 * GB, "other processes use 30.00 GB"),
        (lambda request: {"problem": "crashed: exit code 1: no driver"}, 0, "no driver"),
    ],
)
def test_a_device_without_room(asked, reserve, said) -> None:
    with pytest.raises(Refused, match=said):
        find_room(asked, reserve)


def test_others_may_use_their_reserve() -> None:
    assert find_room(device("cuda", 100 * GB, 70 * GB), 30 * GB).reserve_bytes == 30 * GB
