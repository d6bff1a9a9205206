"""What a package of another may do wrong: named with its place, and other models are listed all the same."""

import json

import pytest
import torch

from deployments import cli
from tests.tools.model_package import BIGRAM, check_out
from tests.tools.real_line import Size, make_real_line
from trainer_core.errors import Refused
from trainer_core.generate.continuation import continuation
from trainer_core.generate.sampling import Sampler, Sampling
from trainer_core.models.presets import external_presets
from trainer_core.models.registry import build

pytestmark = pytest.mark.usefixtures("host")

SMALL = Size(model="bigram-cpu", rows_per_update=4, updates_per_cycle=2, docs=12)

MADE = "return Bigram(config, vocab_size).to(dtype)"
PAIR = '("table", self.table)'
FLOPS = "return 6.0 * self.vocab_size"


def changed(old, new):
    assert BIGRAM.count(old) == 1, old
    return BIGRAM.replace(old, new)


FAULTS = {
    # at its import
    "exits": ("raise SystemExit(3)", "cannot be imported (SystemExit: 3 at borrowed.py:1)"),
    "attributes": ("def __getattr__(name): raise OSError('a\\nb')", "OSError: a b at borrowed.py:1"),
    # its presets
    "iterates": (
        "def build(*a): pass\nclass P:\n    def __iter__(self): raise ValueError('it')\nPRESETS = P()",
        "PRESETS cannot be read (ValueError: it at borrowed.py:3)",
    ),
    "number": (changed('"bigram-cpu", "bigram"', '7, "bigram"'), "PRESETS holds 7 whose name is none"),
    "empty": (changed('"bigram-cpu", "bigram"', '"", "bigram"'), "PRESETS holds '' whose name is none"),
    "control": (changed('"bigram-cpu"', '"a\\n\\x1b[2J"'), r"PRESETS holds 'a\n\x1b[2J' whose name is none"),
    "vocabulary": (changed('"bigram", 64', '"bigram", "64"'), "whose vocab_size is '64'; expected a pos"),
    "negative": (changed('"bigram", 64', '"bigram", -64'), "whose vocab_size is -64; expected a positive"),
    "row": (changed("row_length=16", "row_length='16'"), "has row_length '16'; expected a positive integer"),
    "no row": (changed("row_length=16", "row_length=0"), "has row_length 0; expected a positive integer"),
    "betas": (changed("rows=4", "rows=4, betas=0.9"), "has betas 0.9; expected 2 numbers"),
    "rate": (changed("rows=4", "rows=4, clip=float('nan')"), "has clip nan; expected a number"),
    "mode": (changed("rows=4", "rows=4, ac=3"), "has ac 3; expected text"),
    "object": (
        changed('{"rope_max_seq_len": 64}', '{"rope_max_seq_len": 64, "x": object()}'),
        "whose config is no JSON object",
    ),
    "lacking mode": (changed("rows=4", "rows=4, ac='full'"), "preset 'bigram-cpu': its ac 'full' is nothing"),
    # its function build
    "raises": (changed(MADE, "raise ValueError('boom')"), "build failed (ValueError: boom at borrowed.py:"),
    "asserts": (changed(MADE, "assert False"), "build failed (AssertionError at borrowed.py:"),
    "arguments": (
        changed("def build(config, vocab_size, seed, dtype)", "def build(config)"),
        "build failed (TypeE",
    ),
    "no init": (
        changed("        super().__init__()\n", ""),
        "build failed (AttributeError: cannot assign par",
    ),
    # its model
    "settings": (
        changed("Config(**config), vocab_size", "config, vocab_size"),
        "config.rope_max_seq_len is None",
    ),
    "no size": (
        changed("self.config, self.vocab_size = Config(**config), vocab_size", "pass"),
        "no attribute 'vocab_size' at borrowed.py:",
    ),
    "modes": (changed('("none", "all")', "None"), "whose recomputation is None; expected names"),
    "mode numbers": (
        changed('("none", "all")', '("none", 3)'),
        "recomputation is ('none', 3); expected names",
    ),
    "no flops": (
        changed(FLOPS, "raise RuntimeError('no idea')"),
        "cannot be asked (RuntimeError: no idea at bor",
    ),
    "flops": (changed(FLOPS, "return None"), "flops_per_token gives None; expected a number"),
    "nan": (changed(FLOPS, "return math.nan"), "flops_per_token gives nan; expected a number"),
    "tensor": (changed(FLOPS, "return torch.ones(())"), "flops_per_token gives tensor("),
    "type": (
        changed(".to(dtype)", ".double()"),
        "whose parameter 'table' is torch.float64; torch.float32 was",
    ),
    "label": (changed("return name\n", "return 3\n"), "layer_label gives something else than text"),
    "no groups": (changed(f"params=[{PAIR}]", "params=[]"), "whose group 'table' is empty"),
    "uncovered": (
        changed("return [ParamGroup(", "return []\n        [ParamGroup("),
        "whose parameter 'table' is not in param_groups",
    ),
    "twice": (changed(PAIR, f"{PAIR}, {PAIR}"), "whose parameter 'table' is 2 times in param_groups"),
    "name": (changed(PAIR, '("tabel", self.table)'), "param_groups have 'tabel', which is none of its"),
    "other": (changed(PAIR, '("table", torch.zeros(3))'), "param_groups have 'table', which is none of its"),
}


