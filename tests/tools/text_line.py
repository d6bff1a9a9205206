"""A data line over given files and a given tokenizer, and what it made of each file."""

from __future__ import annotations

import json
import shutil
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from trainer_core.data.making.initialize import init_data_line
from trainer_core.data.plan.order import permutation
from trainer_core.data.sources import load_data_line
from trainer_core.data.tokens.open_files import OpenFiles

CASES = Path(__file__).parents[1] / "cases"


def text_line(
    root: Path,
    sources: Mapping[str, Sequence[Path]],
    tokenizer: Path,
    *,
    eos_id: int = 1,
    cycle_tokens: int = 4,
    seed: int = 0,
    **settings: Any,
) -> Path:
    """`data init` over copies of the files, one source for each name; the line's folder."""
    recipe: dict[str, Any] = {"sources": {}, "seed": seed}
    for name, files in sources.items():
        folder = root / "sources" / name
        folder.mkdir(parents=True, exist_ok=True)
        for file in files:
            shutil.copyfile(file, folder / file.name)
        recipe["sources"][name] = {"folder": str(folder), "heldout": 0, **settings}
    recipe["pieces"] = [{"from_cycle": 0, "shares": {name: f"1/{len(sources)}" for name in sources}}]
    (root / "recipe.json").write_text(json.dumps(recipe))
    work = root / "line"
    init_data_line(
        work, recipe=root / "recipe.json", tokenizer=tokenizer, eos_id=eos_id, cycle_tokens=cycle_tokens
    )
    return work


def tokenized(work: Path, source: str, path: str) -> list[list[int]]:
    """Ids of a file's documents in reading order, each with its end."""
    line = load_data_line(work)
    files = OpenFiles(work, line)
    files.tokenize(source, path)
    shard = files.shard(source, path)
    assert shard is not None
    if not len(shard.doc_ends):
        return []
    documents = np.split(shard.tokens, shard.doc_ends[:-1].astype(np.int64))
    order = permutation(line.seed, "documents", source, path, n=len(documents))
    placed = dict(zip(order.tolist(), documents, strict=True))
    return [placed[index].tolist() for index in range(len(documents))]


def texts(work: Path, source: str, path: str) -> list[str]:
    """The documents' texts in reading order."""
    encoder = OpenFiles(work, load_data_line(work)).encoder(source)
    return [encoder.decode(np.array(ids)) for ids in tokenized(work, source, path)]
