"""`nstrain models`: a row per preset with counts that add up: as JSON, as a table, in the documentation."""

import json
import re
from pathlib import Path

import pytest

from deployments import cli
from deployments.cli.models import models_text
from trainer_core.models.families import FAMILIES
from trainer_core.models.presets import PRESETS
from trainer_core.ops.models import list_models

DOCUMENT = Path(__file__).parents[3] / "docs" / "models.md"


@pytest.fixture(scope="module")
def rows():
    found, problems = list_models()
    assert not problems
    return {row["name"]: row for row in found}


def test_every_preset_has_a_row_that_adds_up(rows):
    assert list(rows) == list(PRESETS)
    for name, row in rows.items():
        assert row["parameters"] == sum(row["groups"].values()) > 0
        assert row["family"] == PRESETS[name].family and not row["external"]
        assert tuple(row["recomputation"]) == FAMILIES[row["family"]].recomputation
        assert row["row_length"] == PRESETS[name].training["row_length"]
        assert row["peak_lr"] == PRESETS[name].training["peak_lr"]
        assert row["flops_per_token"].keys() == {str(row["row_length"])}
        assert row["flops_per_token"][str(row["row_length"])] > 3 * row["parameters"]
    assert json.loads(json.dumps(rows)) == rows


def test_bytes_of_a_parameter(rows):
    """P, G, M, V in float32; the average; the bf16 weights."""
    row = rows["llama-cpu"]
    assert row["bytes_per_parameter"] == 16
    assert row["more_bytes_per_parameter"] == {"ema": 4, "bf16": 2}


def test_the_table(rows):
    text = models_text(list(rows.values()))
    assert re.search(r"gpt2-70m +gpt2 +50,257 +64,085,504 +1\.03 GB +1,024 +0\.0001 +4\.186e\+08\n", text)
    assert "    embed 26,255,872, proj 37,748,736, norm 25,600, bias 55,296\n    ac none, full\n" in text
    assert text.splitlines()[-1].startswith("state: 16 bytes a parameter in training")


def test_the_command_prints_json(monkeypatch, tmp_path, capsys):
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.delenv("NSTRAIN_HOST", raising=False)
    monkeypatch.setattr("trainer_core.ops.models.PRESETS", {"llama-cpu": PRESETS["llama-cpu"]})
    assert cli.run(["models", "--json"]) == 0
    (row,) = json.loads(capsys.readouterr().out)
    assert row["name"] == "llama-cpu" and row["parameters"] == 926_336


def test_the_documentation_lists_every_preset(rows):
    table = DOCUMENT.read_text(encoding="utf-8")
    for name, row in rows.items():
        (line,) = re.findall(rf"^\| {re.escape(name)} \|.*$", table, re.M)
        cells = [cell.strip() for cell in line.strip("|").split("|")]
        config = PRESETS[name].config
        shape = [config["layers"], config["width"], config["heads"], row["row_length"]]
        counts = [*shape, row["vocab_size"], row["parameters"]]
        assert cells == [name, row["family"], *(f"{count:,}" for count in counts)], name