LOSS = "return total, (targets != -100).sum()"
LOSSES = {
    "alone": ("return total", "loss returned a Tensor; expected two scalars"),
    "a number": ("return total, 60", "loss returned a tuple of Tensor, int; expected two scalars"),
    "a vector": ("return total[None], (targets != -100).sum()", "of shapes [1] and []; expected two scalars"),
    "rounded": (
        "return total.bfloat16(), (targets != -100).sum()",
        "a sum in torch.bfloat16; expected float32",
    ),
    "raises": ("raise ValueError('boom')", "micro 4 17: failed: ValueError: boom"),
    "reads": ("return total, total.item()", "a value is read on the host"),
}


@pytest.mark.parametrize("fault", LOSSES)
def test_a_loss_that_is_none_is_refused_by_check(installed, tmp_path, capsys, fault):
    """A count that the host knows, and a sum in bfloat16, trained in silence."""
    body, words = LOSSES[fault]
    installed(source=changed(LOSS, body))
    paths = make_real_line(tmp_path / "line", cycles=2, size=SMALL)
    assert cli.run(["check", str(paths.root)]) == 20
    told = capsys.readouterr().err
    assert words in told and "run.json" in told


@pytest.mark.parametrize(
    "body", ["self.logits(ids)[..., :5], None", "self.logits(ids)[0], None", "self.logits(ids)"]
)
def test_scores_of_other_shapes_are_refused(installed, body):
    installed(source=changed("return self.logits(ids), None", f"return {body}"))
    model = build("bigram", {"rope_max_seq_len": 8}, 16, 0)
    with pytest.raises(Refused, match=r"advance returned .*; expected scores \[1, 2, 16\] and a state"):
        next(continuation(model, [1, 2], Sampler(Sampling(), seed=0), max_new=1, end=None))


@pytest.mark.parametrize("fault", FAULTS)
def test_a_fault_is_named_and_hides_no_other_preset(installed, capsys, fault):
    source, words = FAULTS[fault]
    installed(source=source)
    for options in ([], ["--json"]):
        assert cli.run(["models", *options]) == 20
        shown = capsys.readouterr()
        told = shown.err.splitlines()
        assert "llama-cpu" in shown.out and "bigram-cpu" not in shown.out
        assert all(line.startswith("nstrain: ") and "bigram" in line for line in told), told
        assert any(words in line for line in told), told
        assert not options or [row["name"] for row in json.loads(shown.out)] == ["llama-cpu"]


@pytest.mark.parametrize("family", ["", "a b", "../x", "a\\u001b", "llama-cpu"])
def test_a_family_whose_name_cannot_be_one(tmp_path, host, capsys, family):
    """One with the name of a built-in preset was built as that preset."""
    check_out(tmp_path / "theirs", "borrowed", family=f'"{family}"')
    host.write_text(json.dumps({"neuronspark": "theirs"}))
    assert cli.run(["models"]) == 20
    shown = capsys.readouterr()
    wanted = "a preset of this name built in" if family == "llama-cpu" else "letters, digits and ._+- alone"
    assert wanted in shown.err and "bigram-cpu" not in shown.out
    with pytest.raises(Refused):
        build("bigram-cpu", None, 8, 0)
    assert cli.run(["bench", "--model", "llama-nano-cpu", "--limits"]) == 0


@pytest.mark.parametrize("name", ["bigram", "llama"])
def test_a_preset_with_the_name_of_a_family_is_refused(installed, name):
    """What was built by its name was the family without a configuration."""
    installed(source=changed("bigram-cpu", name))
    found, problems = external_presets()
    assert not found and any(f"preset {name!r} has the name of a family" in problem for problem in problems)


def test_what_build_raises_keeps_its_cause(installed):
    installed(source=changed(MADE, "raise ValueError('boom')"))
    with pytest.raises(Refused) as refused:
        build("bigram", {"rope_max_seq_len": 8}, 16, 0)
    assert isinstance(refused.value.__cause__, ValueError)


def test_a_refusal_of_a_package_stays_what_it_says(installed):
    installed(source=changed(MADE, "from trainer_core.errors import Refused; raise Refused(['one', 'two'])"))
    with pytest.raises(Refused) as refused:
        build("bigram", {"rope_max_seq_len": 8}, 16, 0)
    assert list(refused.value.problems) == ["one", "two"]


def test_an_interrupt_stays_one(installed):
    installed(source="raise KeyboardInterrupt")
    with pytest.raises(KeyboardInterrupt), torch.device("meta"):
        build("bigram", {"rope_max_seq_len": 8}, 16, 0)
