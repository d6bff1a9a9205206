"""Every fault that keeps a step from being captured is found by name, and by no other rule than its own."""

import random
import re
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.utils.checkpoint import checkpoint

from tests.unit.engine.toys import Faulty
from trainer_core.engine.backends import guard, host_use, meta_check
from trainer_core.engine.backends.eager_replay import EagerReplay
from trainer_core.engine.backends.guard import RULES, CaptureGuard
from trainer_core.engine.capture_check import CaptureReport, check_capture
from trainer_core.engine.flat import flat_state
from trainer_core.engine.step import Step, UpdateScalars
from trainer_core.kernels.dropout import dropout
from trainer_core.kernels.register import operator

ROWS, LENGTH = 2, 8
Fault = Callable[[Faulty, Tensor, Tensor], Tensor]
SCALAR = "aten._local_scalar_dense.default"


def check(fault: Fault, **settings) -> CaptureReport:
    with torch.device("meta"):
        toy = Faulty(fault)
    return check_capture(toy, toy.loss, micro=[(ROWS, LENGTH)], **settings)


def found(report: CaptureReport) -> set[tuple[str, str]]:
    return {(problem.rule, problem.op) for problem in report.problems}


def _backward(work: Callable[[Tensor], Tensor]) -> Fault:
    """A fault that only the backward pass has."""

    def fault(toy: Faulty, x: Tensor, ids: Tensor) -> Tensor:
        y = x * 1
        y.register_hook(work)
        return y

    return fault


def _drop_gradient(toy: Faulty, x: Tensor, ids: Tensor) -> Tensor:
    toy.table.grad = None
    return x


def _other_gradient(toy: Faulty, x: Tensor, ids: Tensor) -> Tensor:
    toy.table.grad = torch.zeros(16, 4, device=x.device)
    return x


def _keep(toy: Faulty, x: Tensor, ids: Tensor) -> Tensor:
    toy.kept.append(x.detach() * 2)
    return x


def _assert(toy: Faulty, x: Tensor, ids: Tensor) -> Tensor:
    raise AssertionError


def _swap(toy: Faulty, x: Tensor, ids: Tensor) -> Tensor:
    toy.average = toy.average * 0.9 + x.detach().mean()
    return x * toy.average


def _branch(toy: Faulty, x: Tensor, ids: Tensor) -> Tensor:
    return x * 2 if x.sum() > 0 else x


def _write(mask: Callable[[Tensor], Tensor], value: Callable[[Tensor], object]) -> Fault:
    def fault(toy: Faulty, x: Tensor, ids: Tensor) -> Tensor:
        y = x.clone()
        y[mask(ids)] = value(x)
        return y

    return fault


def _write_input(toy: Faulty, x: Tensor, ids: Tensor) -> Tensor:
    toy.targets.add_(1)
    return x


def _grow_input(toy: Faulty, x: Tensor, ids: Tensor) -> Tensor:
    toy.targets.untyped_storage().resize_(1 << 16)
    return x


def _count_on_device(toy: Faulty, x: Tensor, ids: Tensor) -> Tensor:
    toy.counter.add_(1)
    return x


def _write_parameter(toy: Faulty, x: Tensor, ids: Tensor) -> Tensor:
    toy.table.data.mul_(0.9)
    return x


def _replace_parameter(toy: Faulty, x: Tensor, ids: Tensor) -> Tensor:
    toy.table.data = toy.table.data.clone()
    return x


def _average(toy: Faulty, x: Tensor, ids: Tensor) -> Tensor:
    toy.mean.lerp_(x.detach().mean((0, 1)), 0.1)
    return x - toy.mean


def _count(toy: Faulty, x: Tensor, ids: Tensor) -> Tensor:
    toy.calls += 1
    return x * (1 / toy.calls)


def _more_each_time(toy: Faulty, x: Tensor, ids: Tensor) -> Tensor:
    toy.calls += 1
    for _ in range(toy.calls):
        x = x * 2
    return x


def _fewer_each_time(toy: Faulty, x: Tensor, ids: Tensor) -> Tensor:
    toy.calls += 1
    for _ in range(3 - toy.calls):
        x = x * 2
    return x


def _wider_each_time(toy: Faulty, x: Tensor, ids: Tensor) -> Tensor:
    toy.calls += 1
    return x + x.new_zeros(toy.calls, 1, 1).sum()


def _seed(toy: Faulty, x: Tensor, ids: Tensor) -> Tensor:
    torch.manual_seed(3)
    return x


def _skip_layers(toy: Faulty, x: Tensor, ids: Tensor) -> Tensor:
    return x if random.random() < 0.5 else x * 2


def _twice(x: Tensor) -> Tensor:
    return x * 2


