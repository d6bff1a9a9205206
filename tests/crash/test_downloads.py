"""A download whose process dies before any of its file operations is the pinned file at the next start."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.tools.faults import count_operations, run_killed
from tests.tools.hub import hub_in_use
from tests.tools.hub_case import LARGE, HubCase
from trainer_core.data.hub.transfer import remove_download

ALL = os.environ.get("NSTRAIN_CRASH_ALL") == "1"


def _damaged(case: HubCase) -> None:
    target = case.target("data/large.parquet")
    target.parent.mkdir(parents=True, exist_ok=True)
    target.write_bytes(b"x" + LARGE[1:])


def _absent(case: HubCase) -> None:
    remove_download(case.target("data/large.parquet"))


@pytest.mark.parametrize("before", [_absent, _damaged], ids=["absent", "damaged"])
def test_a_download_killed_anywhere_is_finished_by_the_next(
    before: Callable[[HubCase], None], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with hub_in_use(monkeypatch) as hub:
        case = HubCase(hub, tmp_path / "incoming")
        case.fetch()  # from here on the folders are there
        before(case)
        total = count_operations(case.fetch)
        assert total >= 4
        for at in range(0, total, 1 if ALL else 2):
            _absent(case)
            before(case)
            assert run_killed(case.fetch, at), f"operation {at} of {total} was not reached"
            hub.plan("GET .*large", "cut:1000")
            assert case.fetch() == LARGE and case.leftovers() == [], f"after operation {at} of {total}"
            hub.clear_plans()
