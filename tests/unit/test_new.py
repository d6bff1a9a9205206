"""`nstrain new` with a batch ramp and stages of row lengths: what it writes, registers, cuts and refuses."""

import json

import pytest
import torch

from deployments.cli import run
from tests.tools.tiny_data import disk_line
from trainer_core.data.heldout.validation import make_heldout, rows_digests
from trainer_core.data.plan.consumer import read_consumer
from trainer_core.engine import assemble

RAMP = '[{"from":0,"to":4.7e3,"tokens":512},{"from":4.7e3,"to":null,"tokens":768}]'
STAGES = (
    'schedule=[{"from":0,"to":8e3,"kind":"constant"},{"from":8e3,"to":null,"kind":"constant","length":64}]',
    'lengths=[{"length":32,"rows":8},{"length":64,"rows":4,"ac":"full"}]',
)


@pytest.fixture(scope="module")
def data(tmp_path_factory):
    work = disk_line(tmp_path_factory.mktemp("new"), cycle_tokens=4096, heldout=0.3, consumer=False)
    make_heldout(work)
    return work


@pytest.fixture
def new(data, tmp_path, monkeypatch, capsys):
    """Runs `nstrain new` in this process: exit code, output, errors."""
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    monkeypatch.delenv("NSTRAIN_HOST", raising=False)
    for left in (data / "consumer.json", *data.glob("heldout/rows-*.json")):
        left.unlink(missing_ok=True)

    def call(*arguments):
        base = ("--model", "llama-nano-cpu", "--data", data, "--peak-lr", 1e-2)
        code = run([str(a) for a in ("new", tmp_path / "line", *base, *arguments)])
        return code, *capsys.readouterr()

    return call


def test_a_ramp_and_stages_reach_run_json_and_the_data_line(new, data, tmp_path):
    settings = [part for setting in STAGES for part in ("--set", setting)]
    code, said, _ = new("--tokens-per-update", RAMP, "--weight-decay-batch", "1e3", *settings)
    assert code == 0
    assert "512 tokens per update in rows of 32, 768 tokens per update in rows of 32 from 5,120 on" in said
    assert said.count("768 tokens per update in rows of 32") == 1, "what does not change is told once"
    value = json.loads((tmp_path / "line" / "run.json").read_text())
    assert value["tokens_per_update"] == [
        {"from": 0, "to": 4700, "tokens": 512},
        {"from": 4700, "to": None, "tokens": 768},
    ]
    assert value["optimizer"]["weight_decay_batch"] == 1000
    assert [piece.get("length") for piece in value["schedule"]] == [None, 64]
    consumer = read_consumer(data)
    assert [(p.start, p.end, p.value) for p in consumer.batches] == [(0, 4700, 512), (4700, None, 768)]
    assert [(p.start, p.end, p.value) for p in consumer.row_lengths] == [(0, 8000, 32), (8000, None, 64)]
    assert rows_digests(data).keys() == {"32", "64"}


def test_what_a_family_cannot_recompute_is_refused_by_name(new, tmp_path):
    code, _, complaint = new("--set", 'lengths=[{"length":32,"rows":8,"ac":"dendritic"}]')
    assert code == 20 and not (tmp_path / "line").exists()
    assert "lengths[0].ac: 'dendritic' is nothing that llama can recompute; expected none, full" in complaint


@pytest.mark.parametrize(
    ("setting", "said"),
    [
        ("model.config.widht=64", "model.config.widht is not a setting of llama; did you mean width?"),
        ("model.config.width=33", "model.config.width 33 must be a multiple of twice model.config.heads"),
        ("model.config.layers=deep", "model.config.layers is 'deep'; expected a positive integer"),
        ("model.family=gpt2", "model.config.rope_theta is not a setting of gpt2"),
        ("model.vocab_size=2", "model.vocab_size: 2 entries cannot hold the data line's largest token id"),
    ],
)
def test_a_model_that_cannot_be_made_takes_no_data_line(new, data, tmp_path, setting, said):
    """A start said so only after the first cycle was planned, which keeps every other line away."""
    code, _, complaint = new("--set", setting)
    assert code == 20 and said in complaint
    assert not (tmp_path / "line").exists() and not (data / "consumer.json").exists()


