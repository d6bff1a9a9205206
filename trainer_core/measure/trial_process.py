"""The process that measures one shape (`trial`), as seen from here: started, given its time, ended.

However it ends, the answer is one: figures, or a problem in words. Imports no torch.
"""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from contextlib import suppress
from typing import Any

from trainer_core.supervise.spawn import CHECKOUT

TIMEOUT_SECONDS = 900.0
"""A process that has not answered by then is ended: the shape counts as not fitting."""

_SHOWN_CHARACTERS = 300


def trial_command() -> list[str]:
    """The command line of the real process."""
    return [sys.executable, "-m", "trainer_core.measure.trial", str(os.getpid())]


def ask(
    request: Mapping[str, Any],
    *,
    command: Sequence[str] | None = None,
    timeout_seconds: float = TIMEOUT_SECONDS,
) -> dict[str, Any]:
    """The process's answer to a request, or `{"problem": ...}` when it ended without one."""
    with tempfile.TemporaryFile() as errors:
        process = subprocess.Popen(
            list(command or trial_command()),
            cwd=CHECKOUT,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=errors,
            start_new_session=True,  # a compiler's helpers end with it
        )
        try:
            out, _ = process.communicate(json.dumps(request).encode("utf-8"), timeout=timeout_seconds)
        except subprocess.TimeoutExpired:
            return {"problem": f"did not end within {timeout_seconds:g} seconds"}
        finally:
            _end(process)
        errors.seek(0)
        return _answer(process.returncode, out, errors.read())


def _answer(code: int, out: bytes, errors: bytes) -> dict[str, Any]:
    if code < 0:
        killed = ", as the system does when memory runs out" if -code == signal.SIGKILL else ""
        return {"problem": f"crashed: {signal.Signals(-code).name}{killed}"}
    with suppress(ValueError, IndexError):
        value = json.loads(out.decode("utf-8").splitlines()[-1])
        if code == 0 and isinstance(value, dict):
            return value
    said = _last_words(errors.decode("utf-8", "replace").strip().splitlines())
    return {"problem": f"crashed: exit code {code}{f': {said[:_SHOWN_CHARACTERS]}' if said else ''}"}


def _last_words(said: Sequence[str]) -> str:
    """The line that names the last error, whose words may go on over lines of advice; else the last line."""
    named = [line for line in said if re.match(r"[\w.]*[A-Z]\w*(: |$)", line)]
    return (named or said or [""])[-1]


def _end(process: subprocess.Popen[bytes]) -> None:
    """Nothing of the process's session is left, whatever it started."""
    with suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)
    process.wait()
    for pipe in (process.stdin, process.stdout):
        if pipe is not None:
            with suppress(BrokenPipeError):
                pipe.close()
