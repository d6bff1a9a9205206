"""The arena on a simulated GPU: what it takes, serves and gives back, and what it says of too little."""

from __future__ import annotations

import pytest
import torch

from tests.tools.simulated_gpu import GIB, MIB, SimulatedGpu
from trainer_core.errors import AwaitingGPU, Refused
from trainer_core.gpu.arena import SLACK, SMALLEST_BLOCK, Arena


def _take(gpu: SimulatedGpu, arena: Arena, *sizes: int) -> None:
    """What a warm-up does: several allocations that live at the same time."""
    with arena.pool.serving():
        held = [gpu.allocate(0, size) for size in sizes]
    del held


def test_all_but_the_slack_is_held_in_one_block() -> None:
    gpu = SimulatedGpu()
    state = gpu.tensor(3 * GIB)
    arena = Arena(gpu, 0)
    arena.hold()
    assert arena.is_held and arena.blocks == (13 * GIB - SLACK,)
    assert gpu.memory(0).free == SLACK
    arena.release()
    assert not arena.is_held and arena.blocks == ()
    assert gpu.memory(0).free == 13 * GIB
    arena.release()
    del state


def test_requests_of_every_size_and_order_come_from_it() -> None:
    """Without it a pool has no block for the longer rows that come later, and one for each size before."""
    sizes = [GIB // 8, GIB, 2 * GIB, 5 * GIB, 7 * GIB, 3 * GIB]
    gpu = SimulatedGpu()
    arena = Arena(gpu, 0)
    arena.hold()
    for size in sizes:
        _take(gpu, arena, size, size // 2, 3 * MIB)
    assert gpu.held == sum(arena.blocks) == 12 * GIB and not gpu.refused

    bare = SimulatedGpu()
    pool = bare.open_pool(0)
    with pool.serving(), pytest.raises(torch.OutOfMemoryError):
        for size in sizes:
            blocks = [bare.allocate(0, size), bare.allocate(0, size // 2)]
            del blocks


def test_blocks_serve_only_the_stream_that_they_were_taken_on() -> None:
    gpu = SimulatedGpu()
    arena = Arena(gpu, 0)
    arena.hold()
    gpu.stream = "another"
    _take(gpu, arena, GIB)
    assert gpu.held == sum(arena.blocks) + GIB


def test_memory_in_pieces_is_held_piece_by_piece() -> None:
    gpu = SimulatedGpu()
    walls = []
    for size in (5 * GIB, 3 * GIB, 3 * GIB):
        hole = gpu.tensor(size)
        walls.append(gpu.tensor(MIB))
        del hole
    free = gpu.memory(0).free
    arena = Arena(gpu, 0)
    arena.hold()
    assert len(arena.blocks) > 1 and gpu.refused
    assert free - SLACK - SMALLEST_BLOCK < sum(arena.blocks) <= free - SLACK
    assert all(block % (2 * MIB) == 0 for block in arena.blocks)
    _take(gpu, arena, GIB, GIB)
    assert gpu.held == sum(arena.blocks)


def test_what_others_hold_is_left_to_them_and_taken_once_they_have_gone() -> None:
    gpu = SimulatedGpu()
    other = gpu.other_process(41, 6 * GIB)
    arena = Arena(gpu, 0)
    arena.hold()
    assert sum(arena.blocks) == 10 * GIB - SLACK
    arena.release()
    del other
    arena.hold()
    assert sum(arena.blocks) == 16 * GIB - SLACK


def test_nothing_left_by_others_names_them_and_holds_nothing() -> None:
    gpu = SimulatedGpu()
    others = gpu.other_process(41, 11 * GIB, name="jupyter"), gpu.other_process(42, GIB, listed=False)
    arena = Arena(gpu, 0)
    with pytest.raises(AwaitingGPU) as raised:
        arena.hold()
    for words in ("GPU 0 (Simulated 16GB)", "4.0 GiB free of 16.0 GiB", "at least 4.2 GiB"):
        assert words in str(raised.value)
    assert "others hold 12.0 GiB; process 41 (jupyter) holds 11.0 GiB. End" in str(raised.value)
    assert not arena.is_held and gpu.memory(0).free == 4 * GIB and gpu.pools[0].num_users == 0
    del others
    arena.hold()
    assert sum(arena.blocks) == 12 * GIB


def test_a_gpu_too_small_for_the_state_is_no_case_to_wait() -> None:
    gpu = SimulatedGpu()
    state = gpu.tensor(15 * GIB)
    with pytest.raises(Refused, match=r"15\.0 GiB hold the training state: train a smaller model"):
        Arena(gpu, 0).hold()
    assert not gpu.held
    del state


def test_an_arena_is_held_once_and_has_a_pool_only_then() -> None:
    arena = Arena(SimulatedGpu(), 0)
    with pytest.raises(AssertionError, match="not held"):
        _ = arena.pool
    arena.hold()
    with pytest.raises(AssertionError, match="held already"):
        arena.hold()


def test_a_graph_that_is_still_there_keeps_the_memory() -> None:
    """Why graphs are reset before the arena is released."""
    gpu = SimulatedGpu()
    arena = Arena(gpu, 0)
    arena.hold()
    pool = gpu.pools[0]
    pool.num_users += 1
    arena.release()
    assert gpu.memory(0).free == SLACK
    pool.num_users -= 1
    arena.hold()
    assert gpu.held == 12 * GIB


def test_the_slack_can_be_another() -> None:
    gpu = SimulatedGpu()
    arena = Arena(gpu, 0, slack=GIB)
    arena.hold()
    assert gpu.memory(0).free == GIB
