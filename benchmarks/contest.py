"""How contenders are compared: alternated in one process, in CPU seconds, each by its best round.

Never compares wall time: the machine may be shared. Alternation spreads what disturbs the machine for a
while over all of them, and the best round is the one that was disturbed least. CPU seconds are those of this
process with its threads, and of the children that it waited for.

Contenders that allocate much disturb each other's heap: each of them may have a process that lasts through
all rounds (`Lasting`), as each has in use.
"""

from __future__ import annotations

import gc
import resource
import time
from collections.abc import Callable, Mapping, Sequence
from multiprocessing import get_context
from multiprocessing.connection import Connection


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


class Lasting:
    """A contender in a forked process of its own, which keeps its heap and caches between rounds."""

    def __init__(self, call: Callable[[str], object]) -> None:
        self._pipe, theirs = get_context("fork").Pipe()
        self._child = get_context("fork").Process(target=_serve, args=(call, theirs), daemon=True)
        self._child.start()
        theirs.close()

    def __call__(self, argument: str) -> float:
        """Run one round there; the CPU seconds that it took. Raises EOFError when the call failed."""
        self._pipe.send(argument)
        seconds: float = self._pipe.recv()
        return seconds

    def close(self) -> None:
        """End its process."""
        self._child.kill()
        self._child.join()
        self._pipe.close()


def _serve(call: Callable[[str], object], pipe: Connection) -> None:
    while True:
        argument = pipe.recv()
        gc.collect()
        start = time.process_time()
        call(argument)
        pipe.send(time.process_time() - start)


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
