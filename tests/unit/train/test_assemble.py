"""The engine of a line: what run.json says of precision, average, compiling and seed reaches it."""

from functools import cache

import numpy as np
import pytest
import torch

from tests.unit.train.conftest import three_cycles
from trainer_core.engine.assemble import make_step
from trainer_core.engine.step import UpdateScalars
from trainer_core.errors import Refused
from trainer_core.kernels.cross_entropy import logits
from trainer_core.line.config import parse_run
from trainer_core.line.paths import LinePaths
from trainer_core.models.registry import build
from trainer_core.train.trainer import _engine


@pytest.fixture
def engine(tmp_path):
    """The engine of a line as a trainer gets it."""

    def make(**changes):
        paths = LinePaths(tmp_path)
        return _engine(parse_run(three_cycles(**changes), paths.run_json), paths)

    return make


@pytest.fixture
def compiled(monkeypatch):
    """What torch is asked to compile, and how; nothing is compiled."""
    asked = []

    def compile(loss, **options):
        asked.append(options)
        return loss

    monkeypatch.setattr(torch, "compile", compile)
    return asked


def test_run_json_says_what_the_state_has(engine, compiled):
    state, _ = engine()
    assert state.E is None and state.W is None
    state, step = engine(precision="bf16", ema={"horizon_tokens": 64, "from_tokens": 0}, seed=5)
    assert state.W.dtype == torch.bfloat16
    assert state.E.equal(state.P) and state.P.dtype == torch.float32
    assert int(state.dropout_counter[0]) == 5
    assert compiled == []
    rows = np.zeros((2, 17), np.int64)
    result = step.update([rows], UpdateScalars(lr=1e-2, weight_decay=0.0, ema_weight=0.5))
    assert not result.skipped
    assert not state.E.equal(state.P)


def test_each_shape_is_compiled_by_itself_and_too_many_fail(engine, compiled):
    import torch._dynamo.config as dynamo

    _, step = engine(compile="model")
    assert compiled == [{"dynamic": False}]
    assert dynamo.recompile_limit >= 256
    assert dynamo.fail_on_recompile_limit_hit
    assert not step.update([np.zeros((2, 17), np.int64)], UpdateScalars(lr=1e-2, weight_decay=0.0)).skipped


def test_the_loss_of_the_head_is_compiled_alone_and_only_where_asked(engine, compiled, monkeypatch):
    monkeypatch.setattr(logits, "_compiled", cache(logits._compiled.__wrapped__))
    rows, scalars = [np.zeros((2, 17), np.int64)], UpdateScalars(lr=1e-2, weight_decay=0.0)
    _, plain = engine()
    _, step = engine(compile="cross_entropy")
    assert not plain.update(rows, scalars).skipped and compiled == []
    assert not step.update(rows, scalars).skipped
    assert compiled == [{"dynamic": False}] * 2


def test_without_a_compiler_a_line_that_compiles_does_not_start(engine, monkeypatch):
    monkeypatch.setenv("CXX", "/nowhere/c++")
    with pytest.raises(Refused, match=r"run\.json: compile: .*'/nowhere/c\+\+' is not here"):
        engine(compile="model")
    engine()


def test_each_row_length_recomputes_as_it_is_told():
    told = []
    model = build("llama", {"layers": 1, "width": 16, "heads": 2, "ffn": 32}, 64, 0)
    real = model.loss
    model.loss = lambda ids, targets, ac: told.append((ids.shape[1], ac)) or real(ids, targets, ac)
    _, step = make_step(model, recompute={8: "none", 16: "full"})
    for length in (8, 16):
        step.evaluate(np.zeros((1, length + 1), np.int64))
    assert told == [(8, "none"), (16, "full")]
