"""run.json: strict, complete in its complaints, and kept for a line's life."""

import json

import pytest

from tests.tools.run_json import run_json
from trainer_core.errors import Refused
from trainer_core.line.config import check_kept, load_run, parse_run, save_run
from trainer_core.line.paths import LinePaths


def good() -> dict:
    return run_json(
        schedule=[
            {"from": 0, "to": "1_024", "kind": "warmup"},
            {"from": 1024, "to": None, "kind": "constant"},
        ],
        tokens_per_update=256,
        lengths=[{"length": 32, "rows": 4}],
    )


def test_a_good_file_round_trips(tmp_path):
    paths = LinePaths(tmp_path)
    config = parse_run(good(), paths.run_json)
    assert config.schedule[0].end == 1024
    save_run(paths, config)
    assert load_run(paths) == config


def test_three_mistakes_are_three_problems(tmp_path):
    value = good()
    value["tokens_per_update"] = 2.5
    value["optimizer"]["peak_lr"] = "fast"
    value["shedule"] = []
    with pytest.raises(Refused) as refused:
        parse_run(value, tmp_path / "run.json")
    text = "\n".join(refused.value.problems)
    assert len(refused.value.problems) == 3
    for part in ("tokens_per_update", "whole number", "optimizer.peak_lr", "'fast'", "shedule", "run.json"):
        assert part in text


def test_cross_field_problems_are_all_listed(tmp_path):
    value = good()
    value["tokens_per_update"] = 100
    value["data"] = "relative"
    value["schedule"] = [{"from": 0, "to": None, "kind": "decay"}]
    value["optimizer"]["betas"] = [0.9, 1.0]
    value["allow_changes"] = ["colour"]
    with pytest.raises(Refused) as refused:
        parse_run(value, tmp_path / "run.json")
    text = "\n".join(refused.value.problems)
    for part in (
        "multiple of the row length 32",
        "absolute path",
        "decay piece needs an end",
        "betas.1",
        "colour",
    ):
        assert part in text


def test_a_missing_line_names_the_way_out(tmp_path):
    with pytest.raises(Refused, match="nstrain new"):
        load_run(LinePaths(tmp_path))


def test_kept_settings_need_leave(tmp_path):
    where = tmp_path / "run.json"
    old = parse_run(good(), where).dump()
    value = good()
    value["optimizer"]["clip"] = 2.0
    value["seed"] = 1
    with pytest.raises(Refused) as refused:
        check_kept(old, parse_run(value, where), where, tokens=2048)
    text = "\n".join(refused.value.problems)
    assert "optimizer.clip" in text
    assert "the checkpoint has 1.0, run.json has 2.0" in text
    assert "seed" in text
    assert "allow_changes" in text
    value["allow_changes"] = ["optimizer.clip", "seed"]
    assert check_kept(old, parse_run(value, where), where, tokens=2048) == ["optimizer.clip", "seed"]


def test_shapes_and_guards_may_change_freely(tmp_path):
    where = tmp_path / "run.json"
    old = parse_run(good(), where).dump()
    value = good()
    value["lengths"] = [{"length": 32, "rows": 8}]
    value["print_every"] = 1
    assert check_kept(old, parse_run(value, where), where, tokens=2048) == []


def test_a_schedule_only_grows_at_its_end(tmp_path):
    where = tmp_path / "run.json"
    old = parse_run(good(), where).dump()
    value = good()
    value["schedule"][1]["to"] = 4096
    value["schedule"].append({"from": 4096, "to": 8192, "kind": "decay"})
    assert check_kept(old, parse_run(value, where), where, tokens=2048) == []
    value["schedule"][0]["to"] = 2048
    value["schedule"][1]["from"] = 2048
    with pytest.raises(Refused, match="only grows at its end"):
        check_kept(old, parse_run(value, where), where, tokens=2048)


def test_the_schedules_past_cannot_be_rewritten_by_ending_a_piece_in_it(tmp_path):
    where = tmp_path / "run.json"
    old = parse_run(good(), where).dump()
    value = good()
    value["schedule"][1]["to"] = 2048
    value["schedule"].append({"from": 2048, "to": 4096, "kind": "decay"})
    assert check_kept(old, parse_run(value, where), where, tokens=2048) == []
    with pytest.raises(Refused, match="only grows at its end"):
        check_kept(old, parse_run(value, where), where, tokens=2049)


def test_the_path_of_the_data_line_may_change(tmp_path):
    where = tmp_path / "run.json"
    old = parse_run(good(), where).dump()
    value = good()
    value["data"] = "/elsewhere"
    assert check_kept(old, parse_run(value, where), where, tokens=2048) == []
    value["threads"] = 2
    with pytest.raises(Refused, match="threads"):
        check_kept(old, parse_run(value, where), where, tokens=2048)


@pytest.mark.parametrize(("key", "value"), [("clip", float("inf")), ("eps", float("nan"))])
def test_numbers_are_finite(tmp_path, key, value):
    run = good()
    run["optimizer"][key] = value
    with pytest.raises(Refused, match=f"optimizer.{key}"):
        parse_run(run, tmp_path / "run.json")


def test_the_format_is_json_on_disk(tmp_path):
    paths = LinePaths(tmp_path)
    save_run(paths, parse_run(good(), paths.run_json))
    assert json.loads(paths.run_json.read_text())["schedule"][0]["from"] == 0
