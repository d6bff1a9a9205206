"""`nstrain sample`: the corpus, its recipe and its tokenizer, from this environment alone.

The same environment gives the same bytes. Everything is written beside the target and published by one
rename, so the folder is either complete or absent.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

from trainer_core.data.sample.catalog import CATALOG
from trainer_core.data.sample.collect import Document, collect_source
from trainer_core.data.sample.write import write_source
from trainer_core.data.tokens.train_tokenizer import EOS_ID, train_bpe
from trainer_core.errors import DiskFull, Refused, disk_full
from trainer_core.line.files import publish, read_json, write_bytes, write_json

FORMAT = "sample/1"
VOCAB_SIZE = 4096
HELDOUT = 0.05
"""Share of a source's documents held out, where it has many."""
HELDOUT_DOCUMENTS = 12
"""Documents to expect among the held-out ones of a small source: with none no training line can be made."""
SEED = 1
SMALLEST_MB = 1
_TOKENIZER_BYTES = 10_000_000

Corpus = dict[str, dict[str, list[Document]]]


def build_sample(
    out: Path, *, max_mb: int = 40, progress: Callable[[str], None] = lambda message: None
) -> dict[str, Any]:
    """Write the sample corpus of about `max_mb` million bytes into the new folder `out`; returns sample.json.

    Raises Refused when `out` holds anything else, or when too little text is installed.
    """
    if max_mb < SMALLEST_MB:
        raise Refused(f"max_mb {max_mb}: expected at least {SMALLEST_MB}")
    if out.exists() and (not out.is_dir() or any(out.iterdir())):
        raise Refused(f"{out}: exists and is not empty; remove it or choose another --out")
    part = out.with_name(f".{out.name}.part")
    shutil.rmtree(part, ignore_errors=True)
    part.mkdir(parents=True)
    try:
        corpus = _collect(max_mb * 1_000_000, progress)
        for plan in CATALOG:
            write_source(part / plan.name, plan, corpus[plan.name])
        progress(f"training a tokenizer of {VOCAB_SIZE:,} entries")
        (part / "tokenizer").mkdir()
        write_bytes(part / "tokenizer" / "tokenizer.json", train_bpe(_training_texts(corpus), VOCAB_SIZE))
        write_json(part / "recipe.json", _recipe(corpus))
        write_json(part / "sample.json", _facts(corpus, max_mb))
        os.sync()
        publish(part, out)
    except OSError as error:
        if disk_full(error):
            raise DiskFull(
                f"{out}: no space left for the sample corpus; free space and start again"
            ) from error
        raise
    finally:
        shutil.rmtree(part, ignore_errors=True)
    return read_json(out / "sample.json")


def _collect(budget: int, progress: Callable[[str], None]) -> Corpus:
    seen: set[bytes] = set()
    corpus: Corpus = {}
    for plan in CATALOG:
        strata = collect_source(plan, int(budget * plan.share), seen)
        if not any(strata.values()):
            raise Refused(
                f"source {plan.name}: none of its packages is installed here with a list of its files; "
                "install nstrain's dependencies with pip"
            )
        corpus[plan.name] = strata
        documents = sum(map(len, strata.values()))
        progress(f"{plan.name}: {documents:,} documents in strata {', '.join(sorted(strata))}")
    return corpus


def _training_texts(corpus: Corpus) -> list[str]:
    """Every n-th document, so that the tokenizer sees each stratum in its proportion."""
    texts = [text for strata in corpus.values() for documents in strata.values() for _, text in documents]
    total = sum(len(text.encode("utf-8")) for text in texts)
    return texts[:: max(1, -(-total // _TOKENIZER_BYTES))]


def _heldout(documents: int) -> float:
    """Share of a source to hold out: the usual one, or more of a source of few documents, a half at most."""
    return max(HELDOUT, min(0.5, round(HELDOUT_DOCUMENTS / max(1, documents), 3)))


def _recipe(corpus: Corpus) -> dict[str, Any]:
    return {
        "format": "recipe/1",
        "sources": {
            plan.name: {
                "folder": plan.name,
                "glob": "**/*",
                "stratum": plan.stratum_rule,
                "text": "auto",
                "heldout": _heldout(sum(map(len, corpus[plan.name].values()))),
            }
            for plan in CATALOG
        },
        "pieces": [{"from_cycle": 0, "shares": {plan.name: plan.share for plan in CATALOG}}],
        "seed": SEED,
        "max_epochs": 1,
    }


def _facts(corpus: Corpus, max_mb: int) -> dict[str, Any]:
    sources = {}
    for name, strata in corpus.items():
        counts = {
            stratum: {"documents": len(documents), "bytes": sum(map(_size, documents))}
            for stratum, documents in sorted(strata.items())
        }
        sources[name] = {
            "documents": sum(count["documents"] for count in counts.values()),
            "bytes": sum(count["bytes"] for count in counts.values()),
            "strata": counts,
        }
    return {
        "format": FORMAT,
        "max_mb": max_mb,
        "eos_id": EOS_ID,
        "vocab_size": VOCAB_SIZE,
        "recipe": "recipe.json",
        "tokenizer": "tokenizer/tokenizer.json",
        "documents": sum(source["documents"] for source in sources.values()),
        "bytes": sum(source["bytes"] for source in sources.values()),
        "sources": sources,
    }


def _size(document: Document) -> int:
    return len(document[1].encode("utf-8"))
