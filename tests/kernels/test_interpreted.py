"""Runs the interpreted suite in a process of its own, where Triton is told before its import to interpret."""

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

HERE = Path(__file__).parent
INSIDE = os.environ.get("TRITON_INTERPRET") == "1"


@pytest.mark.slow
def test_kernels_equal_their_twins_when_interpreted() -> None:
    if INSIDE:
        return  # this process interprets: its run collects the suite itself
    command = [sys.executable, "-m", "pytest", "-p", "no:cacheprovider", str(HERE / "interpreted")]
    environment = {**os.environ, "TRITON_INTERPRET": "1"}
    done = subprocess.run(
        command, cwd=HERE.parents[1], env=environment, capture_output=True, text=True, timeout=500
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert int(re.findall(r"(\d+) passed", done.stdout)[-1]) >= 50
