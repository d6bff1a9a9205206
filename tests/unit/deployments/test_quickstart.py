"""What the quickstart prints: the curve and the table; its numbers fit together."""

from __future__ import annotations

import importlib.util
import itertools
import json
from pathlib import Path
from types import ModuleType

import pytest

from trainer_core.errors import Refused
from trainer_core.models.families import FAMILIES
from trainer_core.models.presets import PRESETS

SOURCE = Path(__file__).resolve().parents[3] / "examples" / "quickstart" / "run.py"


@pytest.fixture(scope="module")
def quickstart() -> ModuleType:
    spec = importlib.util.spec_from_file_location("quickstart_run", SOURCE)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    import sys

    sys.modules[spec.name] = module  # its dataclasses look themselves up there
    spec.loader.exec_module(module)
    return module


def test_a_falling_loss_is_a_falling_curve(quickstart: ModuleType) -> None:
    bars = quickstart.curve([8.0 - i / 32 for i in range(192)])
    assert len(bars) == 64 and bars[0] == "█" and bars[-1] == "▁"
    heights = [quickstart.BARS.index(bar) for bar in bars]
    assert heights == sorted(heights, reverse=True)
    assert quickstart.curve([3.0, 3.0]) == "▁▁"


def test_the_table_has_a_row_for_each_cycle(quickstart: ModuleType) -> None:
    rows = [{"cycle": c, "train/loss": 6.0 - c, "seconds": {"train": 0.5}} for c in (0, 0, 1, 1, 1)]
    table = quickstart.cycle_table(rows)
    assert [line.split() for line in table[1:]] == [
        ["0", "2", "6.0000", "2,048"],
        ["1", "3", "5.0000", "2,048"],
    ]


def test_the_schedule_ends_with_the_last_cycle(quickstart: ModuleType) -> None:
    pieces = quickstart.SCHEDULE
    assert pieces[0]["from"] == 0 and pieces[-1]["to"] == 196_608 == quickstart.END_TOKENS
    assert all(a["to"] == b["from"] for a, b in itertools.pairwise(pieces))
    assert quickstart.CYCLE_TOKENS % quickstart.TOKENS_PER_UPDATE == 0


def test_down_names_the_environment_that_make_was_given(
    quickstart: ModuleType, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("sys.prefix", str(quickstart.ROOT / ".venv"))
    assert quickstart.down_command() == "make down"
    monkeypatch.setattr("sys.prefix", "/an env")
    assert quickstart.down_command() == "make down VENV='/an env'"


def test_another_model_than_the_line_has_is_refused(quickstart: ModuleType, tmp_path: Path) -> None:
    """It showed the losses of the line that was there, or trained that one to its end."""
    work = quickstart.Work(root=tmp_path, model="llama-cpu")
    quickstart.refuse_other_model(work)
    work.line.mkdir()
    (work.line / "run.json").write_text(json.dumps({"model": {"name": "nano-cpu"}}))
    with pytest.raises(Refused, match="trains nano-cpu, not llama-cpu") as refused:
        quickstart.quickstart(work)
    assert f"rm -r {work.line}" in str(refused.value)
    assert [path.name for path in tmp_path.iterdir()] == ["trunk"]
    quickstart.refuse_other_model(quickstart.Work(root=tmp_path, model="nano-cpu"))


def test_its_models_are_small_ones_of_every_family(quickstart: ModuleType) -> None:
    families = [PRESETS[name].family for name in quickstart.MODELS]
    assert families[0] == "neuronspark" and sorted(families) == sorted(FAMILIES)
    rows = {PRESETS[name].training["row_length"] for name in quickstart.MODELS}
    assert all(quickstart.TOKENS_PER_UPDATE % length == 0 for length in rows)
    makefile = (SOURCE.parents[2] / "Makefile").read_text()
    assert f"MODEL ?= {quickstart.MODELS[0]}\n" in makefile
