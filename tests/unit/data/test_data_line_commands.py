"""`nstrain data append|verify|report|rebuild|run-preparer` as a person types them."""

import json
from pathlib import Path

import pytest

from deployments import cli
from tests.tools.made_line import SHARES, made_line, prepare, write_recipe
from trainer_core.data.prepare.preparer import CyclePreparer
from trainer_core.line.paths import DataPaths

Printed = pytest.CaptureFixture[str]


@pytest.fixture(scope="module")
def work(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return made_line(tmp_path_factory.mktemp("commands"), cycles=2)


def data(verb: str, work: Path, *more: str) -> int:
    return cli.run(["data", verb, "--work", str(work), *more])


def test_verify(work: Path, capsys: Printed) -> None:
    assert data("verify", work, "--sources") == 0
    assert "all as recorded" in capsys.readouterr().out
    shard = DataPaths(work).cycle(1) / "seg-000" / "code.safetensors"
    kept = shard.read_bytes()
    shard.write_bytes(kept[:-1] + b"\xff")
    assert data("verify", work, "--json") == 20
    found = json.loads(capsys.readouterr().out)
    assert found["ok"] is False and len(found["problems"]) == 1 and str(shard) in found["problems"][0]
    shard.write_bytes(kept)


def test_report(work: Path, capsys: Printed) -> None:
    assert data("report", work, "--cycles", "1..1", "--json") == 0
    found = json.loads(capsys.readouterr().out)
    assert found["cycles"] == [1, 1] and set(found["sources"]) == {"code", "prose"}
    assert data("report", work, "--cycles", "0") == 0
    assert "cycles 0 to 0" in capsys.readouterr().out
    assert data("report", work, "--cycles", "0-1") == 20
    assert "expected one cycle" in capsys.readouterr().err
    assert data("report", work, "--cycles", "0..7") == 20
    assert "there are 2 planned cycles, 0 to 1" in capsys.readouterr().err


def test_rebuild(work: Path, tmp_path: Path, capsys: Printed) -> None:
    out = tmp_path / "out"
    out.mkdir()
    original = DataPaths(work).cycle(0)
    files = {p.relative_to(original): p.read_bytes() for p in original.rglob("*.safetensors")}
    CyclePreparer(work).delete_cycle(0)
    assert data("rebuild", work, "--cycle", "0", "--out", str(out)) == 0
    assert "2 shards" in capsys.readouterr().out
    assert {p.relative_to(out): p.read_bytes() for p in out.rglob("*.safetensors")} == files
    assert data("rebuild", work, "--cycle", "0", "--out", str(out)) == 20
    assert "is not empty" in capsys.readouterr().err
    assert data("rebuild", work, "--cycle", "9", "--out", str(tmp_path / "new")) == 20
    said = capsys.readouterr().err
    assert "there are 2 planned cycles, 0 to 1; cycle 9 was asked for" in said and "backup" not in said
    manifest = DataPaths(work).manifest(1)
    manifest.rename(tmp_path / "lost")
    assert data("rebuild", work, "--cycle", "1", "--out", str(tmp_path / "new")) == 20
    said = capsys.readouterr().err
    assert "2 cycles are planned, 1 manifests" in said and "restore the others from a backup" in said
    (tmp_path / "lost").rename(manifest)
    assert not (tmp_path / "new").exists()


def test_append(work: Path, capsys: Printed) -> None:
    recipe = write_recipe(work.parent, (0, SHARES), (2, {"code": 0.5, "prose": 0.5}))
    assert data("append", work, "--recipe", str(recipe), "--json") == 0
    assert json.loads(capsys.readouterr().out)["pieces"] == [
        {"from_cycle": 2, "shares": {"code": 1, "prose": 1}}
    ]
    prepare(work, 2)
    recipe = write_recipe(work.parent, (0, SHARES))
    assert data("append", work, "--recipe", str(recipe)) == 20
    assert "pieces.1: is missing, the data line has from cycle 2" in capsys.readouterr().err


def test_run_preparer_names_what_is_missing(work: Path, capsys: Printed) -> None:
    assert data("run-preparer", work, "--once") == 20
    assert "/lines/trunk" in capsys.readouterr().err
