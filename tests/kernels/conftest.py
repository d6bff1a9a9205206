"""Two suites that exclude each other in one process: Triton decides at its import whether it interprets.

The interpreted one runs in a process of its own. It takes minutes of one core, so it starts as soon as it is
known that its test will run, beside the tests that come before.
"""

import os
import subprocess
import sys
import tempfile
from contextlib import ExitStack
from pathlib import Path
from typing import IO

import pytest
import torch

torch.set_num_threads(1)

HERE = Path(__file__).parent
INSIDE = os.environ.get("TRITON_INTERPRET") == "1"

collect_ignore = ["compiled", "test_interpreted.py"] if INSIDE else ["interpreted"]

SUITE = pytest.StashKey[tuple[subprocess.Popen[str], IO[str]]]()
"""The running suite and where it prints."""


def pytest_collection_finish(session: pytest.Session) -> None:
    wanted = any("interpreted_suite" in getattr(item, "fixturenames", ()) for item in session.items)
    if wanted and not session.config.option.collectonly:
        output = ExitStack().enter_context(tempfile.TemporaryFile("w+"))
        session.config.stash[SUITE] = (
            subprocess.Popen(
                [sys.executable, "-m", "pytest", "-p", "no:cacheprovider", str(HERE / "interpreted")],
                cwd=HERE.parents[1],
                env={**os.environ, "TRITON_INTERPRET": "1"},
                stdout=output,
                stderr=subprocess.STDOUT,
                text=True,
            ),
            output,
        )


def pytest_unconfigure(config: pytest.Config) -> None:
    if (started := config.stash.get(SUITE, None)) is not None:
        process, output = started
        process.kill()
        process.wait()
        output.close()


@pytest.fixture
def interpreted_suite(request: pytest.FixtureRequest) -> tuple[int, str]:
    """Exit code and output of the interpreted suite."""
    process, output = request.config.stash[SUITE]
    code = process.wait(timeout=900)
    output.seek(0)
    return code, output.read()
