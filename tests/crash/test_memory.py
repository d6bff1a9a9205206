"""Memory of reading and tokenizing large files: bounded by a batch, never by a file or its row groups.

CI reads one row group of 300 MB; `make crash` (NSTRAIN_CRASH_ALL=1) reads one of 2 GB too, as texts and as
chats, and tokenizes a file of 1 GB. Each runs in a process of its own, whose peak the kernel tells.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from tests.tools.text_line import text_line
from tests.unit.data.inputs import dump, word_tokenizer

ALL = os.environ.get("NSTRAIN_CRASH_ALL") == "1"
MB = 1_000_000
READ = """
import json, sys
from pathlib import Path
import pyarrow.parquet
from tests.tools.resident import resident
from trainer_core.data.text.documents import document_text
from trainer_core.data.sources import TextRule
from trainer_core.data.text.read import iter_documents

before = resident("VmHWM")
rule = TextRule.from_json(json.loads(sys.argv[2]))
sizes = [len(document_text(document)) for document in iter_documents(Path(sys.argv[1]), rule)]
print(json.dumps([sum(sizes), resident("VmHWM") - before]))
"""
TOKENIZE = """
import json, sys
from pathlib import Path
from tests.tools.resident import resident
from trainer_core.data.tokens.open_files import OpenFiles
from trainer_core.data.sources import load_data_line

work = Path(sys.argv[1])
facts = OpenFiles(work, load_data_line(work)).tokenize("s", "a.parquet")
print(json.dumps([facts.characters, resident("VmHWM")]))
"""
RNG = np.random.default_rng(0)
WORDS = [
    bytes(RNG.integers(97, 123, size=size, dtype=np.uint8)).decode() for size in RNG.integers(2, 10, 3000)
]


def documents(characters: int) -> list[str]:
    """Texts of a few thousand characters, about as many characters as asked for."""
    texts: list[str] = []
    held = 0
    while held < characters:
        texts.append(" ".join(WORDS[i] for i in RNG.integers(0, len(WORDS), size=int(RNG.integers(50, 900)))))
        held += len(texts[-1])
    return texts


def one_row_group(path: Path, size: int, *, chats: bool = False) -> int:
    """A file with one row group, in which a column's chunk has `size` bytes; characters of its texts."""
    texts = documents(min(size, 10 * MB))
    rows = [[{"role": "user", "content": text}] for text in texts] if chats else texts
    times = max(1, size // (10 * MB))
    table = pa.table({"text": pa.chunked_array([pa.array(rows)] * times)})
    pq.write_table(table, path, row_group_size=1 << 30, compression="none", use_dictionary=False)
    assert pq.ParquetFile(path).metadata.num_row_groups == 1
    return sum(map(len, texts)) * times


def in_child(code: str, *arguments: str) -> tuple[int, int]:
    """The two numbers that a script prints."""
    command = [sys.executable, "-c", code, *arguments]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    characters, peak = json.loads(done.stdout)
    return characters, peak


@pytest.mark.parametrize("size", [300 * MB, 2000 * MB] if ALL else [300 * MB])
@pytest.mark.parametrize("chats", [False, True] if ALL else [False])
def test_a_large_row_group_is_read_in_a_fraction_of_it(tmp_path: Path, size: int, chats: bool) -> None:
    path = tmp_path / "a.parquet"
    written = one_row_group(path, size, chats=chats)
    rule = {"messages": "text", "template": ["{content}"]} if chats else {"column": "text"}
    characters, growth = in_child(READ, str(path), json.dumps(rule))
    path.unlink()
    assert characters == written
    assert growth < 150 * MB


@pytest.mark.timeout(3600)
@pytest.mark.parametrize("size", [1000 * MB] if ALL else [10 * MB])
def test_a_large_file_is_tokenized_in_a_fraction_of_it(tmp_path: Path, size: int) -> None:
    words = {word: number for number, word in enumerate(dict.fromkeys(["<unk>", "</s>", *WORDS]))}
    (tmp_path / "tokenizer.json").write_bytes(dump(word_tokenizer(words)))
    path = tmp_path / "a.parquet"
    written = one_row_group(path, size)
    work = text_line(tmp_path, {"s": [path]}, tmp_path / "tokenizer.json", cycle_tokens=1000)
    path.unlink()
    characters, peak = in_child(TOKENIZE, str(work))
    assert characters == written
    assert peak < 500 * MB
