"""Texts of lines and exported folders: the likeliest tokens, draws by seed, ends, refusals, the command."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from torch import nn

from deployments.cli import run
from tests.tools.written_line import written_line
from trainer_core.errors import Refused
from trainer_core.generate.continuation import continuation
from trainer_core.generate.sampling import Sampler, Sampling
from trainer_core.line.paths import LinePaths
from trainer_core.models.base import Model
from trainer_core.ops.export import export_line
from trainer_core.ops.generate import Request, generate_texts

MODELS = ("llama-nano-cpu", "gpt2-cpu", "nano-cpu")
GREEDY = Sampling(temperature=0)
EOS = 256

Line = tuple[LinePaths, Model]


@pytest.fixture(scope="module")
def lines(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Line]:
    root = tmp_path_factory.mktemp("lines")
    return {name: written_line(root / name, name, 2, ema=name == MODELS[0]) for name in MODELS}


@pytest.fixture
def line(lines: dict[str, Line]) -> Line:
    return lines[MODELS[0]]


def likeliest(model: Model, ids: list[int], num: int) -> list[int]:
    """What `model` goes on with, by a parallel pass over everything for each token."""
    with torch.no_grad():
        for _ in range(num):
            ids = [*ids, int(model.logits(torch.tensor([ids]))[0, -1].argmax())]
    return ids[-num:]


@pytest.mark.parametrize("name", MODELS)
def test_without_chance_it_is_the_likeliest_of_a_parallel_pass(lines: dict[str, Line], name: str) -> None:
    paths, model = lines[name]
    request = Request(prompt="", sampling=GREEDY, max_new_tokens=12, stop_at_end=False)
    (sample,) = generate_texts(paths.root, request)
    assert list(sample.ids) == likeliest(model, [EOS], 12)


@pytest.mark.parametrize("name", MODELS)
def test_an_exported_folder_writes_what_its_line_writes(
    lines: dict[str, Line], name: str, tmp_path: Path
) -> None:
    paths, _ = lines[name]
    export_line(paths.root, tmp_path / "out", shard_bytes=100_000)
    request = Request(prompt="ab", max_new_tokens=12, samples=2)
    assert generate_texts(paths.root, request) == generate_texts(tmp_path / "out", request)


def test_a_text_follows_from_its_seed_and_its_number(line: Line) -> None:
    def texts(**settings: int) -> list[str]:
        found = generate_texts(line[0].root, Request(prompt="a", max_new_tokens=16, **settings))
        return [sample.text for sample in found]

    first, second = texts(seed=4, samples=2)
    assert first != second and texts(seed=4) == [first] and texts(seed=5) != [first]


def test_pieces_are_shown_as_they_come_and_join_to_the_texts(line: Line) -> None:
    begun: list[int] = []
    shown: list[str] = []
    found = generate_texts(
        line[0].root,
        Request(prompt="é ", max_new_tokens=40, samples=2),
        begin=begun.append,
        show=shown.append,
    )
    assert begun == [0, 1] and len(shown) > 40
    assert "".join(shown) == "".join(f"{sample.prompt}{sample.text}\n" for sample in found)
    assert all(sample.prompt == "é " for sample in found)


def test_the_average_and_an_update_are_chosen(line: Line) -> None:
    request = Request(prompt="a", max_new_tokens=16, stop_at_end=False)
    (plain,) = generate_texts(line[0].root, request)
    (averaged,) = generate_texts(line[0].root, request, ema=True)
    assert plain.ids != averaged.ids
    assert generate_texts(line[0].root, request, at=2) == [plain]
    with pytest.raises(Refused, match="no checkpoint of update 5"):
        generate_texts(line[0].root, request, at=5)


class Counting(Model):
    """Says that the next token is one more than the last, and remembers what it was fed."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.zeros(1))
        self.vocab_size = 10
        self.fed: list[list[int]] = []

    def init_state(self, rows: int) -> int:
        return 0

    def advance(self, ids: torch.Tensor, state: int) -> tuple[torch.Tensor, int]:
        self.fed.append(ids[0].tolist())
        scores = torch.zeros(*ids.shape, 10).scatter(-1, (ids + 1)[..., None] % 10, 1.0)
        return scores, state + ids.shape[1]


@pytest.mark.parametrize(
    ("end", "expected"), [(7, [3, 4, 5, 6, 7]), (None, [3, 4, 5, 6, 7, 8]), (2, [3, 4, 5, 6, 7, 8])]
)
def test_it_ends_behind_the_end_and_feeds_each_token_once(end: int | None, expected: list[int]) -> None:
    model = Counting()  # type: ignore[abstract]
    found = list(continuation(model, [0, 2], Sampler(GREEDY, seed=0), max_new=6, end=end))
    assert found == expected
    assert model.fed == [[0, 2], *([token] for token in expected[:-1])]


