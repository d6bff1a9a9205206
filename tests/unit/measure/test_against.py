"""Other trainers train what ours does: the same losses from the same weights, and no speeds otherwise."""

from __future__ import annotations

import importlib.util
import json
import sys
from dataclasses import replace

import pytest
import torch

from trainer_core.errors import Refused
from trainer_core.measure import bench as measure
from trainer_core.measure.against import hf_trainer
from trainer_core.measure.against.compare import (
    THEIRS,
    Result,
    compare,
    ours,
    ratios,
    refuse_other_losses,
)
from trainer_core.measure.against.contender import Batches
from trainer_core.measure.against.nanogpt import NanoGpt
from trainer_core.measure.bench_text import against_text
from trainer_core.measure.throughput import Workload

TINY = Workload(
    model="llama",
    config={"layers": 2, "width": 32, "heads": 2, "ffn": 48, "rope_max_seq_len": 32},
    vocab_size=64,
    seq_len=16,
    rows=2,
    accum=2,
)
needs_transformers = pytest.mark.skipif(
    importlib.util.find_spec("transformers") is None or importlib.util.find_spec("accelerate") is None,
    reason="transformers and accelerate are in the extra `bench`",
)


class Said:
    """A contender that says losses it was given."""

    def __init__(self, *losses: float) -> None:
        self.losses = list(losses)
        self.closed = False

    def update(self) -> float:
        return self.losses.pop(0)

    def close(self) -> None:
        self.closed = True


@pytest.fixture(autouse=True)
def one_thread() -> None:
    torch.set_num_threads(1)


def test_nanogpt_trains_what_we_do() -> None:
    """Three updates: the optimizers and the clip agree too, not only the loss of the first weights."""
    contenders = {
        **ours("fp32", compile="none"),
        "nanogpt-fp32": lambda workload, batches: NanoGpt(workload, batches, bf16=False),
    }
    found = compare(TINY, contenders, rounds=2)
    assert found["nstrain-fp32"].losses == pytest.approx(found["nanogpt-fp32"].losses, abs=1e-4)
    assert len(set(found["nstrain-fp32"].losses)) == 3


@needs_transformers
def test_the_hf_trainer_trains_what_we_do() -> None:
    contenders = {
        **ours("fp32", compile="none"),
        "hf-trainer-fp32": THEIRS["hf-trainer"]["hf-trainer-fp32"],
    }
    found = compare(replace(TINY, ac="full"), contenders, rounds=2)
    assert found["nstrain-fp32"].losses == pytest.approx(found["hf-trainer-fp32"].losses, abs=1e-4)


@needs_transformers
def test_bf16_contenders_are_named_and_close(capsys: pytest.CaptureFixture[str]) -> None:
    found = measure.bench_against(TINY, "hf-trainer", precision="fp32", rounds=1)
    assert list(found["contenders"]) == ["nstrain-fp32", "hf-trainer-fp32", "hf-trainer-bf16"]
    assert set(found["ratios"]["nstrain-fp32"]) == {"hf-trainer-fp32", "hf-trainer-bf16"}
    assert capsys.readouterr().out == ""
    assert "hf-trainer-bf16" in against_text(json.loads(json.dumps(found)))


@needs_transformers
def test_a_trainer_that_is_closed_early_ends_its_thread() -> None:
    trainer = THEIRS["hf-trainer"]["hf-trainer-fp32"](TINY, TINY.batches(3))
    trainer.update()
    trainer.close()
    assert isinstance(trainer, hf_trainer.HfTrainer) and not trainer._thread.is_alive()


@needs_transformers
def test_an_error_in_their_loop_is_ours_to_see() -> None:
    broken = TINY.batches(2)
    broken[1][0][:] = TINY.vocab_size  # no such token
    trainer = THEIRS["hf-trainer"]["hf-trainer-fp32"](TINY, broken)
    trainer.update()
    with pytest.raises(IndexError):
        trainer.update()
    trainer.close()


def test_nanogpt_in_bf16_is_within_the_tolerance() -> None:
    found = measure.bench_against(TINY, "nanogpt", precision="fp32", rounds=1)
    assert list(found["contenders"]) == ["nstrain-fp32", "nanogpt-bf16"]
    assert found["contenders"]["nanogpt-bf16"]["losses"] != found["contenders"]["nstrain-fp32"]["losses"]


def test_contenders_compile_no_more_than_is_asked() -> None:
    names = ["nstrain-bf16", "nstrain-bf16-ce-compiled", "nstrain-bf16-compiled"]
    assert list(ours("bf16", compile="none")) == names[:1]
    assert list(ours("bf16", compile="cross_entropy")) == names[:2]
    assert list(ours("bf16", compile="model")) == names


def test_without_transformers_the_extra_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "accelerate", None)
    with pytest.raises(Refused, match=r"accelerate is not installed.*nstrain\[bench\]"):
        measure.bench_against(TINY, "hf-trainer", precision="fp32", rounds=1)


def test_other_losses_are_refused_before_any_speed_is_told() -> None:
    one, other = Said(2.0, 1.9, 1.8), Said(2.0, 1.905, 1.8)

    def given(said: Said) -> object:
        return lambda workload, batches: said

    with pytest.raises(Refused, match=r"--against: b does not train what a does: .*2\.0000 and 1\.9050"):
        compare(TINY, {"a": given(one), "b": given(other)}, rounds=2)  # type: ignore[dict-item]
    assert one.closed and other.closed and len(one.losses) == 1


def test_losses_that_are_no_numbers_are_refused() -> None:
    with pytest.raises(Refused, match="differ"):
        refuse_other_losses({"a": [1.0], "b": [float("nan")]})
    refuse_other_losses({"a": [1.0], "b": [1.0009]})


def test_contenders_take_turns_and_get_the_same_rows() -> None:
    calls: list[str] = []
    seen: list[Batches] = []

    def maker(name: str) -> object:
        class Turn(Said):
            def update(self) -> float:
                calls.append(name)
                return 1.0

        def make(workload: Workload, batches: Batches) -> Said:
            seen.append(batches)
            return Turn()

        return make

    compare(TINY, {"a": maker("a"), "b": maker("b")}, rounds=2)  # type: ignore[dict-item]
    assert calls == ["a", "b"] * 3
    assert seen[0] is seen[1] and len(seen[0]) == 3


def test_ratios_are_of_tokens_per_cpu_second() -> None:
    def result(speed: float) -> Result:
        return Result(cpu_seconds=1 / speed, tokens_per_cpu_second=speed, losses=())

    found = ratios({"nstrain-bf16": result(30.0), "theirs": result(10.0), "nstrain-fp32": result(5.0)})
    assert found == {"nstrain-bf16": {"theirs": 3.0}, "nstrain-fp32": {"theirs": 0.5}}
