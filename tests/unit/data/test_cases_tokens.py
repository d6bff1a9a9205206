"""Reported faults of what is stored and who is held out: widths, ends, last rows, copies, tokenizers."""

from __future__ import annotations

import gzip
import json
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tokenizers

from tests.tools.made_line import prepare
from tests.tools.text_line import CASES, text_line, texts, tokenized
from tests.tools.tiny_data import register
from tests.unit.data.inputs import byte_tokenizer, dump, word_tokenizer, write
from trainer_core.data.plan.manifest import read_manifest
from trainer_core.data.sources import load_data_line
from trainer_core.data.tokens.holdout import is_held_out
from trainer_core.data.tokens.open_files import OpenFiles
from trainer_core.data.tokens.shards import read_shard
from trainer_core.errors import Refused
from trainer_core.line.files import sha256_file
from trainer_core.line.paths import DataPaths

TOKENIZER = CASES / "B01" / "tokenizer.json"
EOS = 1


def test_b11_ids_above_16_bits_are_stored_as_they_are(tmp_path: Path) -> None:
    folder = CASES / "B11"
    expected = json.loads((folder / "expect.json").read_text())["sparse"]
    work = text_line(tmp_path, {"a": [folder / "sparse.jsonl"]}, folder / "sparse_tokenizer.json")
    line = load_data_line(work)
    assert (line.token_dtype, line.tokenizer.vocab_size) == ("uint32", 9)
    assert tokenized(work, "a", "sparse.jsonl") == [[*ids, EOS] for ids in expected]


def test_b11_the_largest_id_decides_the_width_not_the_number_of_entries(tmp_path: Path) -> None:
    vocab = {"<unk>": 0, "</s>": 1} | {f"w{number}": number for number in range(2, 65535)}
    vocab |= {"w1ekf": 65535, "w1ekg": 65536, "unused": 65534}
    lines = CASES / "B11" / "full.jsonl"
    for largest, width in ((65536, "uint32"), (65535, "uint16")):
        root = tmp_path / width
        root.mkdir()
        tokenizer = {word: number for word, number in vocab.items() if number <= largest}
        if width == "uint16":
            tokenizer = {word: number for word, number in tokenizer.items() if not 2 < number < 65000}
        (root / "tokenizer.json").write_bytes(dump(word_tokenizer(tokenizer)))
        work = text_line(root, {"a": [lines]}, root / "tokenizer.json")
        line = load_data_line(work)
        assert (line.token_dtype, line.tokenizer.largest_id) == (width, largest)
        last = 65536 if largest == 65536 else 0
        assert tokenized(work, "a", lines.name) == [[65535, last, 2, EOS]]


def test_b13_lengths_ends_and_tokens_agree(tmp_path: Path) -> None:
    lens = CASES / "B13" / "lens.jsonl"
    work = text_line(tmp_path, {"a": [lens]}, TOKENIZER)
    documents = tokenized(work, "a", "lens.jsonl")
    assert [len(ids) for ids in documents] == [6, 2, 11, 4]
    files = OpenFiles(work, load_data_line(work))
    shard = files.shard("a", "lens.jsonl")
    assert shard is not None and len(shard.tokens) == 23 == int(shard.doc_ends[-1])
    assert (np.flatnonzero(shard.tokens == EOS) + 1).tolist() == shard.doc_ends.tolist()
    facts = files.facts("a", "lens.jsonl")
    assert (facts.documents, facts.tokens, facts.characters) == (4, 23, 19)


def test_b13_a_document_longer_than_cycles_goes_on_in_the_next_one(tmp_path: Path) -> None:
    long = "".join(chr(97 + number * 7 % 26) for number in range(700))
    path = write(tmp_path / "a.jsonl", ["short", long, *[f"document {number}" for number in range(40)]])
    (tmp_path / "tokenizer.json").write_bytes(dump(byte_tokenizer()))
    work = text_line(tmp_path, {"a": [path]}, tmp_path / "tokenizer.json", cycle_tokens=256)
    register(work)
    paths, stream = DataPaths(work), np.empty(0, dtype=np.uint16)
    for cycle in range(3):
        prepare(work, cycle)
        for (record,) in read_manifest(paths.manifest(cycle)).shards():
            shard = read_shard(paths.cycle(cycle) / record["path"])
            assert (np.flatnonzero(shard.tokens == EOS) + 1).tolist() == shard.doc_ends.tolist()
            stream = np.concatenate([stream, shard.tokens[1 if len(stream) else 0 :]])
    encoder = OpenFiles(work, load_data_line(work)).encoder("a")
    pieces = np.split(stream, np.flatnonzero(stream == EOS) + 1)
    found = [encoder.decode(piece) for piece in pieces if len(piece) and piece[-1] == EOS]
    assert long in found or encoder.decode(np.append(pieces[-1], EOS)) == long[: len(pieces[-1])]
    assert len(stream) == 3 * 256 + 1 and len(set(found)) == len(found)


