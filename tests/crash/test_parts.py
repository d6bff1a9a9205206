"""A line whose batch and row length grow inside cycles, killed where loaders lose their place.

Documents are longer than rows, so that updates end inside them. CI takes the named places; `make crash`
(NSTRAIN_CRASH_ALL=1) kills after every update and after every checkpoint.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from tests.tools.faults import run_alone, run_killed_when
from tests.tools.real_line import Size, make_real_line, outcome_of_line
from trainer_core.data.prepare.preparer import CyclePreparer
from trainer_core.data.rows.line_rows import DataLineRows
from trainer_core.data.rows.source import Position
from trainer_core.data.sources import load_data_line
from trainer_core.data.tokens.shards import read_shard
from trainer_core.line.checkpoints import list_checkpoints
from trainer_core.line.files import iterate_jsonl
from trainer_core.line.ledger import live_rows
from trainer_core.line.paths import DataPaths, LinePaths
from trainer_core.ops.run import run_inline

torch.set_num_threads(1)

ALL = os.environ.get("NSTRAIN_CRASH_ALL") == "1"

SETTINGS = (
    'schedule=[{"from":0,"to":192,"kind":"warmup"},{"from":192,"to":1900,"kind":"constant"},'
    '{"from":1900,"to":2976,"kind":"decay","length":32}]',
    'lengths=[{"length":8,"rows":5},{"length":32,"rows":2}]',
    'tokens_per_update=[{"from":0,"to":1000,"tokens":96},{"from":1000,"to":null,"tokens":192}]',
)
"""Updates 1-11 hold 96 tokens, the others 192; updates 17-21 have rows of 32, the others of 8.

Cycle 0 ends with update 8, cycle 1 with 13, cycle 2 with 17, cycle 3 and the schedule with 21. Checkpoints
every 5 updates.
"""

CYCLES = {0: range(1, 9), 1: range(9, 14), 2: range(14, 18), 3: range(18, 22)}
KEPT = {0: "start", 8: "cycle-end", 13: "cycle-end", 16: "length-change", 17: "cycle-end", 21: "end"}


@dataclass(frozen=True)
class Stage:
    """A line at a fixed place that can be put back to its beginning, and what an undisturbed run makes."""

    paths: LinePaths
    pristine: Path
    expected: dict[str, Any]

    def reset(self) -> None:
        shutil.rmtree(self.paths.root.parent)
        shutil.copytree(self.pristine, self.paths.root.parent)

    @property
    def data(self) -> DataPaths:
        return DataPaths(self.paths.root.parent / "data")


def run(paths: LinePaths, cycles: int | None = None) -> None:
    code, message = run_inline(paths.root, cycles=cycles, say=lambda text: None)
    assert code == 0, message


@pytest.fixture(scope="module")
def stage(tmp_path_factory):
    root = tmp_path_factory.mktemp("parts") / "line"
    size = Size(length=8, rows_per_update=12, validate_every=7, save_every=5)
    paths = make_real_line(root, size=size, settings=SETTINGS)
    pristine = root.with_name("pristine")
    shutil.copytree(root, pristine)
    run_alone(lambda: run(paths))
    return Stage(paths, pristine, outcome_of_line(paths))


def test_the_undisturbed_run_is_what_it_should_be(stage):
    updates = stage.expected["update"]
    tokens = np.diff([0, *(row["tokens"] for row in updates)]).tolist()
    assert tokens == [96] * 11 + [192] * 10
    assert [row["shape"] for row in updates] == ["5x8"] * 16 + ["2x32"] * 5
    for cycle, numbers in CYCLES.items():
        assert [row["update"] for row in updates if row["cycle"] == cycle] == list(numbers)
    assert [(row["part"], row["row"]) for row in updates[13:17]] == [(0, 0), (0, 24), (0, 48), (1, 0)]
    for row, size in zip(updates, tokens, strict=True):
        assert sum(row["rows"].values()) * int(row["shape"].split("x")[1]) == size, "no update of two lengths"
    assert len({row["samples"] for row in updates}) == 21
    assert {c.update: c.kept for c in list_checkpoints(stage.paths) if c.kept} == KEPT


def test_updates_end_inside_documents_of_several_rows(stage, tmp_path):
    """What the place of the kill in cycle 2 is worth: the data there is what it should be."""
    shutil.copytree(stage.pristine / "data", tmp_path / "data")
    preparer = CyclePreparer(tmp_path / "data")
    for cycle in range(3):
        preparer.download(cycle)
        preparer.tokenize(cycle)
    shards = list(DataPaths(tmp_path / "data").cycle(2).rglob("*.safetensors"))
    assert max(np.diff(read_shard(shard).doc_ends.astype(np.int64)).max() for shard in shards) >= 5 * 8
    batch = DataLineRows(tmp_path / "data").rows(Position(cycle=2, part=0, row=0), 24)
    assert batch.samples == stage.expected["update"][13]["samples"]
    assert batch.ids[-1, -1] != load_data_line(tmp_path / "data").eos_id


Due = Callable[[str, str], bool]


def after_update(paths: LinePaths, update: int) -> Due:
    """Right after an update's ledger row is written: nothing that is due then has happened."""
    return lambda name, path: any(row["update"] >= update for row in live_rows(paths.metrics))


