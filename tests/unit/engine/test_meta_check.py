"""The trace of a step: every preset passes, equal traces have equal fingerprints, memory changes nothing."""

from collections.abc import Mapping
from typing import Any

import pytest
import torch

from trainer_core.engine.backends.guard import CaptureGuard
from trainer_core.engine.backends.meta_check import MetaCheck
from trainer_core.engine.capture_check import CaptureReport, check_capture
from trainer_core.engine.flat import flat_state
from trainer_core.engine.layout import Layout
from trainer_core.engine.step import Step
from trainer_core.kernels.target import target
from trainer_core.models.families import FAMILIES
from trainer_core.models.presets import PRESETS
from trainer_core.models.registry import build

PRECISIONS = {"fp32": {}, "bf16": {"shadow": torch.bfloat16, "ema": True}}
"""What the flat state of a precision has."""

STATE_BYTES = {"fp32": 16, "bf16": 22}
"""Of an element: P, G, M, V; with the average and the shadow."""


def _cases() -> list[tuple[str, str, str, str]]:
    """Every preset with every mode of its family in bf16, on both devices; on a CPU the first one in fp32."""
    modes = {name: FAMILIES[preset.family].recomputation for name, preset in PRESETS.items()}
    return [
        *((name, ac, "bf16", device) for name in PRESETS for ac in modes[name] for device in ("cpu", "cuda")),
        *((name, modes[name][0], "fp32", "cpu") for name in PRESETS),
    ]


def _few_blocks(config: Mapping[str, Any]) -> dict[str, int]:
    """Two blocks are enough, for they are alike; of NeuronSpark one of each kind."""
    return {"layers": 2, "interval": 2} if "interval" in config else {"layers": 2}


@pytest.mark.parametrize(("name", "ac", "precision", "device"), _cases())
def test_every_preset_can_be_captured(name: str, ac: str, precision: str, device: str) -> None:
    preset = PRESETS[name]
    with torch.device("meta"):
        model = build(name, _few_blocks(preset.config), preset.vocab_size, 0)
    shape = (2, min(preset.training["row_length"], 96))
    report = check_capture(
        model,
        lambda ids, targets: model.loss(ids, targets, ac),
        micro=[shape],
        evaluations=[shape],
        device=device,
        **PRECISIONS[precision],
    )
    assert report.problems == ()
    average = ["average"] if "ema" in PRECISIONS[precision] else []
    assert [p.part.split()[0] for p in report.parts] == ["micro", "norm", "update", "evaluate", *average]
    layout = Layout.build(model.param_groups(), model.layer_label)
    assert report.state_bytes == STATE_BYTES[precision] * layout.total
    assert report.peak_bytes > report.state_bytes
    assert report.num_ops == sum(part.num_ops for part in report.parts) > 400


@pytest.mark.parametrize("ac", ["none", "full"])
def test_dropout_is_in_the_trace_and_is_no_problem(ac: str) -> None:
    """Of the embeddings; of each block its two parts and its weights of attention, backwards those twice."""
    with torch.device("meta"):
        model = build("gpt2-70m", {"layers": 2}, 50_257, 0)
        model.dropout_counter = torch.zeros(3, dtype=torch.int64)
        ids = torch.zeros(2, 97, dtype=torch.int64)
    guard = CaptureGuard("micro", [ids, model.dropout_counter])
    with guard:
        model.loss(ids[:, :-1], ids[:, 1:], ac)[0].backward()
    assert not guard.problems
    forward, backward, again = 1 + 2 * 3, 1 + 2 * 4, 2 * 3 * (ac == "full")
    assert sum(b"nstrain.dropout" in call for call in guard.calls) == forward + backward + again


@pytest.mark.parametrize(("name", "config"), [("llama-1p3b", {}), ("ns-2b", {"layers": 8})])
def test_deep_models(name: str, config: dict[str, int]) -> None:
    """All of the deepest Llama; of NeuronSpark two hippocampal layers, which share a table."""
    with torch.device("meta"):
        model = build(name, config, PRESETS[name].vocab_size, 0)
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


def test_a_gpu_launches_kernels_where_a_cpu_has_many_operators() -> None:
    """What lies inside a kernel is neither a call of the graph nor memory of its pool."""

    def check(device: str, length: int = 200):
        with torch.device("meta"):
            model = build("nano-cpu", {"layers": 4}, 64, 0)
        return check_capture(
            model,
            lambda ids, targets: model.loss(ids, targets),
            micro=[(2, length)],
            shadow=torch.bfloat16,
            device=device,
        )

    cpu, gpu = check("cpu"), check("cuda")
    assert not cpu.problems and not gpu.problems
    assert gpu.num_ops < 0.6 * cpu.num_ops
    assert check("cuda", 400).num_ops == gpu.num_ops < check("cpu", 400).num_ops
    assert gpu.parts[0].peak_bytes < cpu.parts[0].peak_bytes
    assert target(torch.empty(1, device="meta")) == target(torch.empty(1)) == "cpu"
