"""`nstrain tune`: the shapes of a line on this host, as a person asks for them."""

from __future__ import annotations

import math
from pathlib import Path

from deployments.cli.printing import say
from trainer_core.errors import Refused
from trainer_core.host import load_host, resolve


def tune(run: Path, /, *, shared: float = 0.0) -> int:
    """Measure the micro-batch shapes of a line on this host and write the fastest that fit into run.json.

    Parameters
    ----------
    run
        Directory of the line, or its name under work_root.
    shared
        GB of the device's memory that the shapes leave to other programs.
    """
    load_host()
    if not (math.isfinite(shared) and shared >= 0):
        raise Refused(f"--shared {shared}: expected the GB that other programs may use, 0 or more")
    from trainer_core.ops.tune import tune_line

    tune_line(resolve(run), shared_gb=shared, say=say)
    return 0
