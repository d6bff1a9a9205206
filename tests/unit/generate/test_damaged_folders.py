"""Exported folders that were damaged, edited or mixed: refused by name; they crashed or spoke nonsense."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file

from deployments.cli import run
from tests.tools.written_line import written_line
from trainer_core.errors import Refused
from trainer_core.ops.export import export_line
from trainer_core.ops.generate import Request, generate_texts

ASKED = Request(prompt="a", max_new_tokens=3)


@pytest.fixture(scope="module")
def trunk(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return written_line(tmp_path_factory.mktemp("line"), "llama-nano-cpu", 2)[0].root


@pytest.fixture
def folder(trunk: Path, tmp_path: Path) -> Path:
    return export_line(trunk, tmp_path / "out").out


def edit(folder: Path, change: Callable[[dict[str, Any]], object]) -> None:
    value = json.loads((folder / "nstrain.json").read_text())
    change(value)
    (folder / "nstrain.json").write_text(json.dumps(value))


RECORDS: dict[str, Callable[[dict[str, Any]], object]] = {
    "vocabulary of text": lambda v: v["model"].update(vocab_size="257"),
    "vocabulary below 1": lambda v: v["model"].update(vocab_size=-1),
    "vocabulary that is no number": lambda v: v["model"].update(vocab_size=True),
    "family": lambda v: v["model"].update(family=[]),
    "configuration": lambda v: v["model"].update(config=[]),
    "no configuration": lambda v: v["model"].update(config=None),
    "end of text": lambda v: v.update(eos_id="x"),
    "no end": lambda v: v.update(eos_id=None),
    "end beyond the vocabulary": lambda v: v.update(eos_id=257),
    "negative end": lambda v: v.update(eos_id=-1),
    "model": lambda v: v.update(model="x"),
    "files": lambda v: v.update(files=["model.safetensors"]),
    "file": lambda v: v["files"].update({"model.safetensors": "x"}),
    "size": lambda v: v["files"]["model.safetensors"].update(bytes=None),
    "more": lambda v: v.update(more=1),
    "less": lambda v: v.pop("eos_id"),
}


@pytest.mark.parametrize("change", RECORDS.values(), ids=RECORDS)
def test_a_record_that_export_never_writes(folder: Path, change: Callable[[dict[str, Any]], object]) -> None:
    edit(folder, change)
    with pytest.raises(
        Refused, match=r"nstrain\.json: damaged or edited by hand \(.*; export the line again"
    ):
        generate_texts(folder, ASKED)


MODELS: dict[str, Callable[[dict[str, Any]], object]] = {
    "narrower": lambda v: v["model"]["config"].update(width=16),
    "flatter": lambda v: v["model"]["config"].update(layers=1),
    "deeper": lambda v: v["model"]["config"].update(layers=3),
    "fewer words": lambda v: v["model"].update(vocab_size=300, eos_id=256),
    "more than fits into any memory": lambda v: v["model"].update(vocab_size=10**13),
}


@pytest.mark.parametrize("change", MODELS.values(), ids=MODELS)
def test_weights_of_another_model(folder: Path, change: Callable[[dict[str, Any]], object]) -> None:
    edit(folder, change)
    with pytest.raises(Refused, match=r"not the weights of the model in nstrain\.json"):
        generate_texts(folder, ASKED)


@pytest.mark.parametrize("name", ["model.safetensors", "tokenizer.json"])
@pytest.mark.parametrize("change", [lambda b: b[:-1], lambda b: b"", lambda b: b[:-3] + b"\1" + b[-2:]])
def test_changed_bytes(folder: Path, name: str, change: Callable[[bytes], bytes]) -> None:
    """One changed weight spoke on."""
    (folder / name).write_bytes(change((folder / name).read_bytes()))
    with pytest.raises(Refused, match=rf"{name}: not the bytes that were exported; export the line again"):
        generate_texts(folder, ASKED)


def test_weights_whose_shapes_broadcast(folder: Path) -> None:
    """They were copied into every place of a parameter."""
    file = folder / "model.safetensors"
    save_file({name: torch.ones(1) for name in load_file(file)}, file)
    with pytest.raises(Refused, match="not the bytes that were exported"):
        generate_texts(folder, ASKED)


@pytest.mark.parametrize("content", ["{}", "[]", '{"weight_map": []}', '{"weight_map": {"a": "../b"}}'])
def test_an_index_that_export_did_not_write(folder: Path, content: str) -> None:
    """Beside weights in one file it is not ours; of weights in several it is compared like them."""
    (folder / "model.safetensors.index.json").write_text(content)
    assert len(generate_texts(folder, ASKED)) == 1


def test_an_index_of_parts(trunk: Path, tmp_path: Path) -> None:
    out = export_line(trunk, tmp_path / "out", shard_bytes=40_000).out
    index = out / "model.safetensors.index.json"
    assert generate_texts(out, ASKED) == generate_texts(trunk, ASKED)
    index.write_text(index.read_text().replace("00002", "00001", 1))
    with pytest.raises(Refused, match=r"index\.json: not the bytes that were exported"):
        generate_texts(out, ASKED)


def test_folders_in_the_place_of_files(folder: Path) -> None:
    for name in ("model.safetensors", "tokenizer.json"):
        (folder / name).unlink()
        (folder / name).mkdir()
    with pytest.raises(Refused) as refused:
        generate_texts(folder, ASKED)
    assert len(refused.value.problems) == 2


def test_what_people_may_edit(folder: Path) -> None:
    """config.json and the settings of `generate` in transformers are nothing that nstrain reads."""
    for name in ("config.json", "generation_config.json"):
        (folder / name).write_text("{}")
    assert len(generate_texts(folder, ASKED)) == 1


def test_a_prompt_that_looks_like_an_option(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["generate", str(folder), "--max-new-tokens", "2", "--prompt", "-5 --at"]) == 0
    assert capsys.readouterr().out.startswith("-5 --at")
