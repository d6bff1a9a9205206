"""The trace of a step: every preset passes, equal traces have equal fingerprints, memory changes nothing."""

import pytest
import torch

from trainer_core.engine.backends.guard import CaptureGuard
from trainer_core.engine.backends.meta_check import MetaCheck
from trainer_core.engine.capture_check import CaptureReport, check_capture
from trainer_core.engine.flat import flat_state
from trainer_core.engine.layout import Layout
from trainer_core.engine.step import Step
from trainer_core.models.families import FAMILIES
from trainer_core.models.presets import PRESETS
from trainer_core.models.registry import build

PRECISIONS = {"fp32": {}, "bf16": {"shadow": torch.bfloat16, "ema": True}}
"""What the flat state of a precision has."""

STATE_BYTES = {"fp32": 16, "bf16": 22}
"""Of an element: P, G, M, V; with the average and the shadow."""


@pytest.mark.parametrize("precision", PRECISIONS)
@pytest.mark.parametrize(
    ("name", "ac"), [(name, ac) for name in PRESETS for ac in FAMILIES[PRESETS[name].family].recomputation]
)
def test_every_preset_can_be_captured(name: str, ac: str, precision: str) -> None:
    """With at most 3 blocks: they are alike, and the trace of 24 takes seconds."""
    preset = PRESETS[name]
    layers = min(3, preset.config["layers"])
    with torch.device("meta"):
        model = build(name, {"layers": layers}, preset.vocab_size, 0)
    shape = (2, min(preset.training["row_length"], 128))
    report = check_capture(
        model,
        lambda ids, targets: model.loss(ids, targets, ac),
        micro=[shape],
        evaluations=[shape],
        **PRECISIONS[precision],
    )
    assert report.problems == ()
    average = ["average"] if "ema" in PRECISIONS[precision] else []
    assert [p.part.split()[0] for p in report.parts] == ["micro", "norm", "update", "evaluate", *average]
    layout = Layout.build(model.param_groups(), model.layer_label)
    assert report.state_bytes == STATE_BYTES[precision] * layout.total
    assert report.peak_bytes > report.state_bytes
    assert report.num_ops == sum(part.num_ops for part in report.parts) > 500


def test_the_deepest_preset_whole() -> None:
    name = max(PRESETS, key=lambda preset: PRESETS[preset].config["layers"])
    with torch.device("meta"):
        model = build(name, None, PRESETS[name].vocab_size, 0)
    report = check_capture(model, lambda ids, t: model.loss(ids, t, "full"), micro=[(1, 64)])
    assert report.problems == ()


def test_a_fingerprint_is_of_operations_and_shapes() -> None:
    def check(rows: int, ac: str = "none") -> CaptureReport:
        with torch.device("meta"):
            model = build("llama-nano-cpu", None, 64, 0)
        return check_capture(model, lambda ids, t: model.loss(ids, t, ac), micro=[(rows, 16)])

    reports = [check(2), check(2), check(3), check(2, "full")]
    assert reports[0].fingerprint == reports[1].fingerprint
    assert len({report.fingerprint for report in reports}) == 3
    assert reports[0].num_ops == reports[1].num_ops < reports[3].num_ops


def test_memory_of_calls_makes_the_same_trace() -> None:
    """A trace in which every call runs is the trace in which known calls come from memory."""
    reports = []
    for remember in (True, False):
        with torch.device("meta"):
            model = build("llama-nano-cpu", None, 64, 0)
            ids = torch.zeros(2, 17, dtype=torch.int64)
        guard = CaptureGuard("micro", [ids])
        if not remember:
            guard._memory._shapes = _Forgetful()
        with guard:
            model.loss(ids[:, :-1], ids[:, 1:], "full")[0].backward()
        reports.append((guard.fingerprint, len(guard.calls), guard.storages.peak_bytes))
    assert reports[0] == reports[1]


class _Forgetful(dict):
    def __setitem__(self, key, value) -> None:
        """Keeps nothing."""


def test_the_state_must_be_on_meta_and_a_replay_must_be_of_a_captured_part() -> None:
    model = build("llama-nano-cpu", None, 64, 0)
    with pytest.raises(AssertionError):
        MetaCheck(flat_state(model))
    with torch.device("meta"):
        model = build("llama-nano-cpu", None, 64, 0)
    state = flat_state(model, "meta")
    backend = MetaCheck(state)
    step = Step(model_loss=model.loss, state=state, backend=backend)
    step.prepare([(2, 16)])
    assert set(backend.reports) == {("micro", 2, 17), "norm", "update"}
    backend.replay("norm")
    step.release()
    with pytest.raises(AssertionError):
        backend.replay("norm")
