"""`nstrain tune` on a line's folder: what it writes, what it says, and when it changes nothing."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import pytest
import torch

from deployments import cli
from tests.tools.run_json import run_json
from trainer_core.errors import DiskFull, Refused
from trainer_core.line.config import RunConfig, load_run
from trainer_core.line.files import read_json, read_jsonl
from trainer_core.line.lock import FileLock, held
from trainer_core.line.paths import LinePaths
from trainer_core.measure import tune as search
from trainer_core.measure.candidates import Candidate
from trainer_core.measure.shapes import TracedShape
from trainer_core.measure.tune_record import Device, read_record, untuned
from trainer_core.ops import tune as verb
from trainer_core.ops.tune import tune_line
from trainer_core.train.checkpoint import write_checkpoint

torch.set_num_threads(1)

GB = 10**9
Answer = Callable[[int, str], Mapping[str, Any]]


@pytest.fixture(autouse=True)
def quick_trace(monkeypatch: pytest.MonkeyPatch) -> None:
    """A trace that takes no time and fits everywhere."""

    def traced(settings: RunConfig, shape: Candidate) -> TracedShape:
        return TracedShape(shape=shape, problems=(), state_bytes=1, activation_bytes=1)

    monkeypatch.setattr(search, "trace", traced)


@pytest.fixture
def line(tmp_path: Path) -> LinePaths:
    """Updates of 8 rows of 16 tokens, in micro-batches of 4; keys in an order of their own."""
    paths = LinePaths(tmp_path / "line")
    paths.root.mkdir()
    model = {"layers": 1, "width": 16, "heads": 2, "ffn": 32}
    value = run_json(
        tokens_per_update=1.28e2,
        model={"name": "llama-nano-cpu", "family": "llama", "vocab_size": 64, "config": model},
        lengths=[{"rows": 4, "length": 16}],
    )
    paths.run_json.write_text(json.dumps(dict(reversed(value.items())), indent=7))
    return paths


def host(answer: Answer, kind: str = "cpu") -> Callable[[Mapping[str, Any]], Mapping[str, Any]]:
    """Processes of a host whose shapes behave as `answer` says."""

    def ask(request: Mapping[str, Any]) -> Mapping[str, Any]:
        if request["what"] == "device":
            return {"kind": kind, "name": kind.upper(), "total_bytes": 100 * GB, "free_bytes": 99 * GB}
        return answer(request["shape"]["rows"], request["shape"]["ac"])

    return ask


def larger_is_faster(rows: int, ac: str) -> Mapping[str, Any]:
    return {"tokens_per_second": 100.0 * rows, "peak_bytes": GB * rows}


def tune(paths: LinePaths, answer: Answer = larger_is_faster, **settings: Any) -> list[str]:
    said: list[str] = []
    tune_line(paths.root, ask=host(answer, settings.pop("kind", "cpu")), say=said.append, **settings)
    return said


def save(paths: LinePaths, update: int) -> None:
    paths.checkpoints.mkdir(exist_ok=True)
    where = {"cycle": 0, "part": 0, "row": 8 * update}
    state = {"update": update, "tokens": 128 * update, "position": where, "kept": None}
    write_checkpoint(paths, update, {}, state)


def test_the_shape_is_written_and_everything_else_stays(line: LinePaths) -> None:
    before = read_json(line.run_json)
    said = tune(line)
    after = read_json(line.run_json)
    assert after["lengths"] == [{"rows": 8, "length": 16, "ac": "none"}]
    assert list(after) == list(before) and list(after["lengths"][0])[:2] == ["rows", "length"]
    assert {**after, "lengths": None} == {**before, "lengths": None}
    assert "rows of 16: 8 rows with ac none instead of 4 rows with ac none: 800 tokens per CPU second" in (
        "\n".join(said)
    )
    assert not held(line.lock)


def test_the_record_lets_a_gpu_start(line: LinePaths) -> None:
    tune(line, kind="cuda")
    gpu, config, record = Device(kind="cuda", name="CUDA"), load_run(line), read_record(line)
    assert record is not None and record.clock == "wall"
    assert untuned(gpu, config, record, line) == []
    (length,) = record.lengths
    assert [(trial.rows, trial.peak_bytes, trial.problem) for trial in length.trials] == [
        (rows, GB * rows, None) for rows in (8, 4, 2, 1)
    ]
    assert length.trials[0].estimate_bytes is not None and length.trials[1].estimate_bytes is None


def test_a_reserve_is_left_to_others(line: LinePaths) -> None:
    tune(line, shared_gb=94.0)
    record = read_record(line)
    assert record is not None and (record.reserve_bytes, record.room_bytes) == (94 * GB, 5 * GB)
    assert read_json(line.run_json)["lengths"][0]["rows"] == 4
    assert record.lengths[0].trials[0].problem == ("takes 8.00 GB, which does not leave 5% of 5.00 GB free")


def test_a_line_that_has_trained_is_told_what_another_shape_means(line: LinePaths) -> None:
    save(line, 3)
    assert any("from update 4 on the line trains in the new shapes" in text for text in tune(line))
    (event,) = read_jsonl(line.events)
    assert (event["kind"], event["update"], event["tokens"]) == ("shapes_tuned", 3, 384)
    text = line.run_json.read_bytes()
    assert not any("new shapes" in text for text in tune(line)), "the same shape again"
    assert len(read_jsonl(line.events)) == 1 and line.run_json.read_bytes() == text


def test_a_new_line_is_not(line: LinePaths) -> None:
    save(line, 0)
    assert not any("new shapes" in text for text in tune(line))


def test_a_line_that_is_run_is_refused(line: LinePaths) -> None:
    before = line.run_json.read_bytes()
    with FileLock.acquire(line.lock, role="trunk"), pytest.raises(Refused, match="is being run by process"):
        tune(line)
    assert line.run_json.read_bytes() == before and not line.tune_json.exists()


def test_a_line_that_cannot_be_compiled_here_is_refused(
    line: LinePaths, monkeypatch: pytest.MonkeyPatch
) -> None:
    line.run_json.write_text(json.dumps(read_json(line.run_json) | {"compile": "model"}))
    monkeypatch.setenv("CXX", "/nowhere/c++")
    with pytest.raises(Refused, match=r"run\.json: compile: torch needs a C\+\+ compiler"):
        tune(line)
    assert not line.tune_json.exists()


def test_nobody_starts_the_line_meanwhile(line: LinePaths) -> None:
    def looks(rows: int, ac: str) -> Mapping[str, Any]:
        assert held(line.lock)
        return larger_is_faster(rows, ac)

    tune(line, looks)


def test_run_json_edited_meanwhile_is_not_written_over(line: LinePaths) -> None:
    def edits(rows: int, ac: str) -> Mapping[str, Any]:
        line.run_json.write_text(json.dumps(read_json(line.run_json) | {"seed": 7}))
        return larger_is_faster(rows, ac)

    with pytest.raises(Refused, match=r"run\.json: was edited while"):
        tune(line, edits)
    value = read_json(line.run_json)
    assert value["seed"] == 7 and value["lengths"][0]["rows"] == 4 and not line.tune_json.exists()


def test_nothing_changes_when_nothing_fits(line: LinePaths) -> None:
    before = line.run_json.read_bytes()
    with pytest.raises(Refused, match="no shape fits"):
        tune(line, lambda rows, ac: {"problem": "out of memory"})
    assert line.run_json.read_bytes() == before and not line.tune_json.exists() and not held(line.lock)


def test_an_end_between_the_two_files_leaves_a_shape_that_fits(
    line: LinePaths, monkeypatch: pytest.MonkeyPatch
) -> None:
    written: list[str] = []
    write = verb.write_json

    def full_after_one(path: Path, value: Any) -> None:
        if written:
            raise DiskFull("no space")
        written.append(path.name)
        write(path, value)

    monkeypatch.setattr(verb, "write_json", full_after_one)
    with pytest.raises(DiskFull):
        tune(line, kind="cuda")
    assert written == ["tune.json"]
    assert untuned(Device(kind="cuda", name="CUDA"), load_run(line), read_record(line), line) == []


def test_the_command(line: LinePaths, monkeypatch: pytest.MonkeyPatch, capsys, tmp_path: Path) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.delenv("NSTRAIN_HOST", raising=False)
    for value in ("-1", "nan", "inf"):
        assert cli.run(["tune", str(line.root), "--shared", value]) == 20
        assert "--shared" in capsys.readouterr().err
    assert cli.run(["tune", str(tmp_path)]) == 20 and "not a training line" in capsys.readouterr().err
    asked: dict[str, Any] = {}
    monkeypatch.setattr(verb, "tune_line", lambda root, **settings: asked.update(root=root, **settings))
    assert cli.run(["tune", str(line.root), "--shared", "2.5"]) == 0
    assert (asked["root"], asked["shared_gb"]) == (line.root, 2.5)
