"""Tiny data lines for tests: in memory for the planner, on disk with a byte tokenizer for everything else."""

import json
from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np
from tokenizers import Tokenizer, decoders, models, pre_tokenizers

from trainer_core.data.files.folder import list_folder, pin_files
from trainer_core.data.plan.consumer import Consumer, ConsumerPiece, register_consumer
from trainer_core.data.prepare.preparer import CyclePreparer
from trainer_core.data.sources import (
    DataLine,
    Piece,
    SourceFile,
    SourceSpec,
    Stratum,
    TextRule,
    TokenizerRecord,
)
from trainer_core.data.tokens.encode import Encoder, tokenizer_facts
from trainer_core.line.files import write_json
from trainer_core.line.paths import DataPaths

Lengths = Mapping[str, Mapping[str, Mapping[str, Sequence[int]]]]
"""Token counts of documents: source -> stratum -> file -> lengths (EOS included)."""


def planned_line(
    lengths: Lengths, *, cycle_tokens: int, shares: Mapping[str, int], segments: int = 1, seed: int = 7
) -> DataLine:
    """A data line over files of known document lengths; nothing of it is on disk."""
    sources = []
    for name, strata in lengths.items():
        files = [
            SourceFile(path=path, size=sum(docs), digest="0" * 64, stratum=stratum)
            for stratum, entries in strata.items()
            for path, docs in entries.items()
        ]
        sources.append(
            SourceSpec(
                name=name,
                identity=name,
                folder="/nowhere",
                glob="**/*",
                stratum_rule=1,
                text=TextRule(kind="column", column="text"),
                markers=(),
                heldout=0.0,
                encode_sha256="0" * 64,
                files=tuple(sorted(files, key=lambda file: file.path)),
                ignored=(),
                strata=tuple(
                    Stratum(name=stratum, tokens=sum(sum(docs) for docs in entries.values()))
                    for stratum, entries in sorted(strata.items())
                ),
            )
        )
    return DataLine(
        cycle_tokens=cycle_tokens,
        seed=seed,
        segments=segments,
        planner_version=1,
        eos_id=0,
        token_dtype="uint16",
        tokenizer=TokenizerRecord(
            path="/nowhere", sha256="0" * 64, library_version="0", vocab_size=257, largest_id=256
        ),
        sources=tuple(sources),
        pieces=(Piece(from_cycle=0, shares=dict(shares)),),
    )


def one_consumer(*, row_length: int, tokens_per_update: int) -> Consumer:
    """A consumer with one row length and one batch size."""
    return Consumer(
        line="/lines/trunk",
        row_lengths=(ConsumerPiece(start=0, end=None, value=row_length),),
        batches=(ConsumerPiece(start=0, end=None, value=tokens_per_update),),
    )


def schedules(*, lengths: Sequence[tuple[int, int]], batches: Sequence[tuple[int, int]]) -> Consumer:
    """A consumer whose values are (first token, value), each in force until the next."""

    def pieces(values: Sequence[tuple[int, int]]) -> tuple[ConsumerPiece, ...]:
        ends = [start for start, _ in values[1:]] + [None]
        return tuple(ConsumerPiece(start=s, end=e, value=v) for (s, v), e in zip(values, ends, strict=True))

    return Consumer(line="/lines/trunk", row_lengths=pieces(lengths), batches=pieces(batches))


class KnownCounts:
    """Document ends by source and path, as if every file were tokenized."""

    def __init__(self, lengths: Lengths) -> None:
        self.ends = {
            (source, path): np.cumsum(docs, dtype=np.int64)
            for source, strata in lengths.items()
            for entries in strata.values()
            for path, docs in entries.items()
        }

    def __call__(self, source: str, path: str) -> np.ndarray | None:
        return self.ends.get((source, path))

    def estimate(self, source: str, path: str) -> int:
        """Exactly what the file holds."""
        ends = self.ends[source, path]
        return int(ends[-1]) if len(ends) else 0


def random_lengths(
    seed: int, *, sources: int = 2, strata: int = 3, files: int = 5, docs: int = 40, longest: int = 300
) -> dict[str, dict[str, dict[str, list[int]]]]:
    """Skewed document lengths, strata of very different sizes."""
    rng = np.random.default_rng(seed)
    return {
        f"s{s}": {
            f"t{t}": {
                f"t{t}/f{f}.jsonl": (
                    1 + rng.integers(0, longest, size=docs * (1 + t)) // rng.integers(1, 9)
                ).tolist()
                for f in range(files)
            }
            for t in range(strata)
        }
        for s in range(sources)
    }


EOS = "<|endoftext|>"
STRATA = ("t0", "t1", "t2", "t3")
ROW_LENGTH = 16
UPDATE_TOKENS = 128


