"""A data line made the way people make one: init, held-out text, a training line's record, cycles."""

import json
import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from tests.tools.tiny_data import register, write_byte_tokenizer, write_texts
from trainer_core.data.heldout.validation import make_heldout
from trainer_core.data.making.initialize import init_data_line
from trainer_core.data.prepare.preparer import CyclePreparer

SHARES = {"code": 0.75, "prose": 0.25}


def write_sources(root: Path, *names: str, strata: int = 2, files: int = 4, docs: int = 30) -> None:
    """A folder of JSON-lines files for each name."""
    for name in names:
        write_texts(root / name, strata=strata, files=files, docs=docs, seed=sum(name.encode()))


def write_recipe(root: Path, *pieces: tuple[int, Mapping[str, float]], **changes: Any) -> Path:
    """root/recipe.json over the folders that its pieces name, in their order."""
    names = list(dict.fromkeys(name for _, shares in pieces for name in shares))
    sources = {name: {"folder": name, "stratum": {"level": 1}, "heldout": 0.1} for name in names}
    path = root / "recipe.json"
    recipe = {
        "sources": sources,
        "pieces": [{"from_cycle": first, "shares": dict(shares)} for first, shares in pieces],
        "seed": 3,
    }
    path.write_text(json.dumps(recipe | changes))
    return path


def made_line(root: Path, *, cycles: int = 0, cycle_tokens: int = 2000) -> Path:
    """A line of two folder sources with held-out streams and published cycles; its folder."""
    write_sources(root, *SHARES)
    eos_id = write_byte_tokenizer(root / "tokenizer.json")
    work = root / "line"
    init_data_line(
        work,
        recipe=write_recipe(root, (0, SHARES)),
        tokenizer=root / "tokenizer.json",
        eos_id=eos_id,
        cycle_tokens=cycle_tokens,
    )
    make_heldout(work)
    register(work)
    prepare(work, *range(cycles))
    return work


def copy_of(work: Path) -> Path:
    """A copy of a line's folder beside it, in place of an earlier one; the sources are shared."""
    copy = work.with_name("copy")
    shutil.rmtree(copy, ignore_errors=True)
    shutil.copytree(work, copy)
    return copy


def prepare(work: Path, *cycles: int) -> None:
    """Prepare cycles as the drivers do."""
    preparer = CyclePreparer(work)
    for cycle in cycles:
        preparer.download(cycle)
        preparer.tokenize(cycle)
