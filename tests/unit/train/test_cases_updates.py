"""Updates that are skipped, and what a stop in the middle of a validation leaves, through the whole loop."""

import math
import signal

import pytest
import torch

from trainer_core.errors import NonFinite
from trainer_core.line.checkpoints import list_checkpoints
from trainer_core.line.ledger import live_rows
from trainer_core.train.loop import Stopped
from trainer_core.train.resume import find_resume_point

WARM_UP = [{"from": 0, "to": 640, "kind": "warmup"}, {"from": 640, "to": 2048, "kind": "constant"}]
"""10 updates of 64 tokens, then 22."""

AVERAGE = {"horizon_tokens": 256, "from_tokens": 128}


def _plant(loop, planted: dict[int, float]) -> dict[int, dict[str, torch.Tensor]]:
    """Puts values into one element of the gradient of updates; returns the state before each of them."""
    real, before = loop.step.submit, {}

    def submit(micro, scalars):
        update = loop.progress.update + 1
        if update in planted:
            state = loop.step._state
            before[update] = {name: tensor.clone() for name, tensor in state.state_tensors().items()}
            state.G[7] = planted[update]
        real(micro, scalars)

    loop.step.submit = submit
    return before


def _readings(paths) -> list[tuple]:
    rows = live_rows(paths.metrics, "update")
    return [(row["update"], row["tokens"], row["lr"], row["skipped"], row["train/loss"]) for row in rows]


@pytest.mark.parametrize("precision", ["fp32", "bf16"])
def test_infinite_at_4_not_a_number_at_7_and_eleven_in_a_row_from_12(rig, precision) -> None:
    """Case D03: the loss is finite each time; nothing but the counters moves; the good checkpoints stay."""
    planted = {4: math.inf, 7: math.nan, **dict.fromkeys(range(12, 30), -math.inf)}
    line = rig(schedule=WARM_UP, guards={"max_nonfinite": 11}, precision=precision, ema=AVERAGE)
    loop = line.loop()
    before = _plant(loop, planted)
    with pytest.raises(NonFinite, match=r"11 updates in a row .* the last is 22"):
        loop.run(None)
    rows = _readings(line.paths)
    assert [row[0] for row in rows] == list(range(1, 23))
    assert [row[0] for row in rows if row[3]] == [4, 7, *range(12, 23)]
    assert all(math.isfinite(row[4]) for row in rows)
    for name, tensor in line.state.state_tensors().items():
        assert tensor.isfinite().all(), name
        assert torch.equal(tensor, before[12][name]), name
        assert torch.equal(before[4][name], before[7][name]) is False
    assert line.state.scalars()["skipped_total"] in (13, 14), "one more may have been asked for"
    assert line.state.scalars()["applied_updates"] == 9
    assert 10 in [checkpoint.update for checkpoint in list_checkpoints(line.paths)]
    point = find_resume_point(line.paths)
    assert point is not None and point.info.update <= 22


def test_a_skipped_update_counts_its_tokens_and_the_schedule_goes_on_also_after_a_resume(rig) -> None:
    """Case D05: the rate is a function of the tokens, whether an update was skipped or not."""
    planted = {4: math.inf, 7: math.nan}
    plain = rig("plain", schedule=WARM_UP)
    plain.loop().run(3)
    line = rig("skipping", schedule=WARM_UP)
    loop = line.loop()
    _plant(loop, planted)
    loop.run(3)
    assert [row[:3] for row in _readings(line.paths)] == [row[:3] for row in _readings(plain.paths)]
    assert [row[0] for row in _readings(line.paths) if row[3]] == [4, 7]

    for stop in (3, 6):
        parts = rig(f"stopped-{stop}", schedule=WARM_UP)
        parts.paths.stop.write_text(f'{{"at_update": {stop}}}')
        loop = parts.loop()
        _plant(loop, planted)
        with pytest.raises(Stopped):
            loop.run(3)
        parts.paths.stop.unlink()
        loop = parts.loop()
        _plant(loop, planted)
        loop.run(3)
        assert _readings(parts.paths) == _readings(line.paths)
        assert torch.equal(parts.state.P, line.state.P)


@pytest.mark.parametrize("call", [1, 6])
@pytest.mark.parametrize("precision", ["fp32", "bf16"])
def test_a_signal_while_the_average_is_validated_leaves_the_weights_in_the_checkpoint(
    rig, precision, call: int
) -> None:
    """Case D09."""
    plain = rig("plain", precision=precision, ema=AVERAGE)
    plain.paths.stop.write_text('{"at_update": 6}')
    with pytest.raises(Stopped):
        plain.loop().run(None)
    line = rig("line", precision=precision, ema=AVERAGE)
    loop = line.loop()
    real, calls = loop.step.evaluate, []

    def evaluate(*args, **kwargs):
        if loop.progress.update == 6:
            calls.append(kwargs)
            if len(calls) == call:
                line.control._on_signal(signal.SIGTERM, None)
        return real(*args, **kwargs)

    loop.step.evaluate = evaluate
    old = signal.getsignal(signal.SIGTERM)
    try:
        with pytest.raises(Stopped) as stopped:
            loop.run(None)
    finally:
        signal.signal(signal.SIGTERM, old)
    assert stopped.value.reason.exit_code == 50
    assert len(calls) >= call
    for name in ("params", "ema", "exp_avg", "exp_avg_sq"):
        files = [rigged.paths.checkpoint(6) / f"{name}.safetensors" for rigged in (line, plain)]
        assert files[0].read_bytes() == files[1].read_bytes(), name
    average = (line.paths.checkpoint(6) / "ema.safetensors").read_bytes()
    assert (line.paths.checkpoint(6) / "params.safetensors").read_bytes()[100:] != average[100:]
