"""The verbs of a line as a person types them: what they refuse, and what they say will happen."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest

from deployments import cli
from deployments.cli.questions import status_lines
from tests.tools.run_json import run_json
from trainer_core.line import checkpoints
from trainer_core.line.ledger import Ledger
from trainer_core.line.lock import FileLock
from trainer_core.line.paths import LinePaths
from trainer_core.line.stop import read_stop
from trainer_core.train.checkpoint import write_checkpoint


@pytest.fixture
def line(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> LinePaths:
    """A line at update 10, cycle 1, that nobody runs."""
    (tmp_path / "host.json").write_text("{}")
    monkeypatch.setenv("NSTRAIN_HOST", str(tmp_path / "host.json"))
    paths = LinePaths(tmp_path / "line")
    paths.root.mkdir()
    paths.run_json.write_text(json.dumps(run_json(data=str(tmp_path / "data"))))
    row = {"tokens": 640, "cycle": 1, "train/loss": 2.0, "seconds": {"train": 1.0}}
    Ledger(paths.metrics, attempt=1).append("update", 10, row)
    return paths


def save(paths: LinePaths, update: int) -> Path:
    paths.checkpoints.mkdir(exist_ok=True)
    where = {"cycle": 1, "part": 0, "row": 0}
    state = {"update": update, "tokens": 64 * update, "position": where, "kept": None}
    write_checkpoint(paths, update, {}, state)
    return paths.checkpoint(update)


@pytest.mark.parametrize("verb", ["check", "run", "status", "logs", "stop", "verify"])
def test_a_verb_without_its_line_speaks_of_run(verb: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.run([verb]) == 20
    message = capsys.readouterr().err
    assert "RUN" in message and "--run" not in message


@pytest.mark.parametrize(
    ("arguments", "named"),
    [
        (["run", "RUN", "--cycles", "0"], ["--cycles 0"]),
        (
            ["run", "RUN", "--cycles", "-1", "--inline", "--foreground"],
            ["--cycles -1", "--inline and --foreground"],
        ),
        (["run", "RUN", "--no-wait"], ["--no-wait"]),
        (["stop", "RUN", "--at-update", "-1"], ["--at-update -1"]),
        (["stop", "RUN", "--at-cycle-end", "-3"], ["--at-cycle-end -3"]),
        (
            ["stop", "RUN", "--at-cycle-end", "1", "--at-update", "1"],
            ["--at-cycle-end and --at-update"],
        ),
        (["logs", "RUN", "--lines", "0"], ["--lines 0"]),
    ],
)
def test_numbers_that_make_no_sense(
    line: LinePaths, capsys: pytest.CaptureFixture[str], arguments: list[str], named: list[str]
) -> None:
    assert cli.run([str(line.root) if word == "RUN" else word for word in arguments]) == 20
    problems = capsys.readouterr().err.splitlines()
    assert len(problems) == len(named)
    assert all(name in problem for name, problem in zip(named, problems, strict=True))
    assert read_stop(line) is None and not line.wanted.exists(), "a refusal changes nothing"


@pytest.mark.parametrize("verb", ["verify", "logs", "status", "check", "stop"])
def test_a_folder_that_is_no_line(
    line: LinePaths, tmp_path: Path, capsys: pytest.CaptureFixture[str], verb: str
) -> None:
    assert cli.run([verb, str(tmp_path)]) == 20
    assert "not a training line" in capsys.readouterr().err


def test_a_path_through_a_file_is_refused(line: LinePaths, capsys: pytest.CaptureFixture[str]) -> None:
    beneath = line.run_json / "below"
    assert cli.run(["data", "prepare", "--work", str(beneath), "--cycle", "0"]) == 20
    assert str(line.run_json) in capsys.readouterr().err
    assert cli.run(["sample", "--out", str(beneath)]) == 20
    assert capsys.readouterr().err.startswith(f"nstrain: {line.run_json}")


def test_a_stop_says_what_will_happen(line: LinePaths, capsys: pytest.CaptureFixture[str]) -> None:
    def stop(*arguments: str) -> str:
        assert cli.run(["stop", str(line.root), *arguments]) == 0
        return capsys.readouterr().out.removeprefix(f"{line.root}: ")

    assert stop() == "does not run; nothing to stop\n"
    with FileLock.acquire(line.lock, role="test"):
        assert stop("--at-update", "12") == "stops at update 12, with a checkpoint\n"
        at_cycle_end = stop("--at-cycle-end", "1")
        assert at_cycle_end == (
            "stops at the end of cycle 1, with a checkpoint\n  instead of at update 12, as was asked before\n"
        )
        assert "at the next update: update 10 is already past" in stop("--at-update", "10")
        assert "at the next cycle's end: cycle 0 is already past" in stop("--at-cycle-end", "0")
        assert stop().startswith("stops at the next update, with a checkpoint\n  instead of at the end of")


def test_verify_reports_damaged_checkpoints_too(line: LinePaths, capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.run(["verify", str(line.root)]) == 0
    assert capsys.readouterr().out == "no checkpoints yet\n"
    save(line, 2)
    (save(line, 10) / checkpoints.MANIFEST).unlink()
    assert cli.run(["verify", str(line.root), "--json"]) == 20
    rows = json.loads(capsys.readouterr().out)
    assert [(row["update"], row["ok"]) for row in rows] == [(2, True), (10, False)]
    assert rows[0]["problem"] is None and checkpoints.MANIFEST in rows[1]["problem"]


def test_verify_leaves_out_what_retention_removes_meanwhile(
    line: LinePaths, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    old, kept = save(line, 2), save(line, 10)
    listed = checkpoints.published(line)
    shutil.rmtree(old)
    monkeypatch.setattr(checkpoints, "published", lambda paths: listed)
    assert cli.run(["verify", str(line.root)]) == 0
    assert capsys.readouterr().out == f"{kept.name}: sound\n"


def test_the_log_of_a_line(line: LinePaths, capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.run(["logs", str(line.root)]) == 20
    assert "inline run prints to its terminal" in capsys.readouterr().err
    line.run_log.write_text("a\nb\nc\n")
    assert cli.run(["logs", str(line.root), "--lines", "2"]) == 0
    assert capsys.readouterr().out == "b\nc\n"


def test_a_status_in_words() -> None:
    points = [{"update": update, "kept": None, "bytes": 1} for update in (0, 8, 16, 24)]
    value = {
        "line": "/l",
        "state": "training",
        "reason": "why",
        "update": 24,
        "tokens": 24_576,
        "cycle": 1,
        "cycles_done": 1,
        "loss": 2.0,
        "validation": {"val_128/mix": 3.0},
        "tokens_per_second": 1000.0,
        "eta_seconds": 600.0,
        "checkpoints": points,
    }
    assert status_lines(value).splitlines() == [
        "/l: training (why)",
        "  update 24, 24,576 tokens, cycle 1",
        "  loss 2.0000, validation mix 3.0000",
        "  1,000 tokens/s over the last updates, 10 minutes to go",
        "  4 checkpoints, the newest u8, u16, u24",
    ]
    assert "2.0 hours to go" in status_lines(value | {"eta_seconds": 7200.0})
    done = status_lines(value | {"state": "finished", "cycles_done": 2, "checkpoints": points[:1]})
    assert "2 cycles trained" in done and "to go" not in done and "  1 checkpoint: u0" in done
