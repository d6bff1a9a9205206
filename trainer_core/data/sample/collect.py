"""Documents of the sample corpus, read from what pip recorded as installed.

Only recorded files count: what programs wrote into their packages later does not change the corpus. Files
come in an order given by the hash of their names, so that a budget takes from everywhere; equal texts come
once.
"""

from __future__ import annotations

import hashlib
import inspect
import os
import re
import sysconfig
from collections.abc import Iterator
from functools import cache
from importlib import metadata
from pathlib import Path

from trainer_core.data.sample.catalog import STDLIB, SourcePlan, StratumPlan

LONGEST_DOCUMENT = 16 << 10
SHORTEST_DOCSTRING = 400
FEWEST_DOCUMENTS = 40
OTHER = "other"

_DOCSTRING = re.compile(r'^[ \t]*[rRuU]?"""(.*?)"""', re.DOTALL | re.MULTILINE)
_LICENCE = re.compile(r"(^|/)(licen[cs]es?|copying|notice|authors)", re.IGNORECASE)

Document = tuple[str, str]
"""Name of the file it comes from, and its text."""


def collect_source(plan: SourcePlan, budget: int, seen: set[bytes]) -> dict[str, list[Document]]:
    """Documents by stratum, about `budget` bytes in all; strata under 40 documents become `other`."""
    weights = sum(stratum.weight for stratum in plan.strata)
    strata = {
        stratum.name: collect_stratum(stratum, budget * stratum.weight // weights, seen)
        for stratum in plan.strata
    }
    if plan.stratum_rule == "none":
        return strata
    kept = {name: documents for name, documents in strata.items() if len(documents) >= FEWEST_DOCUMENTS}
    few = [doc for name, documents in strata.items() if name not in kept for doc in documents]
    if few:
        kept[OTHER] = kept.get(OTHER, []) + few
    return kept


def collect_stratum(plan: StratumPlan, budget: int, seen: set[bytes]) -> list[Document]:
    """The documents of one stratum until their bytes reach the budget; `seen` holds the hashes of all."""
    documents: list[Document] = []
    taken = 0
    for name, text in _texts(plan):
        for part in split_document(text):
            digest = hashlib.blake2b(part.encode("utf-8"), digest_size=16).digest()
            if digest in seen or not part.strip():
                continue
            if taken >= budget:
                return documents
            seen.add(digest)
            documents.append((name, part))
            taken += len(part.encode("utf-8"))
    return documents


def split_document(text: str, longest: int = LONGEST_DOCUMENT) -> Iterator[str]:
    """Parts of at most `longest` UTF-8 bytes, cut after a line if there is one, else between characters."""
    data = text.encode("utf-8")
    start = 0
    while len(data) - start > longest:
        end = data.rfind(b"\n", start, start + longest) + 1
        if end <= start:
            end = start + longest
            while data[end] & 0xC0 == 0x80:  # never inside a character
                end -= 1
        yield data[start:end].decode("utf-8")
        start = end
    if start < len(data):
        yield data[start:].decode("utf-8")


def docstrings(source: str) -> Iterator[str]:
    """Long triple-quoted strings that begin a line, unindented."""
    for match in _DOCSTRING.finditer(source):
        if len(match[1]) >= SHORTEST_DOCSTRING:
            text = inspect.cleandoc(match[1])
            if len(text) >= SHORTEST_DOCSTRING:
                yield text + "\n"


def _texts(plan: StratumPlan) -> Iterator[Document]:
    for name, path in _paths(plan):
        try:
            text = path.read_bytes().decode("utf-8")
        except (UnicodeDecodeError, FileNotFoundError):
            continue
        if plan.kind == "docstrings":
            for part in docstrings(text):
                yield name, part
        elif plan.kind == "description":
            yield name, text.partition("\n\n")[2]
        else:
            yield name, text


def _paths(plan: StratumPlan) -> list[tuple[str, Path]]:
    """Files of a stratum in the order of the hash of their names."""
    chosen = []
    for distribution in plan.distributions:
        for name, path in _installed(distribution):
            information = ".dist-info/" in name
            if plan.kind == "description":
                wanted = information and name.endswith("/METADATA")
            elif plan.kind == "licence":
                wanted = information and _LICENCE.search(name) is not None
            else:
                wanted = not information and name.endswith(plan.suffixes)
            if wanted:
                chosen.append((name, path))
    return sorted(chosen, key=lambda item: hashlib.blake2b(item[0].encode()).digest())


@cache
def _installed(distribution: str) -> tuple[tuple[str, Path], ...]:
    """Recorded files of a distribution by name; none if it is not installed."""
    if distribution == STDLIB:
        return tuple(_standard_library())
    try:
        found = metadata.distribution(distribution)
    except metadata.PackageNotFoundError:
        return ()
    names = sorted({file.as_posix() for file in found.files or ()})
    return tuple((name, Path(str(found.locate_file(name)))) for name in names if not name.startswith(".."))


def _standard_library() -> Iterator[tuple[str, Path]]:
    root = Path(sysconfig.get_path("stdlib"))
    for directory, folders, files in os.walk(root):
        folders[:] = sorted(f for f in folders if f not in ("site-packages", "dist-packages", "__pycache__"))
        for file in sorted(files):
            path = Path(directory) / file
            yield f"stdlib/{path.relative_to(root).as_posix()}", path
