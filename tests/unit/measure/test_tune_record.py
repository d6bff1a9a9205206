"""Whether a start may rely on the shapes of a line: by device, run.json and what was measured."""

import json
from pathlib import Path

import pytest

from tests.tools.run_json import run_json
from trainer_core.errors import Refused
from trainer_core.line.config import parse_run
from trainer_core.line.paths import LinePaths
from trainer_core.measure.tune_record import (
    Device,
    LengthRecord,
    TrialRecord,
    TuneRecord,
    read_record,
    refuse_untuned,
    settings_digest,
    untuned,
)

GPU = Device(kind="cuda", name="NVIDIA H200")
CPU = Device(kind="cpu", name="CPU")


@pytest.fixture
def paths(tmp_path) -> LinePaths:
    return LinePaths(tmp_path / "my line")


def config(**changes):
    return parse_run(run_json(**changes), Path("run.json"))


def trial(rows: int, problem: str | None = None) -> TrialRecord:
    return TrialRecord(
        rows=rows,
        ac="none",
        estimate_bytes=None,
        peak_bytes=None if problem else 1,
        tokens_per_second=None if problem else 1.0,
        problem=problem,
    )


def record(of=None, device: Device = GPU) -> TuneRecord:
    """Two shapes of rows of 16: micro-batches of 4 fit, of 8 do not."""
    return TuneRecord(
        time=1.0,
        device=device,
        clock="wall",
        room_bytes=10,
        reserve_bytes=0,
        settings=settings_digest(of or config()),
        lengths=[LengthRecord(length=16, rows=4, ac="none", trials=[trial(8, "out of memory"), trial(4)])],
    )


def test_a_cpu_takes_any_shape_and_reads_no_record(paths) -> None:
    assert untuned(CPU, config(), None, paths) == []
    paths.root.mkdir()
    paths.tune_json.write_text("damaged")
    refuse_untuned(CPU, config(), paths)


def test_a_gpu_takes_a_shape_that_was_found_to_fit(paths) -> None:
    assert untuned(GPU, config(), record(), paths) == []


def test_a_gpu_is_refused_without_a_record_and_the_command_is_named(paths) -> None:
    (problem,) = untuned(GPU, config(), None, paths)
    assert "NVIDIA H200" in problem and f"`nstrain tune '{paths.root}'`" in problem
    with pytest.raises(Refused, match="nstrain tune"):
        refuse_untuned(GPU, config(), paths)


@pytest.mark.parametrize(
    ("lengths", "named"),
    [
        ([{"length": 16, "rows": 8}], "lengths[0]: 8 rows of 16"),
        ([{"length": 16, "rows": 2}], "lengths[0]: 2 rows of 16"),
        ([{"length": 16, "rows": 4, "ac": "full"}], "ac 'full'"),
    ],
    ids=["measured, does not fit", "not measured", "another recomputation"],
)
def test_a_shape_that_was_not_found_to_fit(paths, lengths, named) -> None:
    (problem,) = untuned(GPU, config(lengths=lengths), record(), paths)
    assert named in problem and "nstrain tune" in problem


def test_every_length_needs_one(paths) -> None:
    grown = config(
        schedule=[
            {"from": 0, "to": 640, "kind": "constant"},
            {"from": 640, "to": None, "kind": "constant", "length": 32},
        ],
        lengths=[{"length": 16, "rows": 4}, {"length": 32, "rows": 2}],
    )
    (problem,) = untuned(GPU, grown, record(), paths)
    assert "lengths[1]: 2 rows of 32" in problem


def test_another_gpu_or_other_settings(paths) -> None:
    (problem,) = untuned(Device(kind="cuda", name="NVIDIA H100"), config(), record(), paths)
    assert "measured on NVIDIA H200, this is NVIDIA H100" in problem
    larger = config(model=run_json()["model"] | {"config": {"layers": 2}})
    (problem,) = untuned(GPU, larger, record(), paths)
    assert "other settings (model, precision, compile, exactness, ema)" in problem
    assert untuned(GPU, config(seed=1, threads=2), record(), paths) == [], "these change no memory"


@pytest.mark.parametrize(
    "changes",
    [
        {"precision": "bf16"},
        {"compile": "model"},
        {"ema": {"horizon_tokens": 640, "from_tokens": 0}},
    ],
    ids=str,
)
def test_settings_that_figures_depend_on(changes) -> None:
    assert settings_digest(config(**changes)) != settings_digest(config())


def test_the_file_gives_back_the_record_and_a_damaged_one_is_named(paths) -> None:
    paths.root.mkdir()
    assert read_record(paths) is None
    value = record().model_dump(mode="json")
    paths.tune_json.write_text(json.dumps(value | {"a key of later": 1}))
    assert read_record(paths) == record()
    paths.tune_json.write_text(json.dumps(value | {"clock": "sun"}))
    with pytest.raises(Refused, match=r"tune\.json: clock: .*nstrain tune"):
        read_record(paths)
    for damaged in (b'{"format":', b"[]", b"\xff\xff"):
        paths.tune_json.write_bytes(damaged)
        with pytest.raises(Refused, match=r"tune\.json: .*nstrain tune '.*'` makes it again"):
            read_record(paths)