def test_a_text_ends_with_its_document_unless_it_shall_go_on(line: Line) -> None:
    def sample(stop: bool, seed: int) -> tuple[tuple[int, ...], str, bool]:
        request = Request(
            prompt="",
            sampling=Sampling(temperature=20.0),
            max_new_tokens=250,
            seed=seed,
            stop_at_end=stop,
        )
        (found,) = generate_texts(line[0].root, request)
        return found.ids, found.text, found.ended

    seed = next(s for s in range(20) if sample(True, s)[2])
    ids, text, _ = sample(True, seed)
    assert ids.index(EOS) == len(ids) - 1 < 249
    more, longer, ended = sample(False, seed)
    assert more[: len(ids)] == ids and len(more) == 250 and not ended
    assert longer.startswith(text.rstrip("\ufffd"))


def test_every_bad_option_is_refused_at_once(line: Line, capsys: pytest.CaptureFixture[str]) -> None:
    options = ["--temperature", "-1", "--top-k", "0", "--top-p", "2", "--seed", "-1"]
    more = ["--prompt", "\udcff", "--max-new-tokens", "0", "--num-samples", "0", "--at", "9" * 5000]
    assert run(["generate", str(line[0].root), *options, *more]) == 20
    told = capsys.readouterr().err.splitlines()
    named = {line.split()[1] for line in told}
    assert named == {option for option in (*options, *more) if option.startswith("--")} and len(told) == 8


def test_more_than_the_model_reads_is_refused(lines: dict[str, Line]) -> None:
    root = lines["gpt2-cpu"][0].root
    with pytest.raises(Refused, match="reads 256 tokens at most, the prompt has 4; ask for 252"):
        generate_texts(root, Request(prompt="abc", max_new_tokens=253))
    with pytest.raises(Refused, match="shorten it"):
        generate_texts(root, Request(prompt="a" * 300, max_new_tokens=1))


def test_folders_that_are_none(line: Line, tmp_path: Path) -> None:
    request = Request(prompt="")
    with pytest.raises(Refused, match=r"no run\.json\) and not an exported folder"):
        generate_texts(tmp_path, request)
    out = export_line(line[0].root, tmp_path / "out").out
    with pytest.raises(Refused, match="exported folder is one checkpoint"):
        generate_texts(out, request, ema=True)
    weights = (out / "model.safetensors").read_bytes()
    (out / "model.safetensors").write_bytes(weights[:-4])
    with pytest.raises(Refused, match=r"model\.safetensors: not the bytes that were exported"):
        generate_texts(out, request)
    (out / "model.safetensors").unlink()
    with pytest.raises(Refused, match=r"model\.safetensors: missing"):
        generate_texts(out, request)
    record = json.loads((out / "nstrain.json").read_text())
    del record["model"]["family"]
    (out / "nstrain.json").write_text(json.dumps(record))
    with pytest.raises(Refused, match=r"nstrain\.json: damaged"):
        generate_texts(out, request)
    shutil.rmtree(out)


def test_what_the_terminal_cannot_show_ends_nothing(line: Line, tmp_path: Path) -> None:
    """Names that are no UTF-8 and characters beyond the terminal's encoding; both ended in a traceback."""
    for words, encoding, expected in (
        (["generate", line[0].root, "--max-new-tokens", "1", "--prompt", "é"], "ascii", b"\\xe9"),
        (["export", line[0].root, "--out", os.fsencode(tmp_path) + b"/\xff"], "utf-8", b"\\udcff: trunk at"),
    ):
        command = [sys.executable, "-c", "from deployments.cli import main; main()", *words]
        environment = {**os.environ, "PYTHONIOENCODING": encoding, "OMP_NUM_THREADS": "1"}
        done = subprocess.run(command, capture_output=True, env=environment)
        assert done.returncode == 0 and expected in done.stdout, done


def test_the_commands(line: Line, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    root, out = str(line[0].root), tmp_path / "out"
    assert run(["export", root, "--out", str(out), "--at", "2", "--json"]) == 0
    told = json.loads(capsys.readouterr().out)
    assert (told["update"], told["out"], told["model"]["family"]) == (2, str(out), "llama")
    assert run(["export", root, "--out", str(out)]) == 20
    assert "is not empty" in capsys.readouterr().err
    assert run(["export", root, "--out", str(tmp_path / "b"), "--ema"]) == 0
    assert "trunk at update 2, averaged, 192 tokens trained" in capsys.readouterr().out
    common = ["--prompt", "ab", "--max-new-tokens", "5", "--num-samples", "2"]
    assert run(["generate", str(out), *common, "--json"]) == 0
    samples = json.loads(capsys.readouterr().out)
    assert run(["generate", root, *common]) == 0
    texts = [f"ab{sample['text']}\n" for sample in samples]
    assert capsys.readouterr().out == f"--- 1\n{texts[0]}\n--- 2\n{texts[1]}"
    assert run(["generate", root, "--device", "cuda"]) == 20 or torch.cuda.is_available()
