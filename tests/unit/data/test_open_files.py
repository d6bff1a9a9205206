"""Tokenized files: what they say of their source, the hashes that stay, and what killed processes leave."""

from __future__ import annotations

import hashlib
import json
import os
import resource
from pathlib import Path

import numpy as np
import pytest

from tests.tools.faults import run_killed
from tests.tools.made_line import prepare, write_recipe, write_sources
from tests.tools.text_line import CASES, text_line
from tests.tools.tiny_data import register, write_byte_tokenizer
from tests.unit.data.inputs import byte_tokenizer, dump, write
from trainer_core.data.audit.verify import verify_data_line
from trainer_core.data.heldout.validation import cut_rows, make_heldout
from trainer_core.data.making.initialize import init_data_line
from trainer_core.data.sources import load_data_line
from trainer_core.data.tokens import open_files
from trainer_core.data.tokens.fingerprints import Fingerprints, hashes_path
from trainer_core.data.tokens.holdout import is_held_out
from trainer_core.data.tokens.open_files import OpenFiles
from trainer_core.data.tokens.spool import Spool
from trainer_core.errors import Refused
from trainer_core.line.paths import DataPaths

TOKENIZER = CASES / "B01" / "tokenizer.json"
TEXTS = [f"\u00fcber document {number % 700}" for number in range(1000)]


def text_hash(text: str) -> int:
    return int.from_bytes(hashlib.blake2b(text.encode(), digest_size=8).digest(), "little")


@pytest.fixture
def line(tmp_path: Path) -> Path:
    (tmp_path / "tokenizer.json").write_bytes(dump(byte_tokenizer()))
    files = [
        write(tmp_path / "a.parquet", [*TEXTS, None, "", "\n"]),
        write(tmp_path / "b.jsonl", TEXTS[:10]),
    ]
    return text_line(tmp_path, {"s": files}, tmp_path / "tokenizer.json", heldout=0.1, id="case")


def opened(work: Path) -> OpenFiles:
    return OpenFiles(work, load_data_line(work))


def test_facts_count_what_is_trained_on(line: Path) -> None:
    trained = [text for text in TEXTS if not is_held_out(text, identity="case", fraction=0.1)]
    for files in (opened(line), opened(line)):
        facts = files.tokenize("s", "a.parquet")
        assert facts.documents == len(trained) < 1000
        assert facts.heldout_docs == 1000 - len(trained)
        assert facts.characters == sum(map(len, trained))
        assert facts.tokens == sum(len(text.encode()) + 1 for text in trained)
        assert facts.duplicates == len(trained) - len(set(trained)) > 0
        assert facts.skipped == {"null": 1, "empty": 2}


def test_sampled_hashes_stay_when_the_tokens_are_gone(line: Path) -> None:
    files, paths = opened(line), DataPaths(line)
    files.tokenize("s", "a.parquet")
    kept = hashes_path(paths, "s", "a.parquet")
    first = kept.read_bytes()
    trained = [text for text in TEXTS if not is_held_out(text, identity="case", fraction=0.1)]
    expected = sorted(number for number in map(text_hash, trained) if number % 256 == 0)
    assert np.frombuffer(first, "<u8").tolist() == expected and expected
    files.forget("s", "a.parquet")
    assert kept.read_bytes() == first
    files.tokenize("s", "a.parquet")
    assert kept.read_bytes() == first


def test_a_kill_at_any_file_operation_leaves_no_tokens_without_their_hashes(line: Path) -> None:
    kept, target = hashes_path(DataPaths(line), "s", "b.jsonl"), opened(line).path("s", "b.jsonl")
    whole, killed = None, 0
    while run_killed(lambda: opened(line).tokenize("s", "b.jsonl"), killed):
        killed += 1
        assert kept.exists() or not target.exists()
        files = opened(line)
        files.on_disk()
        files.tokenize("s", "b.jsonl")
        whole = whole or (target.read_bytes(), kept.read_bytes())
        assert whole == (target.read_bytes(), kept.read_bytes())
        assert not [path for path in line.rglob("*") if path.suffix in (".part", ".spool", ".tmp")]
        target.unlink()
        kept.unlink()
    assert killed > 8


def test_a_file_without_documents_is_tokenized_to_none(tmp_path: Path) -> None:
    files = [write(tmp_path / "a.jsonl", ["text to train on"]), write(tmp_path / "b.jsonl", [None, ""])]
    work = text_line(tmp_path, {"s": files}, TOKENIZER)
    facts = opened(work).tokenize("s", "b.jsonl")
    assert (facts.documents, facts.tokens, facts.characters, facts.duplicates) == (0, 0, 0, 0)
    assert hashes_path(DataPaths(work), "s", "b.jsonl").read_bytes() == b""


