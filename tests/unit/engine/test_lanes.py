"""Lanes and ranks: one tree whatever the world, and bit-equal weights for 1, 2 and 4 ranks."""

import threading

import pytest
import torch

from tests.unit.engine.toys import bits, nano_step, token_rows
from trainer_core.engine.collective import SingleProcess, shard
from trainer_core.engine.lanes import LaneSums, cut, owned, tree_sum
from trainer_core.engine.step import UpdateScalars


@pytest.mark.parametrize("num", [0, 1, 5, 8, 10, 16, 19])
@pytest.mark.parametrize("lanes", [1, 2, 8])
def test_lanes_cut_the_order_in_nearly_equal_runs(num: int, lanes: int) -> None:
    whole = cut(range(num), lanes)
    assert [i for lane in whole for i in lane] == list(range(num))
    sizes = [len(lane) for lane in whole]
    assert sorted(sizes, reverse=True) == sizes
    assert sizes[0] - sizes[-1] <= 1
    for world in (w for w in (1, 2, 4) if lanes % w == 0):
        for rank in range(world):
            mine = owned(lanes, world, rank)
            items = [i for lane in mine for i in whole[lane]]
            assert [list(x) for x in cut(items, len(mine))] == [list(whole[lane]) for lane in mine]


def test_lanes_are_a_power_of_two() -> None:
    with pytest.raises(AssertionError):
        owned(6, 1, 0)
    with pytest.raises(AssertionError):
        owned(2, 4, 0)
    sums = LaneSums((torch.ones(1),))
    sums.end_lane(last=False)
    sums.end_lane(last=False)
    with pytest.raises(AssertionError, match="power of two"):
        sums.end_lane(last=True)


@pytest.mark.parametrize("lanes", [1, 2, 4, 8])
def test_lane_sums_are_the_tree_and_spare_copies_are_few(lanes: int) -> None:
    values = torch.randn(lanes, 5, generator=torch.Generator().manual_seed(1))
    accumulator = torch.zeros(5)
    sums = LaneSums((accumulator,))
    for i, value in enumerate(values):
        assert not accumulator.any()
        accumulator += value
        sums.end_lane(last=i == lanes - 1)
    assert torch.equal(accumulator, tree_sum(values))
    assert len(sums._spare) == lanes.bit_length() - 1


class _Threads:
    """Ranks that are threads of one process."""

    def __init__(self, world: int) -> None:
        self.world = world
        self.barrier = threading.Barrier(world)
        self.shared: list = [None] * world

    def meet(self, rank: int, value):
        self.shared[rank] = value
        self.barrier.wait()
        everyone = list(self.shared)
        self.barrier.wait()
        return everyone


class _Rank:
    def __init__(self, threads: _Threads, rank: int) -> None:
        self.threads, self.world, self.rank = threads, threads.world, rank

    def all_to_all_sum(self, flat: torch.Tensor) -> None:
        everyone = self.threads.meet(self.rank, flat.clone())
        part = slice(*shard(flat.numel(), self))
        flat.fill_(torch.nan)
        flat[part] = tree_sum(torch.stack([other[part] for other in everyone]))

    def all_gather(self, flat: torch.Tensor) -> None:
        mine = flat[slice(*shard(flat.numel(), self))].clone()
        flat.copy_(torch.cat(self.threads.meet(self.rank, mine)))

    def sum_counts(self, count: int) -> int:
        return sum(self.threads.meet(self.rank, count))

    def broadcast_flags(self, flags: tuple[int, ...]) -> tuple[int, ...]:
        return self.threads.meet(self.rank, flags)[0]


def _micro(update: int, num: int = 10):
    return [token_rows(100 * update + i, 2, 8) for i in range(num)]


def _train(world: int, lanes: int, updates: int = 4):
    threads, ends = _Threads(world), [None] * world

    def work(rank: int) -> None:
        _, state, step = nano_step(collective=_Rank(threads, rank), lanes=lanes)
        results = []
        for i in range(updates):
            parts = cut(_micro(i), lanes)
            mine = [rows for lane in owned(lanes, world, rank) for rows in parts[lane]]
            scalars = UpdateScalars(lr=1e-2, weight_decay=0.1, clip=torch.inf if i else 0.1)
            results.append(step.update(mine, scalars))
        ends[rank] = (results, state.P.clone(), state.M[slice(*shard(state.layout.total, step._collective))])

    ranks = [threading.Thread(target=work, args=(rank,)) for rank in range(world)]
    for rank in ranks:
        rank.start()
    for rank in ranks:
        rank.join()
    return ends


def test_the_size_of_the_world_changes_no_bit() -> None:
    ((wanted, P, M),) = _train(1, 4)
    for world in (2, 4):
        ends = _train(world, 4)
        for results, weights, _ in ends:
            assert results == wanted
            assert torch.equal(weights, P)
        assert torch.equal(torch.cat([moments for _, _, moments in ends]), M)


def test_one_process_needs_no_collective() -> None:
    ((_, P, _),) = _train(1, 1)
    _, state, step = nano_step()
    for i in range(4):
        step.update(_micro(i), UpdateScalars(lr=1e-2, weight_decay=0.1, clip=torch.inf if i else 0.1))
    assert torch.equal(state.P, P)
    before = bits(state)
    alone = SingleProcess()
    alone.all_to_all_sum(state.G)
    alone.all_gather(state.P)
    assert bits(state) == before
    assert alone.sum_counts(7) == 7
    assert alone.broadcast_flags((1, 0)) == (1, 0)
