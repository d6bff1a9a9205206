"""Families of other packages: found by metadata, imported when asked for, refused with the way out."""

import json
import math
import re
import subprocess
import sys

import pytest
import torch

from deployments import cli
from tests.tools.model_package import BIGRAM, check_out
from tests.tools.real_line import Size, make_real_line
from trainer_core.errors import Refused
from trainer_core.line.checkpoints import newest
from trainer_core.line.files import read_json, write_json
from trainer_core.line.ledger import live_rows
from trainer_core.models import external
from trainer_core.models.presets import external_presets, find_preset
from trainer_core.models.registry import build
from trainer_core.ops.run import run_inline

SMALL = Size(model="bigram-cpu", rows_per_update=4, updates_per_cycle=2, docs=12)


pytestmark = pytest.mark.usefixtures("host")


def test_an_installed_family_trains_a_line(installed, tmp_path):
    installed()
    paths = make_real_line(tmp_path / "line", cycles=2, size=SMALL)
    assert read_json(paths.run_json)["model"]["family"] == "bigram"
    code, message = run_inline(paths.root, say=lambda text: None)
    assert code == 0, message
    assert newest(paths).update == 4
    losses = [row["train/loss"] for row in live_rows(paths.metrics, "update")]
    assert losses[0] == pytest.approx(math.log(257)) and losses[3] < losses[0]


def test_a_family_of_a_folder_is_found_through_the_host_settings(host, tmp_path, capsys):
    check_out(tmp_path / "theirs", "borrowed_tree")
    host.write_text(json.dumps({"neuronspark": "theirs"}))
    assert cli.run(["models", "--json"]) == 0
    rows = {row["name"]: row for row in json.loads(capsys.readouterr().out)}
    assert rows.keys() == {"llama-cpu", "bigram-cpu"}
    assert rows["bigram-cpu"]["external"] and not rows["llama-cpu"]["external"]
    assert rows["bigram-cpu"]["groups"] == {"table": 64 * 64}
    assert rows["bigram-cpu"]["recomputation"] == ["none", "all"]


def test_a_mode_of_recomputation_is_asked_of_the_package(installed, tmp_path, capsys):
    installed()
    paths = make_real_line(tmp_path / "line", cycles=2, size=SMALL)
    for ac, code in (("all", 0), ("full", 20)):
        shapes = [{"length": 16, "rows": 4, "ac": ac}]
        write_json(paths.run_json, read_json(paths.run_json) | {"lengths": shapes})
        assert cli.run(["check", str(paths.root)]) == code
    said = capsys.readouterr().err
    assert "lengths[0].ac: 'full' is nothing that bigram can recompute; expected none, all" in said


def test_light_commands_import_no_package(host, tmp_path):
    """A line of a family whose package cannot even be imported has a status, and a built-in one a preset."""
    folder = check_out(tmp_path / "theirs", "borrowed_broken", "raise RuntimeError('imported')\n")
    host.write_text(json.dumps({"neuronspark": str(folder)}))
    line = make_real_line(tmp_path / "line", cycles=1)
    value = read_json(line.run_json)
    value["model"] |= {"name": "bigram-cpu", "family": "bigram"}
    write_json(line.run_json, value)
    code = (
        "import sys; from deployments.cli import run\n"
        f"assert run(['status', {str(line.root)!r}]) == 0\n"
        "from trainer_core.models.presets import find_preset; find_preset('llama-cpu')\n"
        "assert not {'borrowed_broken', 'torch'} & sys.modules.keys()"
    )
    subprocess.run([sys.executable, "-c", code], check=True, capture_output=True)


def test_a_broken_package_is_named_and_hides_no_preset(installed, capsys):
    installed("borrowed_ill", "import no_such_module\n", family="ill")
    installed()
    with pytest.raises(Refused) as refused:
        find_preset("bigram-gpu")
    first, second = refused.value.problems
    assert "bigram-cpu" in first and "llama-cpu" in first
    assert "'ill' (borrowed_ill of the package borrowed_ill)" in second
    assert "ModuleNotFoundError: No module named 'no_such_module'" in second and "uninstall" in second
    assert find_preset("bigram-cpu").family == "bigram"
    assert cli.run(["models"]) == 20
    shown = capsys.readouterr()
    assert "bigram-cpu" in shown.out and "no_such_module" in shown.err


@pytest.mark.parametrize(
    ("source", "words"),
    [
        ("PRESETS = ()", "has no function build"),
        (BIGRAM.replace("PRESETS = (", "PRESETS = dict(a="), "PRESETS is a dict; expected a tuple of Preset"),
        (BIGRAM.replace("PRESETS = (", "PRESETS = (3,"), "a int; expected Preset"),
        (BIGRAM.replace('"bigram", 64', '"trigram", 64'), "of the family 'trigram'; expected 'bigram'"),
        (
            BIGRAM.replace("bigram-cpu", "llama-cpu"),
            "preset 'llama-cpu' has the name of one of llama; rename",
        ),
    ],
)
def test_what_is_no_family_is_refused(installed, source, words):
    installed(source=source)
    found, problems = external_presets()
    assert not found and any(words in problem for problem in problems), problems


@pytest.mark.parametrize(
    ("source", "words"),
    [
        ("def build(*args): return 3", "build returned a int; expected a trainer_core.models.base.Model"),
        (BIGRAM.replace("def init_state", "def first_state"), "build returned a Bigram without init_state"),
        (BIGRAM.replace('("none", "all")', '("all",)'), '"none" comes first'),
    ],
)
def test_what_is_no_model_is_refused(installed, source, words):
    installed(source=source)
    with pytest.raises(Refused, match=words):
        build("bigram", {"rope_max_seq_len": 8}, 16, 0)


def test_names_that_are_taken_are_refused_and_the_built_in_ones_win(installed, tmp_path):
    installed("borrowed_llama", family="llama")
    installed("borrowed_a")
    installed("borrowed_b")
    points, problems = external.declared()
    assert points.keys() == {"bigram"}
    assert any("'llama' (borrowed_llama" in p and "built in; give" in p for p in problems)
    assert any(re.search("borrowed_a of .*borrowed.a has this name too", p) for p in problems)
    with torch.device("meta"):
        assert type(build("llama-cpu", None, 8, 0)).__module__ == "trainer_core.models.llama"


@pytest.mark.parametrize(
    ("project", "words"),
    [
        (None, "does not exist; mend the setting"),
        ("[project]", r'add to pyproject.toml the table \[project.entry-points."nstrain.models"\]'),
        ("[project", r"pyproject\.toml: cannot be read"),
    ],
)
def test_a_folder_without_a_family_is_named(tmp_path, project, words):
    folder = tmp_path / "theirs"
    if project:
        folder.mkdir()
        (folder / "pyproject.toml").write_text(project)
    external.use_folder(folder)
    with pytest.raises(Refused, match=words):
        build("bigram", {}, 16, 0)
