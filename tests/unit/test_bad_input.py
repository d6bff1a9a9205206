"""Bad input, through the real commands: a message that names it, exit code 20, and nothing changed."""

from __future__ import annotations

import json
import shutil

import pytest

from deployments.cli import run
from tests.tools.real_line import make_real_line
from trainer_core.data.heldout.validation import make_heldout
from trainer_core.line.files import read_json


@pytest.fixture
def command(capsys, monkeypatch, tmp_path):
    """Runs a command of the CLI in this process."""
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    monkeypatch.delenv("NSTRAIN_HOST", raising=False)

    def call(*arguments: object) -> tuple[int, str]:
        code = run([str(a) for a in arguments])
        return code, capsys.readouterr().err

    return call


@pytest.fixture(scope="module")
def corpus(tmp_path_factory):
    """A small sample corpus."""
    out = tmp_path_factory.mktemp("corpus") / "sample"
    assert run(["sample", "--out", str(out), "--max-mb", "1"]) == 0
    return out


def init(command, corpus, work, **changes):
    arguments = {
        "recipe": corpus / "recipe.json",
        "tokenizer": corpus / "tokenizer" / "tokenizer.json",
        "eos-id": 0,
        "cycle-tokens": 4096,
        **changes,
    }
    flat = [part for key, value in arguments.items() for part in (f"--{key}", value)]
    return command("data", "init", "--work", work, *flat)


def changed_recipe(corpus, tmp_path, change):
    recipe = json.loads((corpus / "recipe.json").read_text())
    for source in recipe["sources"].values():
        source["folder"] = str(corpus / source["folder"])
    change(recipe)
    path = tmp_path / "recipe.json"
    path.write_text(json.dumps(recipe))
    return path


def test_a_missing_folder(command, corpus, tmp_path):
    def change(recipe):
        recipe["sources"]["docs"]["folder"] = str(tmp_path / "nowhere")

    code, said = init(command, corpus, tmp_path / "work", recipe=changed_recipe(corpus, tmp_path, change))
    assert code == 20
    assert "docs" in said
    assert str(tmp_path / "nowhere") in said
    assert not (tmp_path / "work" / "data.json").exists()


def test_a_tokenizer_without_the_eos_id(command, corpus, tmp_path):
    code, said = init(command, corpus, tmp_path / "work", **{"eos-id": 999_999})
    assert code == 20
    assert "999999" in said
    assert "tokenizer.json" in said
    assert not (tmp_path / "work" / "data.json").exists()


def test_a_tokenizer_that_is_none_is_named_once(command, corpus, tmp_path):
    (tmp_path / "text.json").write_text("no tokenizer")
    for name, expected in (
        ("none.json", "this tokenizer.json does not exist"),
        ("", "is a folder; name the tokenizer.json in it"),
        ("text.json", "not a tokenizer.json that this"),
    ):
        code, said = init(command, corpus, tmp_path / "work", tokenizer=tmp_path / name)
        assert code == 20 and expected in said
        assert said.count(str(tmp_path / name)) == 1, said


def test_an_empty_stratum(command, corpus, tmp_path):
    empty = tmp_path / "texts"
    for name, text in (("full", "words " * 400), ("hollow", "")):
        (empty / name).mkdir(parents=True)
        (empty / name / "a.jsonl").write_text(json.dumps({"text": text}) + "\n")

    def change(recipe):
        recipe["sources"]["docs"] = {"folder": str(empty), "glob": "**/*.jsonl", "stratum": {"level": 1}}

    code, said = init(command, corpus, tmp_path / "work", recipe=changed_recipe(corpus, tmp_path, change))
    assert code == 20
    assert "docs" in said
    assert "hollow" in said


def test_three_mistakes_in_run_json(command, tmp_path):
    paths = make_real_line(tmp_path / "line")
    value = read_json(paths.run_json)
    value["tokens_per_update"] = 1.5
    value["optimizer"]["clip"] = -1
    value["lenghts"] = []
    paths.run_json.write_text(json.dumps(value))
    before = sorted(p.name for p in paths.root.iterdir())
    for verb in (["check"], ["run", "--inline"], ["status"]):
        code, said = command(verb[0], paths.root, *verb[1:])
        assert code == 20, verb
        lines = [line for line in said.splitlines() if "run.json" in line]
        assert len(lines) == 3, said
        assert all(key in said for key in ("tokens_per_update", "optimizer.clip", "lenghts"))
    assert sorted(p.name for p in paths.root.iterdir()) == before


