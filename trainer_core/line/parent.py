"""Ends this process when its parent has ended: for children whose work is safe to be cut off anywhere."""

from __future__ import annotations

import os
import threading
import time

ORPHANED = 50
"""Exit code of a process whose parent is gone."""

_POLL_SECONDS = 0.2


def end_with_parent(parent: int | None = None) -> None:
    """Leave as soon as `parent` (by default whoever is the parent now) is no longer this process's parent."""
    expected = os.getppid() if parent is None else parent

    def look() -> None:
        while os.getppid() == expected:
            time.sleep(_POLL_SECONDS)
        os._exit(ORPHANED)

    threading.Thread(target=look, name="end-with-parent", daemon=True).start()
