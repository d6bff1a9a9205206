"""Memory for batches of rows, handed out again once nobody holds it.

A fresh array of some megabytes costs more in page faults than in copying. An array counts as free when only
this module refers to it: a view, a tensor or a queue that still holds it keeps it from being used again.
"""

from __future__ import annotations

import sys
from threading import Lock

import numpy as np

from trainer_core.data.rows.source import Ids

_OUR_REFERENCES = 3
"""The list, the loop's name and the argument of getrefcount."""


class RowBuffers:
    """Arrays of one shape at a time."""

    def __init__(self) -> None:
        self._arrays: list[Ids] = []
        self._lock = Lock()

    def take(self, rows: int, width: int) -> Ids:
        """An array [rows, width] of any content that nobody else holds."""
        with self._lock:
            if self._arrays and self._arrays[0].shape != (rows, width):
                self._arrays.clear()
            for array in self._arrays:
                if sys.getrefcount(array) == _OUR_REFERENCES:
                    return array.view()
            self._arrays.append(np.empty((rows, width), dtype=np.int64))
            return self._arrays[-1].view()