def after_checkpoint(paths: LinePaths, update: int) -> Due:
    """Right after a checkpoint is published."""
    return lambda name, path: paths.checkpoint(update).exists()


@dataclass(frozen=True)
class Place:
    """Where the process dies, and the checkpoint that the next one must go on from."""

    due: Callable[[LinePaths, int], Due]
    update: int
    resumed_at: int


PLACES = {
    "A07-one-update-after-a-checkpoint": Place(after_update, 6, 5),
    "A04-right-after-a-cycles-end": Place(after_checkpoint, 8, 8),
    "A06-D11-inside-cycle-1-where-the-batch-grows": Place(after_update, 11, 10),
    "A02-A15-inside-a-document-before-the-row-length-changes": Place(after_update, 14, 13),
    "A15-where-the-row-length-changes": Place(after_checkpoint, 16, 16),
}


def kill_at(stage: Stage, place: Place) -> None:
    """Run the line until it dies there, and take away what no later process may need."""
    due, published = place.due(stage.paths, place.update), stage.paths.checkpoint(place.resumed_at)
    # On a busy machine the writer's thread may be an update or two behind.
    assert run_killed_when(lambda: run(stage.paths), lambda *op: published.exists() and due(*op))
    assert list_checkpoints(stage.paths)[-1].update == place.resumed_at
    for cycle, numbers in CYCLES.items():
        if numbers[-1] <= place.resumed_at:  # a cycle behind the checkpoint is never opened again
            shutil.rmtree(stage.data.cycle(cycle), ignore_errors=True)


def assert_as_undisturbed(stage: Stage) -> None:
    assert outcome_of_line(stage.paths) == stage.expected
    assert {c.update: c.kept for c in list_checkpoints(stage.paths) if c.kept} == KEPT


def test_killed_at_one_place_after_the_other_the_line_ends_with_the_same_bytes(stage):
    stage.reset()
    for place in PLACES.values():
        kill_at(stage, place)
    run_alone(lambda: run(stage.paths))
    resumed = [row["update"] for row in iterate_jsonl(stage.paths.events) if row["kind"] == "resumed"]
    assert resumed == [place.resumed_at for place in PLACES.values()]
    assert_as_undisturbed(stage)


def every_place() -> dict[str, Place]:
    saved = (*KEPT, 5, 10, 15, 20)
    updates = {f"update-{n}": Place(after_update, n, max(u for u in saved if u < n)) for n in range(1, 22)}
    return updates | {f"checkpoint-{n}": Place(after_checkpoint, n, n) for n in saved}


if ALL:

    @pytest.mark.parametrize("name", [*PLACES, *every_place()])
    def test_killed_at_any_place_the_line_ends_with_the_same_bytes(stage, name):
        stage.reset()
        kill_at(stage, (PLACES | every_place())[name])
        run_alone(lambda: run(stage.paths))
        assert_as_undisturbed(stage)


def test_stopped_at_a_cycles_end_the_line_begins_with_the_next_cycle(stage):
    stage.reset()
    run_alone(lambda: run(stage.paths, cycles=1))
    last = list_checkpoints(stage.paths)[-1]
    assert (last.update, last.cycle, last.row) == (8, 1, 0)
    shutil.rmtree(stage.data.cycle(0), ignore_errors=True)
    run_alone(lambda: run(stage.paths, cycles=2))
    run_alone(lambda: run(stage.paths))
    assert_as_undisturbed(stage)
