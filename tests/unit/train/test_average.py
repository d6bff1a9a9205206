"""The moving average and the precision of a line: what they hold, that a resume repeats their bits, leave."""

import json

import numpy as np
import pytest
import torch

from tests.unit.train.test_loop import final_bytes, rows_of
from trainer_core.engine.assemble import make_step
from trainer_core.engine.capture_check import check_capture
from trainer_core.errors import Refused
from trainer_core.models.registry import build
from trainer_core.train.loop import Stopped
from trainer_core.train.validate import validate

EMA = {"horizon_tokens": 256, "from_tokens": 192}
"""Updates have 64 tokens: a copy of the weights up to update 3, then a quarter of the way at each."""


def stopped(line, update):
    """Trains until an update and stops there; returns the trainer's flat state."""
    line.paths.stop.write_text(json.dumps({"id": "x", "at_update": update, "by": "test"}))
    with pytest.raises(Stopped):
        line.loop().run(None)
    line.paths.stop.unlink()
    return line.state


def average(paths, update):
    return (paths.checkpoint(update) / "ema.safetensors").read_bytes()


def flat(paths, update, name):
    raw = (paths.checkpoint(update) / f"{name}.safetensors").read_bytes()
    return torch.frombuffer(bytearray(raw[8 + int.from_bytes(raw[:8], "little") :]), dtype=torch.float32)


def test_the_average_is_a_copy_up_to_its_start_and_then_lags(rig):
    every = {"every_updates": 1, "keep_last": 20}
    line = rig(ema=EMA, checkpoints=every)
    stopped(line, 6)
    for update in (0, 1, 3):
        assert flat(line.paths, update, "ema").equal(flat(line.paths, update, "params"))
    expected = flat(line.paths, 3, "params").double()
    for update in range(4, 7):
        expected += 0.25 * (flat(line.paths, update, "params").double() - expected)
        torch.testing.assert_close(flat(line.paths, update, "ema").double(), expected, rtol=1e-6, atol=1e-8)
    assert not flat(line.paths, 6, "ema").equal(flat(line.paths, 6, "params"))
    plain = rig("plain")
    stopped(plain, 6)
    assert final_bytes(plain.paths, 6) == final_bytes(line.paths, 6), "the average moves nothing else"
    assert not (plain.paths.checkpoint(6) / "ema.safetensors").exists()


@pytest.mark.parametrize("precision", ["fp32", "bf16"])
def test_a_resume_repeats_the_bits_of_average_and_shadow(rig, precision):
    whole = rig("whole", ema=EMA, precision=precision)
    whole.loop().run(None)
    broken = rig("broken", ema=EMA, precision=precision)
    for update in (2, 5):
        stopped(broken, update)
    broken.loop().run(None)
    assert final_bytes(broken.paths) == final_bytes(whole.paths)
    assert average(broken.paths, 12) == average(whole.paths, 12)
    for kind in ("update", "validation"):
        assert rows_of(broken.paths, kind) == rows_of(whole.paths, kind)


def test_rounded_weights_train_another_line_as_well(rig):
    losses = {}
    for precision in ("fp32", "bf16"):
        line = rig(precision, precision=precision)
        line.loop().run(None)
        losses[precision] = [row["train/loss"] for row in rows_of(line.paths)]
        names = {path.stem for path in line.paths.checkpoint(12).glob("*.safetensors")}
        assert names == {"params", "exp_avg", "exp_avg_sq"}, "the rounded weights are not saved"
    assert losses["bf16"] != losses["fp32"]
    assert losses["bf16"] == pytest.approx(losses["fp32"], abs=0.02)


def test_an_average_switched_on_with_leave_begins_as_the_weights(rig):
    line = rig()
    stopped(line, 6)
    line.changes["ema"] = EMA
    with pytest.raises(Refused, match=r"ema\.horizon_tokens: a line keeps this setting"):
        line.loop()
    line.changes["allow_changes"] = ["ema"]
    line.loop()
    weights = line.state.P.clone()
    assert line.state.E.equal(weights)
    state = stopped(line, 7)
    torch.testing.assert_close(state.E, weights + 0.25 * (state.P - weights), rtol=1e-6, atol=1e-8)


def test_an_average_switched_off_and_on_again_begins_anew(rig):
    line = rig(ema=EMA, allow_changes=["ema"])
    stopped(line, 6)
    line.changes["ema"] = None
    stopped(line, 7)
    assert not (line.paths.checkpoint(7) / "ema.safetensors").exists()
    line.changes["ema"] = EMA
    line.loop()
    assert line.state.E.equal(line.state.P)


def test_a_checkpoint_that_lost_its_average_is_not_resumed(rig):
    line = rig(ema=EMA)
    stopped(line, 6)
    folder = line.paths.checkpoint(6)
    manifest = json.loads((folder / "manifest.json").read_text())
    del manifest["files"]["ema.safetensors"]
    (folder / "manifest.json").write_text(json.dumps(manifest))
    (folder / "ema.safetensors").unlink()
    with pytest.raises(Refused, match=r"ema\.safetensors: missing"):
        line.loop()


@pytest.mark.parametrize("precision", ["fp32", "bf16"])
def test_the_average_is_validated_beside_the_weights(rig, precision):
    line = rig(ema=EMA, precision=precision)
    stopped(line, 6)
    early, _, late = rows_of(line.paths, "validation")
    names = [name for name in late if name.startswith("val_")]
    assert names and {f"ema/{name}" for name in names} == {n for n in late if n.startswith("ema/")}
    assert all(early[f"ema/{name}"] == early[name] for name in names), "up to update 3 it is a copy"
    assert late["ema/val_16/mix"] != late["val_16/mix"]
    # The same rows through a model that really has the averaged weights.
    rows = line.rows.validation(16, 1)
    state, step = make_step(model_of(line), precision=precision, recompute={16: "none"})
    state.P.copy_(flat(line.paths, 6, "ema"))
    state.load_scalars(state.scalars())
    expected = validate(rows, step.evaluate, micro_rows=3, beat=lambda: None)
    assert expected == {name: late[f"ema/{name}"] for name in names}


@pytest.mark.parametrize("precision", ["fp32", "bf16"])
def test_a_validation_of_the_average_that_fails_leaves_the_weights_bound(rig, precision):
    line = rig(ema=EMA, precision=precision)
    stopped(line, 5)
    loop = line.loop()
    before = {name: tensor.clone() for name, tensor in line.state.state_tensors().items()}
    step = loop.step
    step._parts._model_loss = fails
    with pytest.raises(ZeroDivisionError):
        step.evaluate(np.zeros((2, 17), np.int64), average=True)
    line.state.assert_bound()
    assert all(tensor.equal(before[name]) for name, tensor in line.state.state_tensors().items())


def fails(ids, targets):
    raise ZeroDivisionError


def model_of(line):
    model = line.config["model"]
    return build(model["family"], model["config"], model["vocab_size"], 0)


@pytest.mark.parametrize("shadow", [None, torch.bfloat16])
def test_a_validation_of_the_average_can_be_captured(shadow):
    with torch.device("meta"):
        model = build("llama", {"layers": 1, "width": 16, "heads": 2, "ffn": 32}, 64, 0)
    report = check_capture(model, model.loss, micro=[(2, 16)], evaluations=[(2, 16)], ema=True, shadow=shadow)
    assert [part.part for part in report.parts][-1] == "average 2 17"
    assert report.problems == ()