def write_byte_tokenizer(path: Path) -> int:
    """A tokenizer.json with one token per byte and an end-of-document token; its id."""
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    tokenizer = Tokenizer(models.BPE(vocab={char: index for index, char in enumerate(alphabet)}, merges=[]))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.add_special_tokens([EOS])
    path.write_text(tokenizer.to_str(), encoding="utf-8")
    return int(tokenizer.token_to_id(EOS))


def write_texts(folder: Path, *, strata: int, files: int, docs: int, seed: int) -> None:
    """JSON-lines files `t<k>/f<i>.jsonl` whose documents are all different."""
    rng = np.random.default_rng(seed)
    for t in range(strata):
        for f in range(files):
            path = folder / f"t{t}" / f"f{f}.jsonl"
            path.parent.mkdir(parents=True, exist_ok=True)
            rows = []
            for d in range(docs * (1 + t)):
                words = rng.integers(97, 123, size=int(rng.integers(1, 60)), dtype=np.uint8)
                rows.append(json.dumps({"text": f"{seed}/{t}/{f}/{d}:" + words.tobytes().decode("ascii")}))
            rows.insert(len(rows) // 2, json.dumps({"text": ""}))
            path.write_text("\n".join(rows) + "\n", encoding="utf-8")


def disk_line(
    root: Path,
    *,
    cycle_tokens: int = 2000,
    shares: Mapping[str, int] | None = None,
    heldout: float = 0.1,
    segments: int = 2,
    strata: int = 2,
    files: int = 4,
    docs: int = 30,
    seed: int = 11,
    consumer: bool = True,
) -> Path:
    """A data line in `root`/data over `root`/sources, as `data init` would pin it; its folder."""
    shares = shares or {"code": 2, "prose": 1}
    work = root / "data"
    work.mkdir(parents=True)
    eos_id = write_byte_tokenizer(root / "tokenizer.json")
    facts = tokenizer_facts(root / "tokenizer.json")
    sources = []
    for index, name in enumerate(shares):
        folder = root / "sources" / name
        write_texts(folder, strata=strata, files=files, docs=docs, seed=index)
        pinned = pin_files(folder, list_folder(folder, "**/*.jsonl").files, 1)
        sizes = {stratum: sum(f.size for f in pinned if f.stratum == stratum) for stratum in STRATA[:strata]}
        encoder = Encoder((root / "tokenizer.json").read_bytes(), eos_id=eos_id)
        sources.append(
            SourceSpec(
                name=name,
                identity=f"test/{name}",
                folder=str(folder),
                glob="**/*.jsonl",
                stratum_rule=1,
                text=TextRule(kind="column", column="text"),
                markers=(),
                heldout=heldout,
                encode_sha256=encoder.digest,
                files=pinned,
                ignored=(),
                strata=tuple(Stratum(name=stratum, tokens=size // 2) for stratum, size in sizes.items()),
            )
        )
    line = DataLine(
        cycle_tokens=cycle_tokens,
        seed=seed,
        segments=segments,
        planner_version=1,
        eos_id=eos_id,
        token_dtype="uint16",
        tokenizer=TokenizerRecord(
            path=str(root / "tokenizer.json"),
            sha256=facts.sha256,
            library_version=facts.library_version,
            vocab_size=facts.vocab_size,
            largest_id=facts.largest_id,
        ),
        sources=tuple(sources),
        pieces=(Piece(from_cycle=0, shares=dict(shares)),),
    )
    write_json(DataPaths(work).data, line.to_json())
    if consumer:
        register(work)
    return work


def register(work: Path) -> None:
    """Make a training line with rows of ROW_LENGTH the line's consumer."""
    register_consumer(
        work,
        line="/lines/trunk",
        row_lengths=[{"from": 0, "to": None, "length": ROW_LENGTH}],
        batch=[{"from": 0, "to": None, "tokens": UPDATE_TOKENS}],
    )


def two_part_line(root: Path) -> Path:
    """A data line whose cycle 0 is published: 64 rows of 16, then 28 of 32."""
    work = disk_line(root, segments=4, consumer=False)
    register_consumer(
        work,
        line="/lines/trunk",
        row_lengths=[{"from": 0, "to": 1000, "length": 16}, {"from": 1000, "to": None, "length": 32}],
        batch=[{"from": 0, "to": None, "tokens": 128}],
    )
    CyclePreparer(work).tokenize(0)
    return work


def published_bytes(work: Path) -> dict[str, bytes]:
    """Every file that must not depend on kills or times: shards, manifests, state and open files."""
    paths = DataPaths(work)
    return {
        entry.relative_to(work).as_posix(): entry.read_bytes()
        for folder in (paths.cycles, paths.manifests, paths.open, paths.heldout)
        for entry in sorted(folder.rglob("*"))
        if entry.is_file() and not entry.name.startswith(".")
    } | {name: (work / name).read_bytes() for name in ("state.json", "data.json") if (work / name).exists()}
