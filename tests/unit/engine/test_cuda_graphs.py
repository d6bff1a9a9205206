"""Order of a GPU's calls, captures that fail, replays that see every new number: on a GPU that records."""

from contextlib import contextmanager

import pytest
import torch

from tests.tools.simulated_gpu import GIB, SimulatedGpu
from tests.unit.engine.fake_cuda import FakeCuda
from tests.unit.engine.toys import bits, nano_step, token_rows
from trainer_core.engine.backends.eager_replay import EagerReplay
from trainer_core.engine.backends.protocol import Part
from trainer_core.engine.step import UpdateScalars
from trainer_core.errors import Refused
from trainer_core.kernels import adamw

HOLD = ["load", "give back", "open pool", "pool on", "pool off", "forget peak"]
CAPTURE = ["pool on", "run", "run", "pool off", "synchronize", "begin", "run", "end"]


def _part(key, log, work=lambda: None) -> Part:
    def run() -> None:
        log.append("run")
        work()

    @contextmanager
    def rehearsal():
        yield

    return Part(key=key, run=run, constants=(), rehearsal=rehearsal)


def test_order_of_calls_from_the_first_capture_to_the_teardown() -> None:
    cuda = FakeCuda()
    backend = cuda.graphs()
    backend.release()
    assert cuda.log == []
    backend.capture(_part("a", cuda.log))
    backend.capture(_part("b", cuda.log))
    assert cuda.log == [*HOLD, *CAPTURE, *CAPTURE]
    assert cuda.users == 3
    cuda.log.clear()
    backend.replay("a")
    backend.release()
    assert cuda.log == ["replay", "synchronize", "reset", "reset", "close pool", "give back"]
    assert cuda.users == 0
    cuda.log.clear()
    backend.capture(_part("a", cuda.log))
    assert cuda.log == [*HOLD, *CAPTURE]
    with pytest.raises(AssertionError, match="recorded already"):
        backend.capture(_part("a", cuda.log))
    with pytest.raises(KeyError):
        backend.replay("b")


def test_backward_passes_stay_in_the_thread_whose_memory_comes_from_the_pool() -> None:
    seen = []
    FakeCuda().graphs().capture(_part("a", [], lambda: seen.append(torch._C._is_multithreading_enabled())))
    assert seen == [False, False, False]
    assert torch._C._is_multithreading_enabled()


def _raises() -> None:
    raise ValueError("planted")


def _reads() -> None:
    torch.ones(1).item()


def _breaks(cuda: FakeCuda):
    def work() -> None:
        cuda.breaks_at_end = True

    return work


@pytest.mark.parametrize("unwinds", [True, False])
@pytest.mark.parametrize("fault", ["raises", "reads", "breaks"])
def test_a_failed_capture_gives_up_its_pool_exactly_once(fault: str, unwinds: bool) -> None:
    """Case H01: 20 failures hold what one failure holds."""
    cuda = FakeCuda(unwinds=unwinds)
    backend = cuda.graphs()
    work = {"raises": _raises, "reads": _reads, "breaks": _breaks(cuda)}[fault]
    for other_graphs in (0, 1):
        if other_graphs:
            cuda.breaks_at_end = False
            backend.capture(_part("good", cuda.log))
        for _ in range(20):
            cuda.log.clear()
            calls = 0

            def third_run(work=work) -> None:
                nonlocal calls
                calls += 1
                if calls == 3:
                    work()

            with pytest.raises((ValueError, RuntimeError)) as raised:
                backend.capture(_part("bad", [], third_run))
            assert ("planted" in str(raised.value)) == (fault == "raises")
            assert cuda.log.count("abandon") == 1
            assert cuda.log.count("drop user") == (0 if unwinds or fault == "raises" else 1)
            assert cuda.log.count("close pool") == 1 - other_graphs
            assert cuda.users == 2 * other_graphs
    cuda.breaks_at_end = False
    backend.capture(_part("bad", cuda.log))
    backend.release()
    assert cuda.users == 0


def test_a_rehearsal_that_fails_holds_nothing() -> None:
    cuda = FakeCuda()
    with pytest.raises(ValueError, match="planted"):
        cuda.graphs().capture(_part("bad", cuda.log, _raises))
    assert cuda.log == [*HOLD, "pool on", "run", "pool off", "synchronize", "close pool", "give back"]
    assert cuda.users == 0


