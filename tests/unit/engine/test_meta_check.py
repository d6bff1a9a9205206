"""Every fault that keeps a step from being captured is named; every preset has none."""

from collections.abc import Callable

import pytest
import torch
from torch import Tensor, nn

from trainer_core.engine.backends.eager_replay import EagerReplay
from trainer_core.engine.backends.guard import RULES, CaptureGuard
from trainer_core.engine.backends.meta_check import MetaCheck
from trainer_core.engine.capture_check import CaptureReport, check_capture
from trainer_core.engine.flat import flat_state
from trainer_core.engine.layout import ParamGroup
from trainer_core.engine.step import Step, UpdateScalars
from trainer_core.kernels.dropout import dropout
from trainer_core.kernels.register import operator
from trainer_core.models.presets import PRESETS
from trainer_core.models.registry import build

ROWS, LENGTH = 2, 8


class Toy(nn.Module):
    """An embedding and a fault between it and the loss."""

    def __init__(self, fault: Callable[["Toy", Tensor, Tensor], Tensor]) -> None:
        super().__init__()
        self.table = nn.Parameter(torch.ones(16, 4))
        self.fault = fault
        self.kept: list[Tensor] = []
        self.counter = torch.zeros(3, dtype=torch.int64)
        self.cpu = torch.ones(4, device="cpu")

    def loss(self, ids: Tensor, targets: Tensor) -> tuple[Tensor, Tensor]:
        self.targets = targets
        x = self.fault(self, self.table[ids], ids)
        return x.square().sum(), torch.ones((), device=ids.device).sum()

    def param_groups(self) -> list[ParamGroup]:
        return [ParamGroup(name="all", decay=True, lr_mult=1.0, params=[("table", self.table)])]

    def layer_label(self, name: str) -> str:
        return name


def _check(fault: Callable[[Toy, Tensor, Tensor], Tensor], **settings) -> CaptureReport:
    with torch.device("meta"):
        toy = Toy(fault)
    return check_capture(toy, toy.loss, micro=[(ROWS, LENGTH)], **settings)


def _found(report: CaptureReport) -> set[tuple[str, str]]:
    return {(problem.rule, problem.op) for problem in report.problems}


def _drop_gradient(toy: Toy, x: Tensor, ids: Tensor) -> Tensor:
    toy.table.grad = None
    return x


def _keep(toy: Toy, x: Tensor, ids: Tensor) -> Tensor:
    toy.kept.append(x.detach() * 2)
    return x


def _branch(toy: Toy, x: Tensor, ids: Tensor) -> Tensor:
    return x * 2 if x.sum() > 0 else x


def _write_mask(toy: Toy, x: Tensor, ids: Tensor) -> Tensor:
    y = x.clone()
    y[ids > 3] = x.detach()[0, 0]
    return y


def _write_input(toy: Toy, x: Tensor, ids: Tensor) -> Tensor:
    toy.targets.add_(1)
    return x


def _grow_input(toy: Toy, x: Tensor, ids: Tensor) -> Tensor:
    toy.targets.untyped_storage().resize_(1 << 16)
    return x


def _replace_parameter(toy: Toy, x: Tensor, ids: Tensor) -> Tensor:
    toy.table.data = toy.table.data.clone()
    return x


FAULTS = {
    "item": (lambda toy, x, ids: x * x.sum().item(), "host-sync", "aten._local_scalar_dense.default"),
    "branch": (_branch, "host-sync", "aten._local_scalar_dense.default"),
    "equal": (lambda toy, x, ids: x * torch.equal(x, x), "host-sync", "aten.equal.default"),
    "nonzero": (lambda toy, x, ids: x.flatten()[ids.nonzero()], "dynamic-shape", "aten.nonzero.default"),
    "mask": (lambda toy, x, ids: x[ids > 3], "dynamic-shape", "aten.index.Tensor"),
    "mask written": (_write_mask, "dynamic-shape", "aten.index_put_.default"),
    "unique": (lambda toy, x, ids: x * ids.unique().numel(), "dynamic-shape", "aten._unique2.default"),
    "constant": (
        lambda toy, x, ids: x * torch.tensor([1.0, 2.0, 3.0, 4.0], device="meta"),
        "host-constant",
        "tensor",
    ),
    "to the host": (lambda toy, x, ids: x.cpu(), "wrong-device", "aten._to_copy.default"),
    "from the host": (lambda toy, x, ids: x * toy.cpu.sum(), "wrong-device", "aten.mul.Tensor"),
    "made on the host": (
        lambda toy, x, ids: x * torch.zeros(4, device="cpu").to("meta"),
        "wrong-device",
        "aten.zeros.default",
    ),
    "dropout": (lambda toy, x, ids: nn.functional.dropout(x, 0.1), "random", "aten.bernoulli_.float"),
    "noise": (lambda toy, x, ids: x + torch.randn_like(x), "random", "aten.randn_like.default"),
    "input written": (_write_input, "static-written", "aten.add_.Tensor"),
    "input grown": (_grow_input, "static-written", "resize"),
    "gradient": (_drop_gradient, "left-flat-buffer", "the gradient of table"),
    "parameter": (_replace_parameter, "left-flat-buffer", "table"),
    "left behind": (_keep, "left-behind", "aten.mul.Tensor"),
    "no such kernel": (lambda toy, x, ids: x @ torch.ones(3, 3, device="meta"), "failed", "RuntimeError"),
}


