"""`nstrain data delete`: a cycle that a running line has still to train stays."""

import json
from collections.abc import Iterator
from pathlib import Path

import pytest

from deployments import cli
from tests.tools.made_line import made_line
from trainer_core.data.prepare.preparer import CyclePreparer
from trainer_core.line.lock import FileLock
from trainer_core.line.paths import DataPaths, LinePaths

Printed = pytest.CaptureFixture[str]


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return made_line(tmp_path_factory.mktemp("delete"), cycles=2)


@pytest.fixture
def work(made: Path, tmp_path: Path) -> Iterator[Path]:
    """The data line, whose training line is tmp_path/line, at the beginning of cycle 1."""
    paths, line = DataPaths(made), LinePaths(tmp_path / "line")
    record = json.loads(paths.consumer.read_text())
    paths.consumer.write_text(json.dumps(record | {"line": str(line.root)}))
    line.checkpoint(3).mkdir(parents=True)
    line.run_json.write_text("{}")
    state = {"update": 3, "tokens": 9, "kept": None, "position": {"cycle": 1, "part": 0, "row": 0}}
    (line.checkpoint(3) / "state.json").write_text(json.dumps(state))
    (line.checkpoint(3) / "manifest.json").write_text('{"files": {}}')
    yield made
    preparer = CyclePreparer(made)
    for cycle in range(2):
        preparer.tokenize(cycle)


def delete(work: Path, cycle: int) -> int:
    return cli.run(["data", "delete", "--work", str(work), "--cycle", str(cycle)])


def test_a_running_line_keeps_what_it_has_not_trained(work: Path, tmp_path: Path, capsys: Printed) -> None:
    line = LinePaths(tmp_path / "line")
    with FileLock.acquire(line.lock, role="trainer"):
        assert delete(work, 1) == 20
        said = capsys.readouterr().err
        assert "(trainer)" in said and f"nstrain stop {line.root}" in said and "or wait" in said
        assert DataPaths(work).cycle(1).is_dir()
        assert delete(work, 0) == 0, "it is trained"
        assert "not trained" not in capsys.readouterr().out
        assert not DataPaths(work).cycle(0).exists()
        assert delete(work, 7) == 0, "there is nothing to lose"


def test_without_a_trainer_it_is_told_what_becomes_of_it(work: Path, capsys: Printed) -> None:
    assert delete(work, 1) == 0
    said = capsys.readouterr().out
    assert "shards removed" in said and "not trained to its end yet: it is made again" in said


def test_a_line_that_is_gone_does_not_block(work: Path, tmp_path: Path, capsys: Printed) -> None:
    (tmp_path / "line").rename(tmp_path / "gone")
    assert delete(work, 1) == 0
    assert "not trained" not in capsys.readouterr().out