def test_a_part_that_does_not_fit_is_refused_and_gives_everything_back() -> None:
    gpu = SimulatedGpu()
    other = gpu.other_process(41, 2 * GIB, name="jupyter")
    backend = FakeCuda(gpu=gpu).graphs()

    def too_much() -> None:
        held = gpu.allocate(0, 8 * GIB)
        assert held is not gpu.allocate(0, 5 * GIB)

    for other_graphs in (0, 1):
        if other_graphs:
            backend.capture(_part("good", gpu.log, lambda: gpu.allocate(0, 9 * GIB)))
        with pytest.raises(Refused) as raised:
            backend.capture(_part(("micro", 8, 4097), [], too_much))
        assert "too little memory for the part ('micro', 8, 4097): 10.0 GiB are held" in str(raised.value)
        assert "process 41 (jupyter) holds 2.0 GiB. Train with fewer rows" in str(raised.value)
        assert isinstance(raised.value.__cause__, torch.OutOfMemoryError)
        assert gpu.memory(0).free == (4 if other_graphs else 14) * GIB
    backend.replay("good")
    backend.release()
    assert gpu.memory(0).free == 14 * GIB
    del other


def test_captures_of_all_lengths_share_the_memory_of_one_arena() -> None:
    gpu = SimulatedGpu()
    backend = FakeCuda(gpu=gpu).graphs()
    for length in (1, 3, 7, 10, 5):
        backend.capture(_part(length, gpu.log, lambda length=length: gpu.allocate(0, length * GIB)))
    assert gpu.held == 12 * GIB and not gpu.refused
    backend.release()
    assert gpu.memory(0).free == 16 * GIB


def _scalars(update: int) -> UpdateScalars:
    """Every number changes from update to update."""
    return UpdateScalars(
        lr=1e-2 * (1 + update % 7),
        weight_decay=0.1 + 0.01 * update,
        clip=0.2 + 0.1 * (update % 5),
        beta1=0.9 - 0.005 * update,
        beta2=0.95 + 0.001 * update,
        eps=1e-8 * (update + 1),
    )


def _run(backend, dtype: torch.dtype, updates: int = 20):
    _, state, step = nano_step(dtype, backend=backend, optimizer=adamw.update_reference)
    results = []
    for i in range(updates):
        rows = token_rows(i)
        results.append(step.update([rows[: 3 + i % 2], rows[3 + i % 2 :]], _scalars(i)))
        step.evaluate(rows[:2])
    return state, step, results


def test_replays_equal_the_eager_step_bit_for_bit_under_a_changing_schedule() -> None:
    """Cases H03 and H11: no number of the host is frozen in a graph, every reading moves."""
    eager, _, wanted = _run(EagerReplay(), torch.float32)
    state, step, results = _run(FakeCuda().graphs(), torch.float32)
    assert results == wanted
    assert bits(state) == bits(eager)
    for reading in (lambda r: r.loss, lambda r: r.grad_norm, *(_norm(x) for x in state.layout.labels)):
        assert len({reading(result) for result in results}) == len(results)
    step.release()


def _norm(label: str):
    return lambda result: result.norms[label]


def test_a_frozen_number_is_seen() -> None:
    """The comparison above can fail: a number of the host that changes from call to call."""

    def run(backend) -> dict[str, bytes]:
        numbers = iter(range(100))

        def optimizer(buffers: adamw.Buffers, c: adamw.Coefficients) -> None:
            adamw.update_reference(buffers, c)
            buffers.P.mul_(1 + 1e-3 * next(numbers))

        _, state, step = nano_step(backend=backend, optimizer=optimizer)
        for i in range(3):
            step.update([token_rows(i)], _scalars(i))
        return bits(state)

    assert run(EagerReplay()) == run(EagerReplay())
    assert run(EagerReplay())["params"] != run(FakeCuda().graphs())["params"]


def test_a_value_read_on_the_host_breaks_the_capture() -> None:
    _, state, step = nano_step(backend=FakeCuda().graphs(), optimizer=adamw.update_cpu)
    before = bits(state)
    with pytest.raises(RuntimeError, match="not permitted when stream is capturing"):
        step.prepare([(4, 24)])
    assert bits(state) == before


def test_release_and_capture_again_change_no_bit() -> None:
    plain, _, _ = _run(FakeCuda().graphs(), torch.float32, 6)
    _, state, step = nano_step(backend=FakeCuda().graphs(), optimizer=adamw.update_reference)
    for i in range(6):
        rows = token_rows(i)
        step.update([rows[: 3 + i % 2], rows[3 + i % 2 :]], _scalars(i))
        step.release()
    assert bits(state) == bits(plain)


def test_largest_first_and_training_before_evaluation() -> None:
    captured = []

    class Watched(EagerReplay):
        def capture(self, part: Part) -> None:
            captured.append(part.key)
            super().capture(part)

    _, _, step = nano_step(backend=Watched())
    step.prepare([(2, 8), (8, 24), (2, 24)], [(1, 8), (4, 24)])
    assert captured == [
        ("micro", 8, 25),
        ("micro", 2, 25),
        ("micro", 2, 9),
        "norm",
        "update",
        ("evaluate", 4, 25),
        ("evaluate", 1, 9),
    ]
