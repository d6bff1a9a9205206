"""`nstrain check` traces every shape of a line: memory by estimate, and what a GPU could not capture."""

from __future__ import annotations

import re
import subprocess
import sys

import pytest
import torch
from torch import Tensor

from deployments import cli
from tests.tools.real_line import make_real_line
from trainer_core.line.files import read_json, write_json
from trainer_core.line.paths import LinePaths
from trainer_core.models.llama import Llama

torch.set_num_threads(1)


@pytest.fixture(scope="module")
def pristine(tmp_path_factory: pytest.TempPathFactory) -> LinePaths:
    return make_real_line(tmp_path_factory.mktemp("check") / "line")


@pytest.fixture
def line(pristine: LinePaths, monkeypatch: pytest.MonkeyPatch, tmp_path):
    """The line at its place, its run.json put back afterwards."""
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.delenv("NSTRAIN_HOST", raising=False)
    text = pristine.run_json.read_bytes()
    yield pristine
    pristine.run_json.write_bytes(text)


def test_every_shape_is_told(line: LinePaths, capsys: pytest.CaptureFixture[str]) -> None:
    schedule = read_json(line.run_json)["schedule"]
    later = [*schedule[:-1], schedule[-1] | {"to": 384}, {"from": 384, "to": None, "kind": "constant"}]
    later[-1]["length"] = 32
    shapes = [{"length": 16, "rows": 4}, {"length": 32, "rows": 2, "ac": "full"}]
    edited = read_json(line.run_json) | {"schedule": later, "lengths": shapes, "tokens_per_update": 96}
    write_json(line.run_json, edited)
    code = cli.run(["check", str(line.root)])
    out = capsys.readouterr()
    assert code == 0, out.err
    assert re.search(r"4 x 16 \(ac none\): can be captured, about \d\.\d MB at the peak", out.out)
    assert "2 x 32 (ac full): can be captured" in out.out
    assert "a start on a GPU needs `nstrain tune" in out.out


def test_a_model_that_cannot_be_captured_is_refused_by_name(
    line: LinePaths, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    loss = Llama.loss

    def looks(self: Llama, ids: Tensor, targets: Tensor, ac: str = "none") -> tuple[Tensor, Tensor]:
        total, count = loss(self, ids, targets, ac)
        return total * total.item(), count

    monkeypatch.setattr(Llama, "loss", looks)
    write_json(line.run_json, read_json(line.run_json) | {"data": "/nowhere/line"})
    assert cli.run(["check", str(line.root)]) == 20
    problems = capsys.readouterr().err.splitlines()
    assert "is not a data line" in problems[0], "problems of the light checks are told too"
    where = "run.json: lengths: 4 x 16 (ac none): micro 4 17: host-sync: aten._local_scalar_dense"
    assert any(where in problem for problem in problems)
    assert any("micro 2 17" in problem for problem in problems), "the short micro-batch of 6 rows"


def test_a_model_of_no_family_and_rows_beyond_its_positions_are_said_once(
    line: LinePaths, capsys: pytest.CaptureFixture[str]
) -> None:
    value = read_json(line.run_json)
    value["model"]["config"]["rope_max_seq_len"] = 8
    write_json(line.run_json, value)
    assert cli.run(["check", str(line.root)]) == 20
    (problem,) = capsys.readouterr().err.splitlines()
    assert "longer than the model's 8 positions" in problem
    value["model"]["config"] = {"layers": 1}
    write_json(line.run_json, value)
    assert cli.run(["check", str(line.root)]) == 20
    assert "run.json: model.config.width is missing" in capsys.readouterr().err


def test_a_mode_that_the_family_lacks_is_said_once(
    line: LinePaths, capsys: pytest.CaptureFixture[str]
) -> None:
    shapes = [{"length": 16, "rows": 4, "ac": "scan"}]
    write_json(line.run_json, read_json(line.run_json) | {"lengths": shapes})
    assert cli.run(["check", str(line.root)]) == 20
    (problem,) = capsys.readouterr().err.splitlines()
    assert "lengths[0].ac: 'scan' is nothing that llama can recompute; expected none, full" in problem


def test_a_missing_compiler_is_said_before_a_start(
    line: LinePaths, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    write_json(line.run_json, read_json(line.run_json) | {"compile": "cross_entropy"})
    assert cli.run(["check", str(line.root)]) == 0
    monkeypatch.setenv("CXX", "/nowhere/c++")
    assert cli.run(["check", str(line.root)]) == 20
    assert "run.json: compile: torch needs a C++ compiler, and '/nowhere/c++' is not here" in (
        capsys.readouterr().err
    )


def test_the_checks_of_every_start_load_no_torch(line: LinePaths) -> None:
    code = (
        "import sys; from pathlib import Path; from trainer_core.ops.check import check_line\n"
        f"print(check_line(Path({str(line.root)!r}))); assert 'torch' not in sys.modules"
    )
    subprocess.run([sys.executable, "-c", code], check=True, capture_output=True)