def _attend(p: float) -> Fault:
    return lambda toy, x, ids: F.scaled_dot_product_attention(*[x[:, None]] * 3, dropout_p=p)[:, 0]


FAULTS: dict[str, tuple[Fault, str, str]] = {
    "item": (lambda toy, x, ids: x * x.sum().item(), "host-sync", SCALAR),
    "item of integers": (lambda toy, x, ids: x * int(ids.sum()), "host-sync", SCALAR),
    "item of bfloat16": (lambda toy, x, ids: x * float(x.detach().bfloat16().sum()), "host-sync", SCALAR),
    "item in backward": (_backward(lambda g: g * g.sum().item()), "host-sync", SCALAR),
    "branch": (_branch, "host-sync", SCALAR),
    "slice": (lambda toy, x, ids: x[:, : ids.sum()], "host-sync", SCALAR),
    "one hot": (lambda toy, x, ids: x * F.one_hot(ids).sum(), "host-sync", SCALAR),
    "equal": (lambda toy, x, ids: x * torch.equal(x, x), "host-sync", "aten.equal.default"),
    "close": (lambda toy, x, ids: x * torch.allclose(x, x), "host-sync", "aten.allclose.default"),
    "list": (lambda toy, x, ids: x * x.sum(-1).tolist()[0][0], "host-sync", "tolist"),
    "array": (lambda toy, x, ids: x * float(x.detach().numpy()[0, 0, 0]), "host-sync", "numpy"),
    "array of": (lambda toy, x, ids: x * np.asarray(x.detach()).size, "host-sync", "__array__"),
    "printed": (lambda toy, x, ids: x * len(str(x)), "host-sync", "__repr__"),
    "formatted": (lambda toy, x, ids: x * len(f"{x.sum():.2f}"), "host-sync", "__format__"),
    "inverse": (
        lambda toy, x, ids: x * torch.linalg.inv(x[:, :4]).sum(),
        "host-sync",
        "aten._linalg_check_errors.default",
    ),
    "renormalised": (
        lambda toy, x, ids: x * F.embedding(ids, toy.rows(), max_norm=1.0),
        "host-sync",
        "aten.embedding_renorm_.default",
    ),
    "nonzero": (lambda toy, x, ids: x.flatten()[ids.nonzero()], "dynamic-shape", "aten.nonzero.default"),
    "where": (lambda toy, x, ids: x[torch.where(ids > 3)], "dynamic-shape", "aten.nonzero.default"),
    "mask": (lambda toy, x, ids: x[ids > 3], "dynamic-shape", "aten.index.Tensor"),
    "mask of all": (lambda toy, x, ids: x[x > 0], "dynamic-shape", "aten.index.Tensor"),
    "mask of bytes": (lambda toy, x, ids: x[(ids > 3).byte()], "dynamic-shape", "aten.index.Tensor"),
    "mask behind": (lambda toy, x, ids: x[:, ids[0] > 3], "dynamic-shape", "aten.index.Tensor"),
    "mask in backward": (_backward(lambda g: g + g[g > 0].sum()), "dynamic-shape", "aten.index.Tensor"),
    "mask written": (
        _write(lambda ids: ids > 3, lambda x: x.detach()[0, 0]),
        "dynamic-shape",
        "aten.index_put_.default",
    ),
    "selected": (lambda toy, x, ids: x.masked_select(x > 0), "dynamic-shape", "aten.masked_select.default"),
    "unique": (lambda toy, x, ids: x * ids.unique().numel(), "dynamic-shape", "aten._unique2.default"),
    "repeated": (
        lambda toy, x, ids: x.flatten(0, 1).repeat_interleave(ids.flatten(), 0),
        "dynamic-shape",
        "aten.repeat_interleave.Tensor",
    ),
    "counted": (
        lambda toy, x, ids: x * torch.bincount(ids.flatten()).sum(),
        "dynamic-shape",
        "aten.bincount.default",
    ),
    "constant": (
        lambda toy, x, ids: x * torch.tensor([1.0, 2.0, 3.0, 4.0], device="meta"),
        "host-constant",
        "tensor",
    ),
    "new constant": (lambda toy, x, ids: x * x.new_tensor([1.0] * 4), "host-constant", "new_tensor"),
    "constant index": (lambda toy, x, ids: x[:, [0, 2]], "host-constant", "__getitem__"),
    "range as index": (lambda toy, x, ids: x[:, range(2)], "host-constant", "__getitem__"),
    "constant places": (_write(lambda ids: [0, 1], lambda x: x[0]), "host-constant", "__setitem__"),
    "to the host": (lambda toy, x, ids: x.cpu(), "wrong-device", "aten._to_copy.default"),
    "not waiting": (
        lambda toy, x, ids: x.to("cpu", non_blocking=True),
        "wrong-device",
        "aten._to_copy.default",
    ),
    "from the host": (lambda toy, x, ids: x * toy.cpu.sum(), "wrong-device", "aten.mul.Tensor"),
    "copied from the host": (
        lambda toy, x, ids: x + torch.empty_like(x[0, 0]).copy_(toy.cpu),
        "wrong-device",
        "aten.copy_.default",
    ),
    "made on the host": (
        lambda toy, x, ids: x * torch.zeros(4, device="cpu").to("meta"),
        "wrong-device",
        "aten.zeros.default",
    ),
    "array of the host": (
        lambda toy, x, ids: x + torch.from_numpy(np.ones(4, dtype=np.float32)).to("meta"),
        "wrong-device",
        "aten.lift_fresh.default",
    ),
    "dropout": (lambda toy, x, ids: F.dropout(x, 0.1), "random", "aten.bernoulli_.float"),
    "dropout module": (lambda toy, x, ids: nn.Dropout(0.5)(x.bfloat16()), "random", "aten.bernoulli_.float"),
    "dropout in attention": (_attend(0.1), "random", "aten.bernoulli_.float"),
    "noise": (lambda toy, x, ids: x + torch.randn_like(x), "random", "aten.randn_like.default"),
    "noise in backward": (_backward(lambda g: g * torch.rand_like(g)), "random", "aten.rand_like.default"),
    "uniform": (lambda toy, x, ids: x + torch.rand(4, device="meta"), "random", "aten.rand.default"),
    "integers": (
        lambda toy, x, ids: x + torch.randint(9, (4,), device="meta"),
        "random",
        "aten.randint.default",
    ),
    "order": (lambda toy, x, ids: x[:, torch.randperm(8, device="meta")], "random", "aten.randperm.default"),
    "numbers of Python": (lambda toy, x, ids: x * random.random(), "random", "random"),
    "numbers of numpy": (lambda toy, x, ids: x * float(np.random.rand()), "random", "numpy.random"),
    "skipped layers": (_skip_layers, "random", "random"),
    "seeded": (_seed, "random", "manual_seed"),
    "recomputed with its generator": (
        lambda toy, x, ids: checkpoint(_twice, x, use_reentrant=False),
        "random",
        "get_rng_state",
    ),
    "input written": (_write_input, "static-written", "aten.add_.Tensor"),
    "input grown": (_grow_input, "static-written", "resize"),
    "parameter written": (_write_parameter, "static-written", "aten.mul_.Tensor"),
    "counter written": (_count_on_device, "lasting-write", "aten.add_.Tensor"),
    "buffer written": (_average, "lasting-write", "aten.lerp_.Scalar"),
    "rate from Python": (_count, "changing", "aten.mul.Tensor"),
    "more each time": (_more_each_time, "changing", "aten.mul.Tensor"),
    "fewer each time": (_fewer_each_time, "changing", "aten.pow.Tensor_Scalar"),
    "wider each time": (_wider_each_time, "changing", "aten.new_zeros.default"),
    "gradient": (_drop_gradient, "left-flat-buffer", "the gradient of table"),
    "another gradient": (_other_gradient, "left-flat-buffer", "the gradient of table"),
    "parameter": (_replace_parameter, "left-flat-buffer", "table"),
    "left behind": (_keep, "left-behind", "aten.mul.Tensor"),
    "value of Python": (_swap, "left-behind", "aten.add.Tensor"),
    "no such kernel": (lambda toy, x, ids: x @ torch.ones(3, 3, device="meta"), "failed", "RuntimeError"),
    "an assertion without words": (_assert, "failed", "AssertionError"),
}


