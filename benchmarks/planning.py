"""Planning sixty cycles of fifteen sources, alone and with its records.

    python -m benchmarks.planning

Once with the strata that the open MiniCPM corpora have (languages, crawl dumps, or one), once with 10 to 96
strata in every source; each stratum has 2 to 13 files of 300 to 700 documents.
The second figure adds what a manifest says about the plan: the digest of the order, both states, every piece.
"""

from __future__ import annotations

from functools import partial

import numpy as np

from benchmarks.contest import contest, table
from trainer_core.data.plan.consumer import Consumer, ConsumerPiece
from trainer_core.data.plan.planner import plan_cycle
from trainer_core.data.plan.state import DocEnds, PlanState, range_json
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
SHARES = [97, 61, 143, 52, 180, 33, 41, 37, 29, 17, 83, 47, 23, 31, 19]
CYCLE_TOKENS = 1 << 22
ROW_LENGTH = 512
SEGMENTS = 32
TARGET = 2.0


def main() -> None:
    """Print CPU seconds of planning, alone and with everything that a manifest says about the plan."""
    rows = []
    random = np.random.default_rng(4)
    for name, strata in (
        ("MiniCPM's strata", [11, 11, 96, 1, 96, 1, 1, 1, 1, 1, 4, 1, 1, 1, 5]),
        ("10 to 96 strata each", random.integers(10, 97, size=15).tolist()),
    ):
        line, ends = corpus(strata)
        seconds = contest(
            {
                "documents": partial(plan, line, ends, False),
                "order and records too": partial(plan, line, ends, True),
            }
        )
        rows += [
            [f"{name} ({sum(strata)}): {what}", f"{best:.2f}", f"{TARGET:.1f}"]
            for what, best in seconds.items()
        ]
    print(table([f"{CYCLES} cycles of 15 sources", "CPU seconds", "target"], rows))


def plan(line: DataLine, ends: dict[tuple[str, str], DocEnds], records: bool) -> None:
    """Plan all cycles; with `records`, also make what manifests say about them."""
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


def corpus(num_strata: list[int]) -> tuple[DataLine, dict[tuple[str, str], DocEnds]]:
    """A data line that is nowhere on disk, and the document ends of its files."""
    random = np.random.default_rng(5)
    sources, ends = [], {}
    for index, number_of_strata in enumerate(num_strata):
        name = f"source-{index:02d}"
        files, strata = [], []
        for number in range(number_of_strata):
            stratum = f"stratum-{number:02d}"
            held = 0
            # A source with few strata has as many files as one with many.
            for file in range(int(random.integers(2, 14)) * max(1, 20 // number_of_strata)):
                path = f"{stratum}/part-{file:05d}.parquet"
                ends[name, path] = np.cumsum(random.integers(1, 1500, size=int(random.integers(300, 700))))
                held += int(ends[name, path][-1])
                files.append(SourceFile(path=path, size=1 << 30, digest="0" * 64, stratum=stratum))
            strata.append(Stratum(name=stratum, tokens=held))
        sources.append(_source(name, files, strata))
    line = DataLine(
        cycle_tokens=CYCLE_TOKENS,
        seed=1,
        segments=SEGMENTS,
        planner_version=1,
        eos_id=0,
        token_dtype="uint32",
        tokenizer=TokenizerRecord(path="", sha256="", library_version="", vocab_size=1, largest_id=0),
        sources=tuple(sources),
        pieces=(Piece(from_cycle=0, shares={s.name: n for s, n in zip(sources, SHARES, strict=True)}),),
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
