"""run.json: strict, complete in its complaints, and kept for a line's life."""

import json

import pytest

from tests.tools.run_json import run_json
from trainer_core.errors import Refused
from trainer_core.line.config import load_run, parse_run, save_run
from trainer_core.line.kept import check_kept
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


def test_a_kept_setting_that_was_left_out_is_no_null(tmp_path):
    """A default that is spelled out later was told to replace None, which no model has."""
    where = tmp_path / "run.json"
    old, value = parse_run(good(), where).dump(), good()
    value["model"]["config"]["norm_eps"] = 1e-5
    for before, after, said in (
        (old, value, "the checkpoint has none of its own, run.json has 1e-05."),
        (parse_run(value, where).dump(), good(), "the checkpoint has 1e-05, run.json has none of its own."),
    ):
        with pytest.raises(Refused) as refused:
            check_kept(before, parse_run(after, where), where, tokens=2048)
        (problem,) = refused.value.problems
        assert "model.config.norm_eps: a line keeps this setting" in problem and said in problem


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


RAMP = [{"from": 0, "to": "4.7e9", "tokens": 262144}, {"from": 4.7e9, "to": None, "tokens": 393216}]


def staged(**changes) -> dict:
    """Rows of 512, then of 2048 from 6e9 tokens on; the batch grows at 4.7e9 tokens."""
    value = run_json(
        schedule=[
            {"from": 0, "to": 6e9, "kind": "constant"},
            {"from": 6e9, "to": None, "kind": "constant", "length": 2048},
        ],
        tokens_per_update=RAMP,
        lengths=[{"length": 512, "rows": 32}, {"length": 2048, "rows": 8, "ac": "full"}],
    )
    return value | changes


def test_a_ramp_and_stages_of_row_lengths(tmp_path):
    paths = LinePaths(tmp_path)
    config = parse_run(staged(), paths.run_json)
    assert [config.batch(tokens) for tokens in (0, 4_699_999_999, 4_700_000_000, 10**12)] == [
        262144,
        262144,
        393216,
        393216,
    ]
    assert [config.row_length(tokens) for tokens in (0, 6 * 10**9 - 1, 6 * 10**9)] == [512, 512, 2048]
    assert config.shape(2048).ac == "full"
    assert config.consumer_schedules() == {
        "row_lengths": [
            {"from": 0, "to": 6 * 10**9, "length": 512},
            {"from": 6 * 10**9, "to": None, "length": 2048},
        ],
        "batch": [
            {"from": 0, "to": 4_700_000_000, "tokens": 262144},
            {"from": 4_700_000_000, "to": None, "tokens": 393216},
        ],
    }
    save_run(paths, config)
    assert load_run(paths) == config
    written = json.loads(paths.run_json.read_text())
    assert written["tokens_per_update"][0] == {"from": 0, "to": 4_700_000_000, "tokens": 262144}
    assert [piece.get("length") for piece in written["schedule"]] == [None, 2048]


