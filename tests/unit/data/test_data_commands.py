"""`nstrain data ...` and `nstrain sample` as a person types them: messages and exit codes."""

import json
from pathlib import Path

import pytest

from deployments import cli
from tests.unit.data.inputs import EOS, byte_tokenizer, dump, write, write_recipe


@pytest.fixture(autouse=True)
def host(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    write(tmp_path / "code" / "a.jsonl", [f"document {i}" for i in range(500)])
    write_recipe(tmp_path / "recipe.json", {"code": {"folder": "code"}})
    (tmp_path / "tokenizer.json").write_bytes(dump(byte_tokenizer()))
    settings = {"tokenizer": str(tmp_path / "tokenizer.json"), "work_root": str(tmp_path / "root")}
    (tmp_path / "host.json").write_text(json.dumps(settings))
    monkeypatch.setenv("NSTRAIN_HOST", str(tmp_path / "host.json"))
    monkeypatch.chdir(tmp_path)
    return tmp_path


def init(*more: str, eos_id: int = EOS) -> int:
    return cli.run(
        ["data", "init", "--work", "line", "--eos-id", str(eos_id), "--recipe", "recipe.json", *more]
    )


def test_init_then_plan(host: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert init("--cycle-tokens", "1e3", "--json") == 0
    report = json.loads(capsys.readouterr().out)
    assert report["work"] == str(host / "root" / "line")
    assert report["cycle_tokens"] == 1000 and report["sources"]["code"]["share"] == 1.0
    assert (host / "root" / "line" / "data.json").exists()
    assert cli.run(["data", "plan", "--work", "line", "--cycles", "4", "--dry-run"]) == 0
    assert "code/all: 4,000 of" in capsys.readouterr().out
    assert cli.run(["data", "plan", "--work", "line", "--cycles", "99", "--dry-run"]) == 33
    assert "source 'code', stratum 'all': used up at cycle" in capsys.readouterr().err
    assert cli.run(["data", "plan", "--work", "line", "--cycles", "4"]) == 20


def test_every_wrong_argument_is_named(capsys: pytest.CaptureFixture[str], host: Path) -> None:
    (host / "host.json").write_text("{}")
    assert cli.run(["data", "init", "--work", "line", "--eos-id", "1", "--cycle-tokens", "1.5"]) == 20
    message = capsys.readouterr().err
    assert all(word in message for word in ("--cycle-tokens", "--tokenizer"))


def test_a_tokenizer_without_the_end_token(capsys: pytest.CaptureFixture[str]) -> None:
    assert init("--cycle-tokens", "1000", eos_id=5000) == 20
    assert "end-of-document id 5000 is not in the tokenizer" in capsys.readouterr().err


def test_preparing_before_a_training_line_exists_names_the_command(
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert init("--cycle-tokens", "1000") == 0
    assert cli.run(["data", "prepare", "--work", "line", "--cycle", "0"]) == 20
    assert "nstrain new" in capsys.readouterr().err


def test_held_out_documents_and_deleting_nothing(capsys: pytest.CaptureFixture[str]) -> None:
    assert init("--cycle-tokens", "1000") == 0
    assert cli.run(["data", "val", "--work", "line"]) == 0
    said = capsys.readouterr().out
    assert "code: " in said and "next: nstrain data val --work" in said and "next: nstrain new RUN" in said
    assert cli.run(["data", "delete", "--work", "line", "--cycle", "0", "--json"]) == 0
    assert json.loads(capsys.readouterr().out) == {"cycle": 0, "deleted": False}


def test_without_held_out_documents_the_way_out_is_told(
    host: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    write_recipe(host / "recipe.json", {"code": {"folder": "code", "heldout": 0.0}})
    assert init("--cycle-tokens", "1000") == 0
    assert "nothing is held out, so no training line can be made" in capsys.readouterr().out
    assert cli.run(["data", "val", "--work", "line"]) == 0
    said = capsys.readouterr().out
    assert "no document of code was held out" in said and "next: nstrain new" not in said


def test_the_sample_refuses_a_folder_in_use(host: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.run(["sample", "--out", str(host), "--max-mb", "1"]) == 20
    assert "not empty" in capsys.readouterr().err
