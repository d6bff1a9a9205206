"""Planning sixty cycles of fifteen sources, order and records included.

    python -m benchmarks.planning

A recipe of the size of the open MiniCPM corpora: 10 to 96 strata per source, 6,000 files, 3 million documents.
What is timed is all that a preparer does between two cycles but tokenize and write: which documents, the order
of the rows with its digest, and the states as they stand in manifests.
"""

from __future__ import annotations

import numpy as np

from benchmarks.contest import contest, table
from trainer_core.data.consumer import Consumer, ConsumerPiece
from trainer_core.data.plan_state import DocEnds, PlanState, range_json
from trainer_core.data.planner import plan_cycle
from trainer_core.data.sources import (
    DataLine,
    Piece,
    SourceFile,
    SourceSpec,
    Stratum,
    TextRule,
    TokenizerRecord,
)
from trainer_core.line.files import canonical_json

CYCLES = 60
SOURCES = 15
CYCLE_TOKENS = 1 << 22
ROW_LENGTH = 512
SEGMENTS = 32
TARGET = 2.0


def main() -> None:
    """Print CPU seconds of planning, alone and with everything that a manifest says about the plan."""
    line, ends = corpus()

    def plan(records: bool) -> None:
        state = PlanState()
        for _ in range(CYCLES):
            planned = plan_cycle(line, consumer(), state, lambda s, p: ends[s, p], lambda s, p: 1)
            state = planned.after
            if not records:
                continue
            for part in planned.parts:
                part.order.digest()
            canonical_json([planned.before.to_json(), planned.after.to_json()])
            canonical_json([planned.before.digest(), planned.after.digest()])
            for source in planned.sources.values():
                canonical_json([[range_json(docs) for docs in segment] for segment in source.pieces])

    seconds = contest({"documents": lambda: plan(False), "with order and records": lambda: plan(True)})
    rows = [[f"60 cycles, {name}", f"{best:.2f}", f"{TARGET:.1f}"] for name, best in seconds.items()]
    print(table(["plan", "CPU seconds", "target"], rows))


def corpus() -> tuple[DataLine, dict[tuple[str, str], DocEnds]]:
    """A data line that is nowhere on disk, and the document ends of its files."""
    random = np.random.default_rng(5)
    sources, ends = [], {}
    for index in range(SOURCES):
        name = f"source-{index:02d}"
        files, strata = [], []
        for number in range(int(random.integers(10, 97))):
            stratum = f"stratum-{number:02d}"
            held = 0
            for file in range(int(random.integers(2, 14))):
                path = f"{stratum}/part-{file:05d}.parquet"
                ends[name, path] = np.cumsum(random.integers(1, 1500, size=int(random.integers(300, 700))))
                held += int(ends[name, path][-1])
                files.append(SourceFile(path=path, size=1 << 30, digest="0" * 64, stratum=stratum))
            strata.append(Stratum(name=stratum, tokens=held))
        sources.append(_source(name, files, strata))
    shares = [int(source.strata[0].tokens) % 900 + 100 for source in sources]
    line = DataLine(
        cycle_tokens=CYCLE_TOKENS,
        seed=1,
        segments=SEGMENTS,
        planner_version=1,
        eos_id=0,
        token_dtype="uint32",
        tokenizer=TokenizerRecord(path="", sha256="", library_version="", vocab_size=1, largest_id=0),
        sources=tuple(sources),
        pieces=(Piece(from_cycle=0, shares={s.name: n for s, n in zip(sources, shares, strict=True)}),),
    )
    return line, ends


def _source(name: str, files: list[SourceFile], strata: list[Stratum]) -> SourceSpec:
    return SourceSpec(
        name=name,
        identity=name,
        folder="",
        glob="**/*",
        stratum_rule=1,
        text=TextRule(kind="column", column="text"),
        markers=(),
        heldout=0.0,
        encode_sha256="",
        files=tuple(files),
        ignored=(),
        strata=tuple(strata),
    )


def consumer() -> Consumer:
    """Rows of one length, updates of 64."""
    return Consumer(
        line="",
        row_lengths=(ConsumerPiece(start=0, end=None, value=ROW_LENGTH),),
        batches=(ConsumerPiece(start=0, end=None, value=64 * ROW_LENGTH),),
    )


if __name__ == "__main__":
    main()