def test_one_open_piece_is_written_as_its_number(tmp_path):
    one = [{"from": 0, "to": None, "tokens": 64}]
    config = parse_run(run_json(tokens_per_update=one), tmp_path / "run.json")
    assert config == parse_run(run_json(), tmp_path / "run.json")
    assert config.dump()["tokens_per_update"] == 64


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"tokens_per_update": []}, ["tokens_per_update: expected at least one piece"]),
        ({"tokens_per_update": 0}, ["tokens_per_update.0.tokens: Input should be greater than 0"]),
        ({"tokens_per_update": {"from": 0}}, ["tokens_per_update: expected a token count"]),
        (
            {"tokens_per_update": [{"from": 1, "to": 9, "tokens": 512}, {"from": 8, "to": 8, "tokens": 512}]},
            [
                "tokens_per_update[0].from: the first piece begins at 0 tokens, found 1",
                "tokens_per_update[1]: to (8) must lie after from (8)",
                "tokens_per_update[1].from: expected 9",
            ],
        ),
        (
            {"tokens_per_update": [{"from": 0, "tokens": 2.5, "too": 1}]},
            ["tokens_per_update.0.to:", "tokens_per_update.0.tokens: a token count", "0.too: unknown key"],
        ),
        # Whole rows of every length that is in force with it.
        (
            {"tokens_per_update": 262144 + 512},
            ["tokens_per_update: expected a multiple of the row length 2048 in force from 6000113664"],
        ),
        (
            {"tokens_per_update": [RAMP[0], {"from": 4.7e9, "to": None, "tokens": 1024}]},
            ["expected a multiple of the row length 2048 in force from 6000000000 tokens on, found 1024"],
        ),
        # Every length in use has one shape, and every shape a length in use.
        (
            {"lengths": [{"length": 512, "rows": 32}]},
            ["schedule[1].length: lengths has no shape for rows of 2048, only for [512]"],
        ),
        (
            {
                "lengths": [
                    {"length": 512, "rows": 1},
                    {"length": 2048, "rows": 1},
                    {"length": 64, "rows": 1},
                    {"length": 512, "rows": 2},
                ]
            },
            ["lengths[3]: rows of 512 have a shape", "lengths[2]: no piece of the schedule has rows of 64"],
        ),
        ({"lengths": []}, ["lengths: expected the micro-batch shape"]),
        (
            {"lengths": [{"length": 512, "rows": 32768}, {"length": 2048, "rows": 10**9}]},
            [
                "lengths[1].rows: 1000000000 rows of 2048 are a micro-batch of 2,048,000,000,000 tokens; "
                "expected at most 16,777,216"
            ],
        ),
        # Pieces in which no update begins.
        (
            {"tokens_per_update": [RAMP[0], {"from": 4.7e9, "to": 4.7e9 + 9, "tokens": 262144}, RAMP[1]]},
            ["tokens_per_update[2].from: expected 4700000009"],
        ),
        (
            {
                "tokens_per_update": [
                    {"from": 0, "to": 262145, "tokens": 262144},
                    {"from": 262145, "to": 262147, "tokens": 524288},
                    {"from": 262147, "to": None, "tokens": 262144},
                ]
            },
            ["updates of 524288 tokens are named between 262145 and 262147 tokens, where no update begins"],
        ),
        (
            {
                "schedule": [
                    {"from": 0, "to": 1, "kind": "constant", "length": 2048},
                    {"from": 1, "to": 2, "kind": "constant"},
                    {"from": 2, "to": None, "kind": "constant", "length": 2048},
                ]
            },
            ["schedule: rows of 512 are named between 1 and 2 tokens, where no update begins"],
        ),
        # The end is a row's end, counted from where these rows begin.
        (
            {
                "schedule": [
                    {"from": 0, "to": 262144 + 1, "kind": "constant"},
                    {"from": 262145, "to": 787456, "kind": "decay", "length": 2048},
                ],
                "tokens_per_update": 262144 + 2048,
            },
            ["an end at a multiple of the row length 2048 after the 264192 tokens at which these rows begin"],
        ),
        ({"allow_changes": ["lengths"]}, ["allow_changes: 'lengths' is not a kept setting"]),
    ],
)
def test_what_is_wrong_with_a_ramp_or_a_stage_is_all_named(tmp_path, changes, said):
    with pytest.raises(Refused) as refused:
        parse_run(staged(**changes), tmp_path / "run.json")
    assert len(refused.value.problems) == len(said), refused.value.problems
    for part, problem in zip(said, refused.value.problems, strict=True):
        assert part in problem
        assert str(tmp_path / "run.json") in problem


def test_a_good_end_after_a_change_of_row_length(tmp_path):
    schedule = [
        {"from": 0, "to": 262144 + 1, "kind": "constant"},
        {"from": 262145, "to": 264192 + 5 * 2048, "kind": "decay", "length": 2048},
    ]
    config = parse_run(staged(schedule=schedule, tokens_per_update=264192), tmp_path / "run.json")
    assert [(span.start, span.row_length) for span in config.spans()] == [(0, 512), (264192, 2048)]


def kept(tmp_path, old: dict, new: dict, tokens: int) -> list[str]:
    where = tmp_path / "run.json"
    return check_kept(parse_run(old, where).dump(), parse_run(new, where), where, tokens=tokens)


def test_a_ramp_only_grows_after_what_is_trained(tmp_path):
    number = staged(tokens_per_update=262144)
    closed = [{**RAMP[0], "to": 2e9}]
    trained = 3 * 10**9
    assert kept(tmp_path, number, staged(), trained) == []
    assert kept(tmp_path, staged(tokens_per_update=closed), staged(), trained) == []
    late = [*closed, {**RAMP[1], "from": 2e9}]
    longer = [*RAMP[:1], {**RAMP[1], "to": 5e9}, {"from": 5e9, "to": None, "tokens": 524288}]
    assert kept(tmp_path, staged(), staged(tokens_per_update=longer), 4_900_000_000) == []
    for old, new, tokens in (
        (number, staged(), 4_700_000_001),
        (staged(), number, trained),
        (staged(), staged(tokens_per_update=[{**RAMP[0], "to": 4.8e9}, {**RAMP[1], "from": 4.8e9}]), 0),
        (staged(), staged(tokens_per_update=longer), 5_000_000_001),
        (staged(tokens_per_update=closed), staged(tokens_per_update=late), trained),
    ):
        with pytest.raises(
            Refused, match=r"tokens_per_update\[\d\]: it only grows at its end.*allow_changes"
        ):
            kept(tmp_path, old, new, tokens)
        new["allow_changes"] = ["tokens_per_update"]
        assert kept(tmp_path, old, new, tokens) == ["tokens_per_update"]


