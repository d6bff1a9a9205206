"""The most bytes that the files of a data line take while a block runs."""

import os
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress

from trainer_core.line.paths import DataPaths


@contextmanager
def watching(paths: DataPaths, peak: list[int]) -> Iterator[None]:
    """Keep the largest sum of all files that come and go, looked at all the time."""
    over = threading.Event()

    def look() -> None:
        while not over.wait(0.02):
            size = 0
            for folder in (paths.cycles, paths.open, paths.heldout, paths.root / "incoming"):
                for place, _, names in os.walk(folder):
                    for name in names:
                        with suppress(FileNotFoundError):
                            size += os.stat(os.path.join(place, name)).st_size
            peak[0] = max(peak[0], size)

    thread = threading.Thread(target=look)
    thread.start()
    try:
        yield
    finally:
        over.set()
        thread.join()