@pytest.mark.parametrize("fault", FAULTS, ids=str)
def test_a_fault_is_named(fault: str) -> None:
    make, rule, op = FAULTS[fault]
    report = found(check(make))
    assert (rule, op) in report
    assert {name for name, _ in report} == {rule}


def _every_rule() -> set[str]:
    """Rules of operator calls, and the names that the sources report by themselves."""
    sources = [Path(module.__file__).read_text() for module in (guard, host_use, meta_check)]
    return {*RULES, *re.findall(r'report\(\s*"([\w-]+)"', "".join(sources))}


@pytest.mark.parametrize("rule", sorted(_every_rule()))
def test_no_rule_covers_for_another(rule: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Without a rule the faults planted for it are not named: the test above fails."""
    report = CaptureGuard.report

    def without(self: CaptureGuard, name: str, op: str, detail: str) -> None:
        if name != rule:
            report(self, name, op, detail)

    monkeypatch.setattr(CaptureGuard, "report", without)
    monkeypatch.delitem(RULES, rule, raising=False)
    planted = [(make, op) for make, named, op in FAULTS.values() if named == rule]
    assert planted, f"no fault is planted for the rule {rule}"
    for make, op in planted[:3]:
        assert (rule, op) not in found(check(make))


def test_a_problem_says_where_it_comes_from() -> None:
    (problem,) = check(_branch).problems
    assert problem.part == "micro 2 9"
    assert "test_capture_faults.py" in str(problem) and "_branch" in str(problem)
    assert str(problem).startswith("micro 2 9: host-sync: aten._local_scalar_dense.default: ")
    (problem,) = check(_skip_layers).problems
    assert "generator of the host" in str(problem)
    (problem,) = check(_count).problems
    assert "test_capture_faults.py" in str(problem) and "_count" in str(problem)


def test_what_follows_a_problem_is_found_too() -> None:
    def two(toy: Faulty, x: Tensor, ids: Tensor) -> Tensor:
        return torch.randn_like(x) * x.sum().item()

    assert {rule for rule, _ in found(check(two))} == {"host-sync", "random"}


def test_faults_of_evaluation_and_optimizer_are_found_in_their_parts() -> None:
    def evaluation_only(toy: Faulty, x: Tensor, ids: Tensor) -> Tensor:
        return x if torch.is_grad_enabled() else x * x.sum().item()

    report = check(evaluation_only, evaluations=[(1, LENGTH)])
    assert [problem.part for problem in report.problems] == ["evaluate 1 9"]

    def reads(buffers, c) -> None:
        buffers.P.sub_(buffers.G * float(c.lr))

    report = check(lambda toy, x, ids: x, optimizer=reads)
    assert [problem.part for problem in report.problems] == ["update"]

    times = iter((2, 1))

    def less_each_time(buffers, c) -> None:
        for _ in range(next(times)):
            buffers.P.sub_(buffers.G)

    (problem,) = check(lambda toy, x, ids: x, optimizer=less_each_time).problems
    assert (problem.part, problem.rule, problem.op) == ("update", "changing", "end")


ALLOWED: dict[str, Fault] = {
    "constants": lambda toy, x, ids: x * 2.0 + torch.arange(4, device=x.device) + torch.full_like(x, 0.5),
    "integer index": lambda toy, x, ids: x.flatten(0, 1)[ids.flatten()],
    "slices": lambda toy, x, ids: x[:, 1:, None, ..., -1],
    "where": lambda toy, x, ids: torch.where(ids[..., None] > 3, x, 0.0),
    "filled": lambda toy, x, ids: x.masked_fill(ids[..., None] > 3, 0.0),
    "counted dropout": lambda toy, x, ids: dropout(x, toy.counter, 0, 0.1),
    "counted dropout of bfloat16": lambda toy, x, ids: dropout(x.bfloat16(), toy.counter, 1, 0.5),
    "counted dropout recomputed": lambda toy, x, ids: checkpoint(
        lambda y: dropout(y * 2, toy.counter, 0, 0.1), x, use_reentrant=False, preserve_rng_state=False
    ),
    "nothing of the host": lambda toy, x, ids: x + torch.empty(0, 4, device="cpu").sum(0).numel(),
    "no dropout": lambda toy, x, ids: F.dropout(F.dropout(x, 0.0), 0.1, training=False),
    "attention without dropout": _attend(0.0),
    "written in place": lambda toy, x, ids: (x * 2).mul_(3).clamp_(max=1.0),
    "sorted": lambda toy, x, ids: x.sort(1).values * x.topk(2).values.sum(),
}


@pytest.mark.parametrize("allowed", ALLOWED, ids=str)
def test_what_a_graph_can_replay_has_no_problem(allowed: str) -> None:
    assert check(ALLOWED[allowed], evaluations=[(1, LENGTH)]).problems == ()


def test_the_check_leaves_generators_and_torch_as_they_were() -> None:
    before = torch.get_rng_state, random.getstate(), torch.random.manual_seed
    check(lambda toy, x, ids: F.dropout(x, 0.1))
    assert before == (torch.get_rng_state, random.getstate(), torch.random.manual_seed)


def test_the_inside_of_our_operators_is_watched() -> None:
    @operator("test_draws", fake=torch.empty_like, composed=True)
    def draws(x: Tensor) -> Tensor:
        return x * torch.rand_like(x)

    report = found(check(lambda toy, x, ids: x * draws(x.detach())))
    assert report == {("random", "aten.rand_like.default")}


def test_an_update_runs_where_the_check_passed() -> None:
    """The checked toy is one that trains."""
    toy = Faulty(ALLOWED["counted dropout"])
    step = Step(model_loss=toy.loss, state=flat_state(toy), backend=EagerReplay(strict=True))
    rows = torch.ones(ROWS, LENGTH + 1, dtype=torch.int64)
    assert not step.update([rows], UpdateScalars(lr=1e-2, weight_decay=0.0)).skipped
