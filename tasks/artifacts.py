"""What the UI shows of a line: progress of the cycle in training, the cycle table, the loss plot, its status.

Contents are functions of the line's files; `Pages` puts them into the views. Keys are lower case with
dashes, one set per line.
"""

from __future__ import annotations

import base64
import io
import json
import re
import threading
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any
from uuid import UUID

from tasks.views import Views, identity_of_run
from trainer_core.line.ledger import live_rows
from trainer_core.line.paths import LinePaths

if TYPE_CHECKING:
    from prefect.client.orchestration import SyncPrefectClient

_PLOT_POINTS = 2000


def artifact_key(line: str, what: str) -> str:
    """The artifact key of one thing of a line."""
    slug = re.sub(r"[^a-z0-9]+", "-", line.lower()).strip("-") or "line"
    return f"{slug}-{what}"


class Pages:
    """The artifacts of one run of a line."""

    def __init__(self, paths: LinePaths, views: Views) -> None:
        self._paths = paths
        self._views = views
        self._progress: dict[UUID, UUID] = {}
        self._lock = threading.Lock()

    def progress(self, cycle: int, percent: float) -> None:
        """Progress of the calling train task; the first call makes its artifact."""
        who = identity_of_run()
        task = who.get("task_run_id")

        def show(client: SyncPrefectClient) -> None:
            with self._lock:
                known = self._progress.get(task) if task else None
            if known is not None:
                _update(client, known, percent)
                return
            made = _create(
                client,
                key=artifact_key(self._paths.name, "progress"),
                type="progress",
                data=percent,
                description=f"Cycle {cycle} of {self._paths.name}",
                **who,
            )
            if task:
                with self._lock:
                    self._progress[task] = made

        self._views.put(f"progress-{task}", show)

    def cycles(self, cycle: int) -> None:
        """The cycle table and the loss plot as they stand after this cycle."""
        who = identity_of_run()
        name = self._paths.name

        def show_table(client: SyncPrefectClient) -> None:
            rows = cycle_table(self._paths)
            key = artifact_key(name, "cycles")
            text = f"Cycles of {name}, up to cycle {cycle}"
            _create(client, key=key, type="table", data=json.dumps(rows), description=text, **who)

        self._views.put(f"cycles-{cycle}", show_table)
        self.losses()

    def losses(self) -> None:
        """The loss plot now."""
        who = identity_of_run()

        def show(client: SyncPrefectClient) -> None:
            page = loss_page(self._paths)
            if page is not None:
                key = artifact_key(self._paths.name, "loss")
                _create(client, key=key, type="markdown", data=page, description="Training loss", **who)

        self._views.put("loss", show)

    def message(self, text: str) -> None:
        """The line's state in a sentence, for a wait that a reader of the run page should understand."""
        who = identity_of_run()
        key = artifact_key(self._paths.name, "state")

        def show(client: SyncPrefectClient) -> None:
            _create(client, key=key, type="markdown", data=text, description="Supervision", **who)

        self._views.put("state", show)


def _create(client: SyncPrefectClient, **fields: Any) -> UUID:
    from prefect.client.schemas.actions import ArtifactCreate

    return client.create_artifact(ArtifactCreate(**fields)).id


def _update(client: SyncPrefectClient, artifact: UUID, data: Any) -> None:
    from prefect.client.schemas.actions import ArtifactUpdate

    client.update_artifact(artifact, ArtifactUpdate(data=data))


def cycle_table(paths: LinePaths) -> list[dict[str, Any]]:
    """One row for each cycle that has trained: updates, tokens, loss, validation, seconds."""
    cycles: dict[int, list[dict[str, Any]]] = {}
    for row in live_rows(paths.metrics, "update"):
        if isinstance(row.get("cycle"), int):
            cycles.setdefault(row["cycle"], []).append(row)
    validations = live_rows(paths.metrics, "validation")
    return [_cycle_row(cycle, rows, validations) for cycle, rows in sorted(cycles.items())]


def _cycle_row(
    cycle: int, rows: Sequence[Mapping[str, Any]], validations: Sequence[Mapping[str, Any]]
) -> dict[str, Any]:
    first, last = rows[0], rows[-1]
    losses = [row["train/loss"] for row in rows[-20:] if row.get("train/loss") is not None]
    seconds = [row.get("seconds") or {} for row in rows]
    mixes = [
        value
        for row in validations
        if first["update"] <= row["update"] <= last["update"]
        for key, value in row.items()
        if key.startswith("val_") and key.endswith("/mix") and value is not None
    ]
    total = sum(sum(row.values()) for row in seconds)
    return {
        "cycle": cycle,
        "updates": len(rows),
        "up to update": last["update"],
        "tokens": last.get("tokens"),
        "loss (last 20)": round(sum(losses) / len(losses), 4) if losses else None,
        "validation mix": round(mixes[-1], 4) if mixes else None,
        "seconds": round(total, 1),
        "waiting for data": round(sum(row.get("awaiting_data", 0.0) for row in seconds), 1),
    }


def loss_page(paths: LinePaths) -> str | None:
    """A markdown page with the loss curve as a picture; None before the first update."""
    rows = live_rows(paths.metrics, "update")
    points = [
        (row["tokens"], row["train/loss"])
        for row in rows
        if row.get("train/loss") is not None and isinstance(row.get("tokens"), int)
    ]
    if not points:
        return None
    checks = [
        (row["tokens"], value)
        for row in live_rows(paths.metrics, "validation")
        for key, value in row.items()
        if key.startswith("val_") and key.endswith("/mix") and value is not None
    ]
    picture = base64.b64encode(draw_losses(points[:: max(1, len(points) // _PLOT_POINTS)], checks)).decode()
    last = rows[-1]
    text = f"### {paths.name}: loss\n\nupdate {last['update']:,}, {last['tokens']:,} tokens\n\n"
    return f"{text}![loss curve](data:image/png;base64,{picture})\n"


def draw_losses(points: Sequence[tuple[float, float]], checks: Sequence[tuple[float, float]]) -> bytes:
    """PNG of training loss and validation mix over tokens. Uses no display and no global state."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    figure = Figure(figsize=(7.0, 3.6), dpi=90, layout="constrained")
    axes = figure.add_subplot()
    axes.plot(*zip(*points, strict=True), linewidth=1.0, color="#2563eb", label="training loss")
    if checks:
        axes.plot(*zip(*checks, strict=True), "o-", markersize=3, color="#d97706", label="validation mix")
    axes.set_xlabel("tokens")
    axes.set_ylabel("loss (nats per token)")
    axes.grid(visible=True, alpha=0.3)
    axes.legend()
    file = io.BytesIO()
    FigureCanvasAgg(figure).print_png(file)
    return file.getvalue()


def status_page(status: Mapping[str, Any], line: Path) -> str:
    """The line's status as a markdown table, in the order of the status's keys."""
    rows = [f"| {key} | {_cell(value)} |" for key, value in status.items()]
    return "\n".join([f"### {line.name}", "", f"`{line}`", "", "| | |", "|---|---|", *rows, ""])


def _cell(value: Any) -> str:
    if isinstance(value, dict | list):
        return f"`{json.dumps(value, ensure_ascii=False)[:400]}`".replace("|", "\\|")
    return f"{value:,}" if isinstance(value, int) and not isinstance(value, bool) else str(value)
