"""Parquet to tokenized files: ours, datatrove's tokenizer step, and the encode call alone, on one core.

    python -m benchmarks.tokenize_parquet [--mb 4] [--vocab 8192] [--rounds 20]

All three get the same documents (the sample corpus, in a few parquet files) and use the same tokenizer.json.
Ours is the whole step of a data line: held-out decision, encoding with exact handling of control tokens and
the guard, duplicates, document shuffle, shard with its hash. The peer is `ParquetReader` and
`DocumentTokenizer` with their defaults, which shuffle too; the floor is `encode_batch_fast` on texts in
memory, its ids left unread. All run in turn in one process, each in a thread of its own and so with a heap of
its own, as a tokenizer worker has in either system: in a shared heap the library's allocations are slowed by
what the others leave behind. Every file is a contest of its own, so that rounds are short; a contender's time
is the sum of its best rounds, and the median of the rounds' ratios is printed beside.
Needs `pip install -e ".[bench]"`.
"""

from __future__ import annotations

import argparse
import shutil
import tempfile
from multiprocessing import get_context
from pathlib import Path
from statistics import median

import pyarrow as pa
import pyarrow.parquet as pq
from datatrove.pipeline.readers import ParquetReader
from datatrove.pipeline.tokens import DocumentTokenizer
from datatrove.utils.logging import logger
from tokenizers import Tokenizer

from benchmarks.contest import OwnHeap, table
from trainer_core.data.making.initialize import init_data_line
from trainer_core.data.sample.build import build_sample
from trainer_core.data.sources import TextRule, load_data_line
from trainer_core.data.text.read import iter_documents
from trainer_core.data.tokens.encode import Encoder
from trainer_core.data.tokens.open_files import OpenFiles
from trainer_core.data.tokens.train_tokenizer import EOS_ID, EOS_TOKEN, train_bpe
from trainer_core.line.files import write_json

CYCLE_TOKENS = 2e10
LINE_TOKENS_PER_SECOND = 48_000
NUM_FILES = 4
_BATCH = 16


class Bench:
    """The ways to encode one file; all tokenizers are loaded before anything is timed."""

    def __init__(self, root: Path) -> None:
        self.corpus, tokenizer = root / "corpus", str(root / "tokenizer.json")
        self.native = Tokenizer.from_file(tokenizer)
        self.files = OpenFiles(root / "line", load_data_line(root / "line"))
        self.encoder: Encoder = self.files.encoder("corpus")
        self.out = root / "datatrove"
        self.step = DocumentTokenizer(str(self.out), tokenizer, eos_token=EOS_TOKEN, seed=0)
        assert self.step.tokenizer.get_vocab_size()
        self.texts: dict[str, list[str]] = {
            path.name: pq.read_table(path).column("content").to_pylist()
            for path in sorted(self.corpus.glob("*.parquet"))
        }

    def ours(self, name: str) -> None:
        """The step of a data line, from the file to the tokens under open/."""
        facts = self.files.tokenize("corpus", name)
        assert facts.documents + facts.heldout_docs == len(self.texts[name])
        self.files.forget("corpus", name)

    def datatrove(self, name: str) -> None:
        """The peer's step."""
        reader = ParquetReader(str(self.corpus), text_key="content", read_metadata=False, glob_pattern=name)
        for _ in self.step.run(reader.run()) or ():
            pass
        assert any(path.stat().st_size for path in self.out.glob("*.ds"))
        shutil.rmtree(self.out)

    def floor(self, name: str) -> None:
        """The library's call alone."""
        texts = self.texts[name]
        for first in range(0, len(texts), _BATCH):
            self.native.encode_batch_fast(texts[first : first + _BATCH], add_special_tokens=False)


def make(root: Path, megabytes: int, vocab_size: int) -> None:
    """Corpus, tokenizer and data line on disk."""
    build_sample(root / "sample", max_mb=megabytes)
    paths = sorted((root / "sample").rglob("*.parquet"))
    texts = [str(document) for path in paths for document in iter_documents(path, TextRule())]
    tokenizer, corpus = root / "tokenizer.json", root / "corpus"
    tokenizer.write_bytes(train_bpe(texts, vocab_size))
    corpus.mkdir()
    for number in range(NUM_FILES):
        part = texts[number::NUM_FILES]
        columns = pa.table({"id": list(map(str, range(len(part)))), "content": part})
        pq.write_table(columns, corpus / f"{number}.parquet", row_group_size=1000, compression="zstd")
    # The held-out decision is made for every document; nearly none is left out, as the peer leaves none out.
    source = {"folder": str(corpus), "text": {"column": "content"}, "heldout": 1e-6}
    recipe = {"sources": {"corpus": source}, "pieces": [{"from_cycle": 0, "shares": {"corpus": 1}}]}
    write_json(root / "recipe.json", recipe)
    init_data_line(
        root / "line",
        recipe=root / "recipe.json",
        tokenizer=tokenizer,
        eos_id=EOS_ID,
        cycle_tokens=1 << 16,
    )


def main() -> None:
    """Run and print."""
    arguments = argparse.ArgumentParser(description="parquet to tokens, against datatrove")
    arguments.add_argument("--mb", type=int, default=4, help="megabytes of the sample corpus")
    arguments.add_argument("--vocab", type=int, default=8192, help="entries of the BPE trained on it")
    arguments.add_argument("--rounds", type=int, default=20, help="rounds of all contenders")
    chosen = arguments.parse_args()
    logger.remove()
    with tempfile.TemporaryDirectory() as folder:
        making = get_context("fork").Process(target=make, args=(Path(folder), chosen.mb, chosen.vocab))
        making.start()
        making.join()
        report(Bench(Path(folder)), chosen.rounds)


def report(bench: Bench, rounds: int) -> None:
    """Hold the contests and print their table."""
    ways = {"nstrain": bench.ours, "datatrove": bench.datatrove, "encode call alone": bench.floor}
    contenders = {way: OwnHeap(call) for way, call in ways.items()}
    best = dict.fromkeys(ways, 0.0)
    ratios: dict[str, list[float]] = {way: [] for way in ways}
    for name in bench.texts:
        took = [{way: call(name) for way, call in contenders.items()} for _ in range(rounds)]
        for way in ways:
            best[way] += min(one[way] for one in took)
            ratios[way] += [one["datatrove"] / one[way] for one in took[1:]]
    for contender in contenders.values():
        contender.close()
    texts = [text for part in bench.texts.values() for text in part]
    num_tokens = len(bench.encoder.encode_flat(texts).ids)
    megabytes = sum(len(text.encode("utf-8")) for text in texts) / 1e6
    rows = [
        (
            way,
            f"{len(texts) / seconds:,.0f}",
            f"{megabytes / seconds:.2f}",
            f"{num_tokens / seconds / 1e6:.3f}",
            f"{best['datatrove'] / seconds:.2f}x",
            f"{median(ratios[way]):.2f}x",
        )
        for way, seconds in best.items()
    ]
    print(f"{len(texts):,} documents, {megabytes:.1f} MB, {num_tokens:,} tokens")
    print(table(("per CPU second", "documents", "MB", "M tokens", "to datatrove", "median round"), rows))
    speed = num_tokens / best["nstrain"]
    print(f"a cycle of {CYCLE_TOKENS:.0e} tokens: {CYCLE_TOKENS / speed / 3600:.1f} CPU-hours")
    print(f"a line of {LINE_TOKENS_PER_SECOND:,} tokens/s: {LINE_TOKENS_PER_SECOND / speed:.1%} of one core")


if __name__ == "__main__":
    main()