def test_leftovers_of_killed_processes_are_swept_and_finished_files_stay(line: Path) -> None:
    files, paths = opened(line), DataPaths(line)
    files.tokenize("s", "b.jsonl")
    place = files.path("s", "a.parquet")
    leftovers = [
        place.with_name(f"{place.name}.999.0a1b2c3d.spool"),
        place.with_name(f"{place.name}.999.0a1b2c3d.part"),
        hashes_path(paths, "s", "a.parquet").with_name(".a.parquet.u64.999.tmp"),
    ]
    for leftover in leftovers:
        leftover.write_bytes(b"half")
    assert files.shard("s", "a.parquet") is None
    assert files.on_disk() == [("s", "b.jsonl")]
    assert not any(map(os.path.exists, leftovers))
    files.tokenize("s", "a.parquet")
    assert files.on_disk() == [("s", "a.parquet"), ("s", "b.jsonl")]


def test_nothing_half_made_stays_when_a_file_is_refused(line: Path, tmp_path: Path) -> None:
    before = sorted(path for path in line.rglob("*") if path.is_file())
    source = tmp_path / "sources" / "s" / "a.parquet"
    source.write_bytes(source.read_bytes()[:-1] + b"x")
    with pytest.raises(Refused, match=r"a\.parquet"):
        opened(line).tokenize("s", "a.parquet")
    assert sorted(path for path in line.rglob("*") if path.is_file()) == before


@pytest.mark.parametrize("slice_tokens", [1, 7, 100, 1 << 20])
@pytest.mark.parametrize("width", [np.uint16, np.uint32])
def test_a_spool_gives_documents_in_any_order(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, slice_tokens: int, width: type
) -> None:
    monkeypatch.setattr("trainer_core.data.tokens.spool._SLICE_TOKENS", slice_tokens)
    rng = np.random.default_rng(0)
    documents = [rng.integers(0, 60_000, size=size).astype(width) for size in (3, 1, 50, 8, 0, 2, 9)]
    order = rng.permutation(len(documents))
    with Spool(tmp_path / "spool", np.dtype(width)) as spool:
        for first in range(0, len(documents), 3):
            batch = documents[first : first + 3]
            spool.append(np.concatenate(batch), [len(document) for document in batch])
        assert len(spool) == 7 and spool.lengths().tolist() == [len(document) for document in documents]
        slices = list(spool.gather(order))
        again = list(spool.gather(order))
    assert np.concatenate(slices).tolist() == np.concatenate([documents[i] for i in order]).tolist()
    assert np.concatenate(again).tolist() == np.concatenate(slices).tolist()
    assert all(len(part) <= max(slice_tokens, 50) for part in slices)


def test_fingerprints_count_copies_exactly() -> None:
    prints = Fingerprints()
    for text in ["a", "b", "a", "a", "c\n", "c"]:
        prints.add(text.encode())
    assert prints.duplicates == 2
    assert Fingerprints().duplicates == 0


def test_a_changed_byte_anywhere_is_refused_or_the_file_counts_as_absent(line: Path) -> None:
    files = opened(line)
    files.tokenize("s", "b.jsonl")
    path = files.path("s", "b.jsonl")
    whole = path.read_bytes()
    refused = 0
    for position in range(8, len(whole), 7):
        path.write_bytes(whole[:position] + bytes([whole[position] ^ 1]) + whole[position + 1 :])
        try:
            assert opened(line).counts("s", "b.jsonl") is None
        except Refused as error:
            refused += 1
            assert str(path) in str(error) and "delete it, it is made again" in str(error)
    tokens = len(files.shard("s", "b.jsonl").tokens)  # type: ignore[union-attr]
    assert refused > 2 * tokens // 7 - 2 > 30


def test_more_files_than_a_process_may_open(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(open_files, "_MAPPED", 8)
    write_sources(tmp_path, "many", strata=1, files=40, docs=8)
    work = tmp_path / "line"
    recipe = write_recipe(tmp_path, (0, {"many": 1}))
    value = json.loads(recipe.read_text())
    value["sources"]["many"] |= {"stratum": "file", "heldout": 0.2}
    recipe.write_text(json.dumps(value))
    eos_id = write_byte_tokenizer(tmp_path / "tokenizer.json")
    init_data_line(
        work, recipe=recipe, tokenizer=tmp_path / "tokenizer.json", eos_id=eos_id, cycle_tokens=2400
    )
    register(work)
    limits = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (len(os.listdir("/proc/self/fd")) + 50, limits[1]))
    try:
        make_heldout(work)
        cut_rows(work, 16, 2)
        prepare(work, 0)
        assert verify_data_line(work, sources=True).problems == []
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, limits)
    assert len(opened(work).on_disk()) == 40