@pytest.mark.parametrize("number", ["512", "0.512e3", " 512 "])
def test_a_number_stays_a_number(new, tmp_path, number):
    assert new("--tokens-per-update", number)[0] == 0
    value = json.loads((tmp_path / "line" / "run.json").read_text())
    assert value["tokens_per_update"] == 512
    assert value["optimizer"]["weight_decay_batch"] is None


def test_an_average_begins_after_its_horizon_unless_told(new, tmp_path):
    assert new("--ema-horizon-tokens", "2e9", "--set", "precision=bf16")[0] == 0
    value = json.loads((tmp_path / "line" / "run.json").read_text())
    assert value["ema"] == {"horizon_tokens": 2_000_000_000, "from_tokens": 2_000_000_000}
    assert (value["precision"], value["compile"]) == ("bf16", "none")
    (tmp_path / "line" / "run.json").unlink()
    assert new("--ema-horizon-tokens", "2e9", "--set", "ema.from_tokens=0")[0] == 0
    value = json.loads((tmp_path / "line" / "run.json").read_text())
    assert value["ema"] == {"horizon_tokens": 2_000_000_000, "from_tokens": 0}


@pytest.mark.parametrize("native", [True, False])
def test_a_line_computes_in_what_its_host_is_fast_in(new, tmp_path, monkeypatch, native):
    monkeypatch.setattr(assemble, "has_bf16_matmul", lambda: native)
    assert assemble.fast_precision(torch.device("cuda")) == "bf16"
    assert new()[0] == 0
    value = json.loads((tmp_path / "line" / "run.json").read_text())
    assert value["precision"] == ("bf16" if native else "fp32")
    (tmp_path / "line" / "run.json").unlink()
    assert new("--set", "precision=fp32")[0] == 0
    assert json.loads((tmp_path / "line" / "run.json").read_text())["precision"] == "fp32"


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (("--ema-horizon-tokens", "long"), ["--ema-horizon-tokens: expected a token count"]),
        (("--ema-horizon-tokens", "10"), ["ema.horizon_tokens: expected at least the "]),
        (("--set", "ema.horizon_tokens=2e9"), ["ema.from_tokens: "]),
        (("--set", "precision=half"), ["precision: "]),
        (("--tokens-per-update", "many"), ["--tokens-per-update: expected a token count"]),
        (("--tokens-per-update", "[{"), ["--tokens-per-update: "]),
        (("--tokens-per-update", "[1]"), ["tokens_per_update.0: "]),
        (("--tokens-per-update", "[]"), ["tokens_per_update: expected at least one piece"]),
        (("--tokens-per-update", RAMP.replace("null", "4e3")), ["tokens_per_update[1]: to (4000) must lie"]),
        (
            ("--tokens-per-update", RAMP.replace("768", "760")),
            ["a multiple of the row length 32 in force"],
        ),
        (
            ("--tokens-per-update", RAMP.replace("768", "8192")),
            ["a cycle of 4,096 tokens holds no update"],
        ),
        (
            ("--tokens-per-update", "1.5", "--weight-decay-batch", "-1"),
            ["--tokens-per-update: a token count is a whole", "--weight-decay-batch: expected a token count"],
        ),
    ],
)
def test_a_ramp_that_cannot_be_is_refused_by_name(new, data, tmp_path, arguments, said):
    code, _, errors = new(*arguments)
    assert code == 20
    assert all(part in errors for part in said), errors
    assert not (tmp_path / "line" / "run.json").exists()
    assert not (data / "consumer.json").exists()
