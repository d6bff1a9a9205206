"""Two suites that exclude each other in one process: Triton decides at its import whether it interprets.

The interpreted one runs in a process of its own. It takes minutes of one core, so it starts as soon as it is
known that its test will run, beside the tests that come before.
"""

import os
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest
import torch

torch.set_num_threads(1)

HERE = Path(__file__).parent
INSIDE = os.environ.get("TRITON_INTERPRET") == "1"

collect_ignore = ["compiled", "test_interpreted.py"] if INSIDE else ["interpreted"]

SUITE = pytest.StashKey[tuple[subprocess.Popen[str], Path]]()
"""The running suite and the file that it prints to."""


def pytest_collection_finish(session: pytest.Session) -> None:
    wanted = any("interpreted_suite" in getattr(item, "fixturenames", ()) for item in session.items)
    if not wanted or session.config.option.collectonly:
        return
    output, name = tempfile.mkstemp(suffix=".txt")
    process = subprocess.Popen(
        [sys.executable, "-m", "pytest", "-p", "no:cacheprovider", str(HERE / "interpreted")],
        cwd=HERE.parents[1],
        env={**os.environ, "TRITON_INTERPRET": "1"},
        stdout=output,
        stderr=subprocess.STDOUT,
        text=True,
    )
    os.close(output)
    session.config.stash[SUITE] = process, Path(name)


def pytest_unconfigure(config: pytest.Config) -> None:
    if (started := config.stash.get(SUITE, None)) is not None:
        process, output = started
        process.kill()
        process.wait()
        output.unlink()


@pytest.fixture
def interpreted_suite(request: pytest.FixtureRequest) -> tuple[int, str]:
    """Exit code and output of the interpreted suite."""
    process, output = request.config.stash[SUITE]
    return process.wait(timeout=900), output.read_text()
