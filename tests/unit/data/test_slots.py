"""Host-wide slots: never more holders than slots, free when a holder dies, and a wait that can be left."""

from __future__ import annotations

import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest

from trainer_core.data.prepare.slots import Slots
from trainer_core.errors import Leaving


def test_never_more_holders_than_slots(tmp_path: Path) -> None:
    inside, most, done = 0, 0, 0
    guard = threading.Lock()

    def work() -> None:
        nonlocal inside, most, done
        with Slots("download", 2, folder=tmp_path).hold():
            with guard:
                inside += 1
                most = max(most, inside)
            time.sleep(0.02)
            with guard:
                inside -= 1
                done += 1

    threads = [threading.Thread(target=work) for _ in range(7)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert (most, done) == (2, 7)


def test_names_do_not_share_slots(tmp_path: Path) -> None:
    with Slots("download", 1, folder=tmp_path).hold(), Slots("tokenize", 1, folder=tmp_path).hold():
        assert sorted(path.name for path in tmp_path.iterdir()) == ["download.0", "tokenize.0"]


def test_a_wait_is_left_on_request(tmp_path: Path) -> None:
    slots, leaving = Slots("tokenize", 1, folder=tmp_path), threading.Event()
    with slots.hold():
        threading.Timer(0.1, leaving.set).start()
        with pytest.raises(Leaving, match="1 tokenize slots"), slots.hold(leaving):
            pass
    with slots.hold(leaving):
        pass


def test_a_killed_holder_holds_nothing(tmp_path: Path) -> None:
    code = (
        "import sys, time, pathlib; from trainer_core.data.prepare.slots import Slots\n"
        "with Slots('tokenize', 1, folder=pathlib.Path(sys.argv[1])).hold():\n"
        "    print('held', flush=True); time.sleep(60)"
    )
    holder = subprocess.Popen([sys.executable, "-c", code, str(tmp_path)], stdout=subprocess.PIPE)
    assert holder.stdout is not None
    assert holder.stdout.readline() == b"held\n"
    leaving = threading.Event()
    leaving.set()
    with pytest.raises(Leaving), Slots("tokenize", 1, folder=tmp_path).hold(leaving):
        pass
    holder.send_signal(signal.SIGKILL)
    holder.wait()
    with Slots("tokenize", 1, folder=tmp_path).hold(leaving):
        pass
    holder.stdout.close()