def test_row_lengths_grow_with_the_schedule_and_never_change_behind(tmp_path):
    first = staged(schedule=[{"from": 0, "to": None, "kind": "constant"}], lengths=staged()["lengths"][:1])
    named = staged(
        schedule=[{"from": 0, "to": None, "kind": "constant", "length": 512}], lengths=first["lengths"]
    )
    assert kept(tmp_path, first, staged(), 6 * 10**9) == []
    assert kept(tmp_path, first, named, 10**9) == []
    with pytest.raises(Refused, match=r"schedule\[0\]: it only grows at its end, after the 6,000,000,001"):
        kept(tmp_path, first, staged(), 6 * 10**9 + 1)
    other = staged(schedule=first["schedule"], lengths=[{"length": 1024, "rows": 1}])
    with pytest.raises(Refused, match=r"'length': 512}, run\.json has .*'length': 1024}"):
        kept(tmp_path, first, other, 10**9)


def test_an_average_precision_and_compiling_are_kept_for_life(tmp_path):
    where = tmp_path / "run.json"
    old = good() | {"ema": {"horizon_tokens": "2_560", "from_tokens": "1e3"}}
    checkpoint = parse_run(old, where).dump()
    assert checkpoint["ema"] == {"horizon_tokens": 2560, "from_tokens": 1000}
    assert (checkpoint["precision"], checkpoint["compile"]) == ("fp32", "none")
    assert check_kept(checkpoint, parse_run(old, where), where, tokens=2048) == []
    new = good() | {"ema": None, "precision": "bf16", "compile": "model"}
    with pytest.raises(Refused) as refused:
        check_kept(checkpoint, parse_run(new, where), where, tokens=2048)
    told = sorted(problem.split(": ")[1] for problem in refused.value.problems)
    assert told == ["compile", "ema.from_tokens", "ema.horizon_tokens", "precision"]
    new["allow_changes"] = ["ema", "precision", "compile"]
    assert check_kept(checkpoint, parse_run(new, where), where, tokens=2048) == told


def test_a_checkpoint_from_before_these_settings_has_their_defaults(tmp_path):
    where = tmp_path / "run.json"
    now = parse_run(good(), where)
    before = {k: v for k, v in now.dump().items() if k not in ("ema", "precision", "compile")}
    assert check_kept(before, now, where, tokens=2048) == []


@pytest.mark.parametrize(("former", "word"), [(False, "none"), (True, "model")])
def test_compile_was_a_boolean_once(tmp_path, former, word):
    where = tmp_path / "run.json"
    now = parse_run(good() | {"compile": former}, where)
    assert now.dump()["compile"] == word
    assert check_kept(now.dump() | {"compile": former}, now, where, tokens=2048) == []


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        (
            {"ema": {"horizon_tokens": 255, "from_tokens": 0}},
            "at least the 256 tokens of an update, found 255",
        ),
        ({"ema": {"horizon_tokens": 0, "from_tokens": 0}}, "ema.horizon_tokens"),
        ({"ema": {"horizon_tokens": 256}}, "ema.from_tokens"),
        ({"ema": {"horizon_tokens": 256, "from_tokens": 4096}}, "the schedule ends at 4096 tokens"),
        ({"ema": {"horizon_tokens": 256, "from_tokens": 1.5}}, "a token count is a whole number, found 1.5"),
        ({"ema": 2e9}, "ema"),
        ({"precision": "fp16"}, "precision"),
        ({"compile": 1}, "compile"),
    ],
)
def test_an_average_that_cannot_be_is_refused_by_name(tmp_path, changes, said):
    value = good() | changes
    value["schedule"][1]["to"] = 4096
    with pytest.raises(Refused) as refused:
        parse_run(value, tmp_path / "run.json")
    (problem,) = refused.value.problems
    assert said in problem


def test_the_horizon_covers_the_largest_update_of_a_ramp(tmp_path):
    ramp = [{"from": 0, "to": 2048, "tokens": 256}, {"from": 2048, "to": None, "tokens": 512}]
    value = good() | {"tokens_per_update": ramp, "ema": {"horizon_tokens": 511, "from_tokens": 0}}
    with pytest.raises(Refused, match="at least the 512 tokens"):
        parse_run(value, tmp_path / "run.json")
    value["ema"]["horizon_tokens"] = 512
    assert parse_run(value, tmp_path / "run.json").ema is not None
