"""The flows stop, prepare, init, export and status, and what all deployments have in common."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from prefect.client.orchestration import get_client
from prefect.client.schemas.filters import ArtifactFilter, ArtifactFilterKey
from prefect.states import State
from prefect.utilities.callables import parameter_schema

from flows.export import export
from flows.init import init
from flows.prepare import prepare
from flows.status import status
from flows.stop import stop
from flows.trunk import trunk
from tests.tools.real_line import make_real_line
from tests.tools.tiny_data import write_byte_tokenizer, write_texts
from tests.tools.written_line import written_line
from trainer_core.line.files import read_json
from trainer_core.line.lock import FileLock
from trainer_core.line.paths import LinePaths
from trainer_core.line.stop import read_stop

pytestmark = pytest.mark.usefixtures("prefect_server")


@pytest.fixture
def line(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> LinePaths:
    """A real line that the host settings let flows find by its name."""
    paths = make_real_line(tmp_path)
    host = tmp_path / "host.json"
    host.write_text(json.dumps({"work_root": str(tmp_path)}))
    monkeypatch.setenv("NSTRAIN_HOST", str(host))
    return paths


def run(flow: Any, **parameters: Any) -> State[Any]:
    state: State[Any] = flow(**parameters, return_state=True)
    return state


def test_stop_of_a_running_line(line: LinePaths) -> None:
    with FileLock.acquire(line.lock, role="trunk"):
        state = run(stop, line="trunk", at_cycle_end=2)
        assert (state.name, state.message) == (
            "Completed",
            "line trunk stops at the end of cycle 2, with a checkpoint",
        )
        request = read_stop(line)
        assert request is not None and (request.at_cycle_end, request.by) == (2, "stop flow")
        assert "at its next update" in str(run(stop, line=str(line.root)).message)
        assert "at update 9" in str(run(stop, line="trunk", at_update=9).message)
        both = run(stop, line="trunk", at_cycle_end=1, at_update=1)
    assert (both.name, both.type.value) == ("Refused", "FAILED")


def test_stop_of_a_line_at_rest_leaves_no_request(line: LinePaths) -> None:
    state = run(stop, line="trunk")
    assert "not running" in str(state.message)
    assert read_stop(line) is None and read_json(line.wanted)["wanted"] == "stopped"
    missing = run(stop, line="nothing")
    assert missing.name == "Refused" and "run.json" in str(missing.message)


def test_prepare_goes_ahead_and_finds_finished_work(line: LinePaths) -> None:
    state = run(prepare, line="trunk", cycles_ahead=1)
    assert state.name == "Completed", state.message
    cycles = line.root.parent / "data" / "cycles"
    assert sorted(path.name for path in cycles.iterdir()) == ["000000", "000001"]
    assert "tokenize of cycle 1" in str(state.message)
    assert run(prepare, line="trunk", cycles_ahead=1).message == "everything is prepared already"
    assert run(prepare, line="nothing").name == "Refused"


def test_prepare_says_what_is_wrong_with_a_source(line: LinePaths) -> None:
    sources = sorted((line.root.parent / "sources").rglob("*.jsonl"))
    for source in sources:
        source.write_text(source.read_text() + " ")
    state = run(prepare, line="trunk", cycles_ahead=2)
    assert (state.name, state.type.value) == ("Refused", "FAILED")
    assert any(source.name in str(state.message) for source in sources)


def test_status_is_a_value_and_a_page(line: LinePaths) -> None:
    found = status("trunk")
    assert (found["state"], found["update"]) == ("new", 0)
    with get_client(sync_client=True) as client:
        key = ArtifactFilter(key=ArtifactFilterKey(any_=["trunk-status"]))
        (page,) = client.read_artifacts(artifact_filter=key)
    assert "| state | new |" in str(page.data)


def test_init_makes_a_data_line_from_a_form(tmp_path: Path) -> None:
    eos = write_byte_tokenizer(tmp_path / "tokenizer.json")
    write_texts(tmp_path / "texts", strata=2, files=2, docs=20, seed=1)
    recipe = {
        "sources": {"a": {"folder": str(tmp_path / "texts"), "glob": "**/*.jsonl", "stratum": {"level": 1}}},
        "pieces": [{"from_cycle": 0, "shares": {"a": 1}}],
    }
    (tmp_path / "recipe.json").write_text(json.dumps(recipe))
    given = {"recipe": str(tmp_path / "recipe.json"), "tokenizer": str(tmp_path / "tokenizer.json")}
    state = run(init, work=str(tmp_path / "data"), eos_id=eos, cycle_tokens="1e3", **given)
    assert state.name == "Completed", state.message
    assert read_json(tmp_path / "data" / "data.json")["cycle_tokens"] == 1000
    assert (tmp_path / "data" / "heldout").is_dir()
    again = run(init, work=str(tmp_path / "data"), eos_id=eos, cycle_tokens=1000, **given)
    assert again.name == "Refused" and "exists already" in str(again.message)


def test_export_of_a_line_that_has_not_begun_is_refused(line: LinePaths) -> None:
    state = run(export, line="trunk", out="exported")
    assert (state.name, state.type.value) == ("Refused", "FAILED")
    assert "no complete checkpoint" in str(state.message)
    assert not (line.root.parent / "exported").exists()


def test_export_to_where_nothing_can_be_is_refused(tmp_path: Path) -> None:
    paths, _ = written_line(tmp_path, "llama-nano-cpu", 1)
    state = run(export, line=str(paths.root), out="/proc/nstrain")
    assert (state.name, state.type.value) == ("Refused", "FAILED")
    assert "/proc/nstrain.part: No such file" in str(state.message)


def test_forms_are_typed_and_described() -> None:
    schemas = {flow.name: parameter_schema(flow) for flow in (trunk, prepare, stop, init, export, status)}
    assert schemas["trunk"].properties["line"]["default"] == "trunk"
    assert {"type": "integer", "minimum": 1} in schemas["trunk"].properties["cycles"]["anyOf"]
    assert schemas["init"].properties["cycle_tokens"]["type"] == "integer"
    for name, schema in schemas.items():
        missing = [key for key, value in schema.properties.items() if not value.get("description")]
        assert not missing, f"{name}: {missing} have no description"


def test_flow_modules_are_light() -> None:
    heavy = ("torch", "numpy", "pyarrow", "tokenizers", "matplotlib")
    modules = ", ".join(f"flows.{name}" for name in ("trunk", "prepare", "stop", "init", "export", "status"))
    code = f"import sys, {modules}; print([m for m in {heavy!r} if m in sys.modules])"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"