@pytest.mark.parametrize("name", ["rows.jsonl", "rows.jsonl.gz", "rows.parquet"])
def test_b15_the_last_partial_batch_is_there(tmp_path: Path, name: str) -> None:
    path = tmp_path / name
    if name == "rows.jsonl":
        path.write_bytes(gzip.decompress((CASES / "B15" / "rows.jsonl.gz").read_bytes()))
    else:
        shutil.copyfile(CASES / "B15" / name, path)
    work = text_line(tmp_path, {"a": [path]}, TOKENIZER)
    assert OpenFiles(work, load_data_line(work)).tokenize("a", name).documents == 2501
    assert texts(work, "a", name) == [f"row {number}" for number in range(2501)]


def test_b15_workers_side_by_side_make_the_same_files(tmp_path: Path) -> None:
    rows = [write(tmp_path / f"{n}.parquet", [f"row {n} {i}" for i in range(1501)]) for n in range(3)]
    made = {}
    for workers in (0, 2):
        root = tmp_path / f"by{workers}"
        root.mkdir()
        work = text_line(root, {"a": rows}, TOKENIZER, heldout=0.05)
        code = (
            "import sys; from pathlib import Path; "
            "from trainer_core.data.tokens.open_files import OpenFiles; "
            "from trainer_core.data.sources import load_data_line; work = Path(sys.argv[1]); "
            "files = OpenFiles(work, load_data_line(work)); [files.tokenize('a', p) for p in sys.argv[2:]]"
        )
        if not workers:
            files = OpenFiles(work, load_data_line(work))
            assert [files.tokenize("a", path.name).heldout_docs > 0 for path in rows] == [True] * 3
        shares = [[path.name for path in rows[first::workers]] for first in range(workers)]
        children = [subprocess.Popen([sys.executable, "-c", code, str(work), *share]) for share in shares]
        assert [child.wait() for child in children] == [0] * workers
        made[workers] = {
            path.relative_to(work).as_posix(): path.read_bytes()
            for folder in ("open", "hashes")
            for path in sorted((work / folder).rglob("*"))
            if path.is_file()
        }
    assert made[0] == made[2] and len(made[0]) == 6


def build(root: Path, names: list[str], **settings: Any) -> tuple[set[str], set[str]]:
    """Texts trained and held out by a line over B17's files under other names."""
    root.mkdir()
    files = []
    for position, name in enumerate(names):
        files.append(root / f"{position}-{name}")
        shutil.copyfile(CASES / "B17" / name, files[-1])
    (root / "tokenizer.json").write_bytes(dump(byte_tokenizer()))
    work = text_line(root, {"a": files}, root / "tokenizer.json", heldout=0.5, id="case", **settings)
    trained = {text for path in files for text in texts(work, "a", path.name)}
    everything = {json.loads(row)["text"] for path in files for row in path.read_text().splitlines()}
    return trained, everything - trained


def test_b17_copies_share_one_decision_whatever_the_order_or_cycle(tmp_path: Path) -> None:
    builds = [
        build(tmp_path / "x", ["a.jsonl", "b.jsonl"]),
        build(tmp_path / "y", ["b.jsonl", "a.jsonl"], cycle_tokens=16, seed=9),
    ]
    assert builds[0] == builds[1]
    trained, held = builds[0]
    assert not trained & held and len(trained | held) == 8
    assert held == {text for text in trained | held if is_held_out(text, identity="case", fraction=0.5)}
    copies = ["same text", "same text\n", "same text\r\n", "caf\u00e9", "cafe\u0301"]
    assert set(copies) <= trained | held, "near copies are texts of their own"


def tokenizer_line(root: Path) -> tuple[Path, Path]:
    tokenizer = root / "tokenizer.json"
    shutil.copyfile(CASES / "B19" / "tokenizer_a.json", tokenizer)
    path = write(root / "a.jsonl", [f"document number {number} of this case" for number in range(60)])
    work = text_line(root, {"a": [path]}, tokenizer, cycle_tokens=256)
    register(work)
    prepare(work, 0)
    return work, tokenizer


@pytest.mark.parametrize("other", ["tokenizer_b.json", "tokenizer_a_pretty.json"])
def test_b19_another_tokenizer_file_is_refused_with_both_hashes(tmp_path: Path, other: str) -> None:
    work, tokenizer = tokenizer_line(tmp_path)
    recorded = sha256_file(tokenizer)
    manifest = read_manifest(DataPaths(work).manifest(0)).value
    assert recorded in json.dumps(manifest) and tokenizers.__version__ in json.dumps(manifest)
    shutil.rmtree(work / "open")
    shutil.copyfile(CASES / "B19" / other, tokenizer)
    with pytest.raises(Refused) as refused:
        prepare(work, 1)
    assert recorded in str(refused.value) and sha256_file(tokenizer) in str(refused.value)
    shutil.copyfile(CASES / "B19" / "tokenizer_a.json", tokenizer)
    prepare(work, 1)


def test_b19_another_library_version_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    work, _ = tokenizer_line(tmp_path)
    shutil.rmtree(work / "open")
    with monkeypatch.context() as changed:
        changed.setattr(tokenizers, "__version__", "9.9.9")
        with pytest.raises(Refused, match=r"tokenizers 9\.9\.9 is installed.*pip install tokenizers=="):
            prepare(work, 1)
    prepare(work, 1)
