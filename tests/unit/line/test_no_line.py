"""A folder that is no training line: the message says what it is instead."""

from __future__ import annotations

from pathlib import Path

import pytest

from trainer_core.errors import Refused
from trainer_core.line.config import load_run
from trainer_core.line.no_line import no_line
from trainer_core.line.paths import LinePaths


def test_a_folder_is_called_what_it_is(tmp_path: Path) -> None:
    files = ("data/data.json", "out/nstrain.json", "run/run.json", "run/checkpoints/u3/manifest.json")
    for name in files:
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).touch()
    expected = {
        "data": "a data line, not a training line; `nstrain new RUN --data",
        "out": "an exported folder, not a training line; `nstrain generate`",
        "run/checkpoints/u3": f"a checkpoint, not a training line; name its line, {tmp_path / 'run'}",
        "nowhere": "not a training line (no run.json); `nstrain new",
    }
    for name, said in expected.items():
        assert no_line(tmp_path / name).startswith(f"{tmp_path / name}: {said}")
        with pytest.raises(Refused, match="not a training line"):
            load_run(LinePaths(tmp_path / name))
    either = no_line(tmp_path / "nowhere", exported_too=True)
    assert "nstrain.json" in either and "nstrain new" not in either


def test_short_paths_have_no_line_above_them() -> None:
    for root in (Path("/"), Path("checkpoints"), Path("/checkpoints")):
        assert "not a training line" in no_line(root)
