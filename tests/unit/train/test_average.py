"""The moving average and the precision of a line: what they hold, that a resume repeats their bits, leave."""

import json

import pytest
import torch

from tests.unit.train.test_loop import final_bytes, rows_of
from trainer_core.errors import Refused
from trainer_core.train.loop import Stopped

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