def test_a_line_on_no_data_line(command, tmp_path):
    code, said = command(
        "new", tmp_path / "line", "--model", "llama-nano-cpu", "--data", tmp_path, "--peak-lr", 1e-3
    )
    assert code == 20
    assert "nstrain data init" in said
    assert not (tmp_path / "line").exists()


def test_a_second_line_on_one_data_line(command, tmp_path):
    paths = make_real_line(tmp_path / "line")
    code, said = command(
        *("new", tmp_path / "other", "--model", "llama-nano-cpu"),
        *("--data", paths.root.parent / "data", "--peak-lr", 1e-3),
    )
    assert code == 20
    assert str(paths.root) in said
    assert not (tmp_path / "other").exists()


@pytest.fixture
def free_data_line(tmp_path):
    """A data line that no training line consumes."""
    paths = make_real_line(tmp_path / "line")
    shutil.rmtree(paths.root)
    data = paths.root.parent / "data"
    (data / "consumer.json").unlink()
    return data


@pytest.mark.parametrize(
    ("settings", "named"),
    [
        (('lengths=[{"length":4096,"rows":1}]', "tokens_per_update=4096"), "positions"),
        (('lengths=[{"length":4096,"rows":1}]', "tokens_per_update=4096"), "--cycle-tokens"),
        (("tokens_per_update=2048",), "--cycle-tokens"),
        ((), "nstrain data val"),
    ],
)
def test_a_refused_line_leaves_its_data_line_free(command, tmp_path, free_data_line, settings, named):
    if not settings:
        shutil.rmtree(free_data_line / "heldout")
    arguments = ("--model", "llama-nano-cpu", "--data", free_data_line, "--peak-lr", 1e-3)
    code, said = command(
        "new", tmp_path / "first", *arguments, *(part for s in settings for part in ("--set", s))
    )
    assert code == 20
    assert named in said
    assert not (tmp_path / "first").exists()
    make_heldout(free_data_line)
    code, said = command("new", tmp_path / "second", *arguments)
    assert code == 0, said


@pytest.mark.parametrize(
    ("setting", "named"),
    [("optimizer.clip", "key=value"), ("seed.x=1", "seed"), ("optimizer.clp=1", "optimizer.clp")],
)
def test_a_setting_that_is_none(command, tmp_path, setting, named):
    with pytest.raises(Exception, match=named):
        make_real_line(tmp_path / "line", settings=(setting,))
    assert not (tmp_path / "line" / "trunk" / "run.json").exists()


def test_changing_a_kept_setting_is_refused_until_it_is_allowed(command, tmp_path):
    paths = make_real_line(tmp_path / "line", cycles=1)
    assert command("run", paths.root, "--inline", "--cycles", "1")[0] == 0
    value = read_json(paths.run_json)
    value["optimizer"]["eps"] = 1e-6
    paths.run_json.write_text(json.dumps(value))
    code, said = command("run", paths.root, "--inline")
    assert code in (0, 20)
    code, said = command("check", paths.root)
    assert code == 20
    assert "optimizer.eps" in said
    assert "allow_changes" in said
    value["allow_changes"] = ["optimizer.eps"]
    paths.run_json.write_text(json.dumps(value))
    assert command("check", paths.root)[0] == 0


def test_a_second_start_is_refused_while_a_line_runs(command, tmp_path):
    from trainer_core.line.lock import FileLock

    paths = make_real_line(tmp_path / "line", cycles=1)
    with FileLock.acquire(paths.lock, role="trunk flow"):
        code, said = command("run", paths.root, "--inline")
    assert code == 20
    assert "already in use by process" in said
    assert not paths.metrics.exists()


def test_verify_names_the_damaged_file(command, tmp_path, capsys):
    paths = make_real_line(tmp_path / "line", cycles=1)
    assert command("run", paths.root, "--inline")[0] == 0
    assert command("verify", paths.root)[0] == 0
    victim = paths.checkpoint(8) / "exp_avg.safetensors"
    content = bytearray(victim.read_bytes())
    content[-1] ^= 1
    victim.write_bytes(content)
    assert run(["verify", str(paths.root)]) == 20
    assert "exp_avg.safetensors: chunk 0" in capsys.readouterr().out


def test_a_finished_line_answers_finished_and_changes_nothing(command, tmp_path):
    paths = make_real_line(tmp_path / "line", cycles=1)
    assert command("run", paths.root, "--inline")[0] == 0

    def content():
        return {p: p.read_bytes() for p in sorted(tmp_path.rglob("*")) if p.is_file()}

    before = content()
    assert command("run", paths.root, "--inline")[0] == 0
    assert command("run", paths.root, "--inline", "--cycles", "1")[0] == 0
    assert content() == before
