"""Two suites that exclude each other in one process: Triton decides at its import whether it interprets.

Each runs in a process of its own. They take minutes of one core, so they start as soon as it is known that
their tests will run, beside the tests that come before: first the one, then the other.
"""

import os
import subprocess
import sys
import threading
from pathlib import Path

import pytest
import torch

torch.set_num_threads(1)

HERE = Path(__file__).parent
SUITES = {"interpreted": {"TRITON_INTERPRET": "1"}, "compiled": {}}
"""Folder of each suite, with what its process finds in its environment beside ours."""

collect_ignore = list(SUITES)


class Background:
    """Runs the suites one after the other."""

    def __init__(self) -> None:
        self._processes: dict[str, subprocess.Popen[str]] = {}
        self._ended = {name: threading.Event() for name in SUITES}
        self._outputs: dict[str, tuple[int, str]] = {}
        self._stopped = threading.Event()
        threading.Thread(target=self._run, daemon=True).start()

    def _run(self) -> None:
        for name, settings in SUITES.items():
            if self._stopped.is_set():
                return
            process = self._processes[name] = subprocess.Popen(
                [sys.executable, "-m", "pytest", "-p", "no:cacheprovider", str(HERE / name)],
                cwd=HERE.parents[1],
                env={**{k: v for k, v in os.environ.items() if k != "TRITON_INTERPRET"}, **settings},
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT,
                text=True,
            )
            output, _ = process.communicate()
            self._outputs[name] = process.returncode, output
            self._ended[name].set()

    def result(self, name: str) -> tuple[int, str]:
        """Exit code and output of a suite, when it has ended."""
        assert self._ended[name].wait(timeout=1500), f"the {name} suite goes on and on"
        return self._outputs[name]

    def stop(self) -> None:
        """Ends what still runs."""
        self._stopped.set()
        for process in self._processes.values():
            process.kill()
            process.wait()


BACKGROUND = pytest.StashKey[Background]()


def pytest_collection_finish(session: pytest.Session) -> None:
    wanted = any("suites" in getattr(item, "fixturenames", ()) for item in session.items)
    if wanted and not session.config.option.collectonly:
        session.config.stash[BACKGROUND] = Background()


def pytest_unconfigure(config: pytest.Config) -> None:
    if (started := config.stash.get(BACKGROUND, None)) is not None:
        started.stop()


@pytest.fixture
def suites(request: pytest.FixtureRequest) -> Background:
    """The running suites."""
    return request.config.stash[BACKGROUND]
