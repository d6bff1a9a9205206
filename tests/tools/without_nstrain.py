"""Runs a script where nobody can import nstrain: an exported folder has to do without it."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import sysconfig
from pathlib import Path
from typing import Any

BEFORE = """
import json, sys
sys.path.append(sys.argv[1])  # what pip installed, without what it would run at a start
try:
    import trainer_core
except ImportError:
    pass
else:
    raise SystemExit("trainer_core is importable")
import torch
torch.set_num_threads(1)
given = json.loads(sys.argv[2])
"""


def without_nstrain(script: str, given: Any, root: Path) -> str:
    """What the script prints; `given` is there by that name, and `root` is its home."""
    home = {"HOME": str(root), "HF_HOME": str(root / "hub"), "HF_HUB_OFFLINE": "1", "OMP_NUM_THREADS": "1"}
    packages = sysconfig.get_path("purelib")
    done = subprocess.run(
        [sys.executable, "-I", "-S", "-c", BEFORE + script, packages, json.dumps(given)],
        cwd=root,
        env={"PATH": os.environ["PATH"], **home},
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr[-4000:]
    return done.stdout
