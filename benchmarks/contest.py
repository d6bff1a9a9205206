"""How contenders are compared: alternated in one process, in CPU seconds, each by its best round.

Never compares wall time: the machine may be shared. Alternation spreads what disturbs the machine for a
while over all of them, and the best round is the one that was disturbed least. CPU seconds are those of this
process with its threads, and of the children that it waited for.

Contenders that allocate much disturb each other's heap: each of them may have its own (`OwnHeap`), as each
has in use.
"""

from __future__ import annotations

import gc
import resource
import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor


def cpu_seconds() -> float:
    """CPU seconds that this process and its finished children have used so far."""
    usages = (resource.getrusage(resource.RUSAGE_SELF), resource.getrusage(resource.RUSAGE_CHILDREN))
    return sum(usage.ru_utime + usage.ru_stime for usage in usages)


def contest(
    contenders: Mapping[str, Callable[[], object]],
    rounds: int = 3,
    before: Callable[[str], object] = lambda name: None,
) -> dict[str, float]:
    """The CPU seconds of each contender's best round; every round runs all of them, in turn.

    `before` is called with a contender's name before each of its runs; what it does is not counted.
    """
    best = dict.fromkeys(contenders, float("inf"))
    for _ in range(rounds):
        for name, call in contenders.items():
            before(name)
            gc.collect()
            start = cpu_seconds()
            call()
            best[name] = min(best[name], cpu_seconds() - start)
    return best


class OwnHeap:
    """A contender in a thread of its own: glibc gives each thread a heap, which lasts through all rounds."""

    def __init__(self, call: Callable[[str], object]) -> None:
        self._call = call
        self._thread = ThreadPoolExecutor(max_workers=1)

    def __call__(self, argument: str) -> float:
        """Run one round there; the CPU seconds that it took. Raises what the call raises."""
        return self._thread.submit(self._round, argument).result()

    def _round(self, argument: str) -> float:
        gc.collect()
        start = time.process_time()
        self._call(argument)
        return time.process_time() - start

    def close(self) -> None:
        """End its thread."""
        self._thread.shutdown()


def table(head: Sequence[str], rows: Sequence[Sequence[object]]) -> str:
    """Rows under their head, the first column left, the others right."""
    cells = [list(map(str, row)) for row in (head, *rows)]
    widths = [max(len(row[column]) for row in cells) for column in range(len(head))]
    return "\n".join(
        "  ".join(
            cell.ljust(width) if column == 0 else cell.rjust(width)
            for column, (cell, width) in enumerate(zip(row, widths, strict=True))
        ).rstrip()
        for row in cells
    )
