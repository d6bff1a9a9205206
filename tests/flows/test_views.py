"""Views never raise and never block: dead servers, broken contents, replaced ones; and the pages."""

from __future__ import annotations

import threading
import time
from pathlib import Path
from typing import Any

from prefect.settings import PREFECT_API_URL, temporary_settings

from tasks.artifacts import artifact_key, cycle_table, draw_losses, loss_page, status_page
from tasks.views import Views, await_server, server_answers
from trainer_core.line.ledger import Ledger
from trainer_core.line.paths import LinePaths

NOWHERE = "http://127.0.0.1:1/api"


def test_keys_are_what_prefect_accepts() -> None:
    assert artifact_key("My Line_2", "loss") == "my-line-2-loss"
    assert artifact_key("ünï", "loss") == "n-loss"
    assert artifact_key("...", "loss") == "line-loss"


def test_putting_never_waits_and_a_dead_server_loses_only_views() -> None:
    with temporary_settings(updates={PREFECT_API_URL: NOWHERE}):
        views = Views()
        started = time.monotonic()
        for number in range(100):
            views.put("one", lambda client, number=number: client.read_flows())
        assert time.monotonic() - started < 1
        assert not server_answers()
        assert not await_server(0.1)
        views.close(0.5)
    assert views.dropped >= 99
    assert time.monotonic() - started < 15


def test_what_cannot_be_shown_is_dropped_and_the_rest_is_shown(prefect_server: str) -> None:
    views, shown = Views(), threading.Event()

    def broken(client: Any) -> None:
        raise ValueError("no such page")

    views.put("a", broken)
    views.put("b", lambda client: shown.set())
    assert shown.wait(20)
    views.close()
    assert (views.dropped, views.last_error) == (1, "ValueError: no such page")


def test_a_newer_page_takes_the_place_of_one_that_waits(prefect_server: str) -> None:
    views, busy, seen = Views(), threading.Event(), []
    views.put("first", lambda client: busy.wait(20))
    time.sleep(0.2)
    for number in range(3):
        views.put("page", lambda client, number=number: seen.append(number))
    busy.set()
    views.close(20)
    assert seen == [2] and views.dropped == 2


def write_ledger(paths: LinePaths) -> None:
    ledger = Ledger(paths.metrics, attempt=1)
    for update in range(1, 41):
        seconds = {"train": 0.5, "awaiting_data": 0.25 if update == 21 else 0.0}
        row = {"tokens": update * 10, "cycle": (update - 1) // 20, "seconds": seconds}
        ledger.append("update", update, {**row, "train/loss": None if update == 3 else 100.0 / update})
        if update % 20 == 0:
            ledger.append("validation", update, {"tokens": update * 10, "val_16/mix": float(update)})


def test_cycle_table(tmp_path: Path) -> None:
    paths = LinePaths(tmp_path)
    write_ledger(paths)
    first, second = cycle_table(paths)
    assert (first["cycle"], first["updates"], first["up to update"], first["tokens"]) == (0, 20, 20, 200)
    assert first["loss (last 20)"] == round(sum(100.0 / u for u in range(1, 21) if u != 3) / 19, 4)
    assert (first["validation mix"], second["validation mix"]) == (20.0, 40.0)
    assert (second["seconds"], second["waiting for data"]) == (10.2, 0.2)


def test_loss_page_is_markdown_with_a_picture(tmp_path: Path) -> None:
    paths = LinePaths(tmp_path)
    assert loss_page(paths) is None
    write_ledger(paths)
    page = loss_page(paths)
    assert page is not None
    assert "update 40, 400 tokens" in page and "(data:image/png;base64,iVBORw0KGgo" in page
    assert len(page) < 200_000, "an event may hold 1.5 MB"


def test_plot_shows_the_numbers() -> None:
    flat = draw_losses([(1, 2.0), (2, 2.0)], [])
    steep = draw_losses([(1, 9.0), (2, 2.0)], [(2, 3.0)])
    assert flat[:8] == b"\x89PNG\r\n\x1a\n" and flat != steep


def test_status_page_is_a_table(tmp_path: Path) -> None:
    page = status_page({"state": "training", "tokens": 1234567, "validation": {"a|b": 1}}, tmp_path / "trunk")
    assert "| state | training |" in page and "| tokens | 1,234,567 |" in page
    assert '| validation | `{"a\\|b": 1}` |' in page