@pytest.mark.parametrize("fault", FAULTS, ids=str)
def test_a_fault_is_named(fault: str) -> None:
    make, rule, op = FAULTS[fault]
    found = _found(_check(make))
    assert (rule, op) in found
    assert {name for name, _ in found} == {rule}


@pytest.mark.parametrize("rule", RULES)
def test_no_rule_covers_for_another(rule: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Without a rule the faults planted for it are not named."""
    monkeypatch.delitem(RULES, rule)
    planted = [make for make, named, _ in FAULTS.values() if named == rule]
    assert planted
    assert all(rule not in {r for r, op in _found(_check(make)) if op != "resize"} for make in planted)


def test_a_problem_says_where_it_comes_from() -> None:
    (problem,) = _check(_branch).problems
    assert problem.part == "micro 2 9"
    assert "test_meta_check.py" in str(problem) and "_branch" in str(problem)
    assert str(problem).startswith("micro 2 9: host-sync: aten._local_scalar_dense.default: ")


def test_what_follows_a_problem_is_found_too() -> None:
    def two(toy: Toy, x: Tensor, ids: Tensor) -> Tensor:
        return torch.randn_like(x) * x.sum().item()

    assert {rule for rule, _ in _found(_check(two))} == {"host-sync", "random"}


def test_faults_of_evaluation_and_optimizer_are_found_in_their_parts() -> None:
    def training_only(toy: Toy, x: Tensor, ids: Tensor) -> Tensor:
        return x if torch.is_grad_enabled() else x * x.sum().item()

    report = _check(training_only, evaluations=[(1, LENGTH)])
    assert [problem.part for problem in report.problems] == ["evaluate 1 9"]

    def reads(buffers, c) -> None:
        buffers.P.sub_(buffers.G * float(c.lr))

    report = _check(lambda toy, x, ids: x, optimizer=reads)
    assert [problem.part for problem in report.problems] == ["update"]


@pytest.mark.parametrize(
    "allowed",
    [
        lambda toy, x, ids: x * 2.0 + torch.arange(4, device=x.device),
        lambda toy, x, ids: x.flatten(0, 1)[ids.flatten()],
        lambda toy, x, ids: torch.where(ids[..., None] > 3, x, 0.0),
        lambda toy, x, ids: dropout(x, toy.counter, 0, 0.1),
    ],
    ids=["constants", "integer index", "where", "counted dropout"],
)
def test_what_a_graph_can_replay_has_no_problem(allowed) -> None:
    assert _check(allowed).problems == ()


def test_the_inside_of_our_operators_is_watched() -> None:
    @operator("test_draws", fake=torch.empty_like, composed=True)
    def draws(x: Tensor) -> Tensor:
        return x * torch.rand_like(x)

    found = _found(_check(lambda toy, x, ids: x * draws(x.detach())))
    assert found == {("random", "aten.rand_like.default")}


@pytest.mark.parametrize("ac", ["none", "full"])
@pytest.mark.parametrize("name", sorted(PRESETS))
def test_every_preset_can_be_captured(name: str, ac: str) -> None:
    preset = PRESETS[name]
    with torch.device("meta"):
        model = build(name, None, preset.vocab_size, 0)
    shape = (2, min(preset.training["row_length"], 128))
    report = check_capture(
        model, lambda ids, targets: model.loss(ids, targets, ac), micro=[shape], evaluations=[shape]
    )
    assert report.problems == ()
    assert [part.part.split()[0] for part in report.parts] == ["micro", "norm", "update", "evaluate"]
    assert report.state_bytes == 16 * flat_state(model, "meta").layout.total
    assert report.peak_bytes > report.state_bytes
    assert report.num_ops == sum(part.num_ops for part in report.parts) > 500


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
        reports.append((guard.fingerprint, guard.num_ops, guard.storages.peak_bytes))
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


def test_an_update_runs_where_the_check_passed() -> None:
    """The checked toy is one that trains."""
    toy = Toy(lambda toy, x, ids: dropout(x, toy.counter, 0, 0.1))
    step = Step(model_loss=toy.loss, state=flat_state(toy), backend=EagerReplay(strict=True))
    rows = torch.ones(ROWS, LENGTH + 1, dtype=torch.int64)
    assert not step.update([rows], UpdateScalars(lr=1e-2, weight_decay=0.0)).skipped
