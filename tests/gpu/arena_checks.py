"""The arena's part of capture.py: what it holds, what it leaves, and what happens when it is too little."""

from __future__ import annotations

import torch
from torch import Tensor

from tests.gpu.machine import Check, Machine, Run, gib
from trainer_core.errors import AwaitingGPU, Refused
from trainer_core.gpu.arena import GIB, SMALLEST_BLOCK, Arena
from trainer_core.gpu.devices import Devices

SMALL_REQUESTS = 64 << 20
"""What torch may take beside the arena for requests up to 1 MiB of the graphs here."""


class InPieces:
    """A GPU that gives no more than so many bytes at once."""

    def __init__(self, devices: Devices, largest: int) -> None:
        self._devices, self._largest = devices, largest
        self.name, self.memory, self.processes = devices.name, devices.memory, devices.processes
        self.open_pool, self.give_back = devices.open_pool, devices.give_back
        self.forget_peak = devices.forget_peak

    def allocate(self, gpu: int, num_bytes: int) -> object:
        if num_bytes > self._largest:
            raise torch.OutOfMemoryError("in pieces")
        return self._devices.allocate(gpu, num_bytes)


def the_arena_serves_every_capture(machine: Machine) -> tuple[bool, str]:
    """The pool takes nothing of any size from the device after the arena was held."""

    def more_for_longer_rows(ids: Tensor, total: Tensor) -> Tensor:
        machine.devices.allocate(0, ids.numel() << 20)
        return total

    arena = machine.arena()
    with Run(machine, machine.graphs(arena), more_for_longer_rows) as run:
        run.step.prepare(machine.shapes[:1])
        held = machine.devices.memory(0)
        run.step.prepare(machine.shapes, machine.shapes)
        grown = machine.devices.memory(0).ours - held.ours
    left = machine.slack - held.free
    good = len(arena.blocks) == 0 and grown <= SMALL_REQUESTS and left <= machine.slack // 2
    return good, f"{gib(held.ours)} held in blocks, {gib(held.free)} left, grown by {grown >> 20} MiB"


def memory_in_pieces_serves_too(machine: Machine) -> tuple[bool, str]:
    with Run(machine, machine.graphs()) as plain:
        plain.train(range(4))
    arena = Arena(InPieces(machine.devices, machine.free // 3), 0, slack=machine.slack)
    with Run(machine, machine.graphs(arena)) as run:
        run.train(range(4))
        blocks = arena.blocks
        same = run.bits() == plain.bits()
    return same and len(blocks) > 2, f"{len(blocks)} blocks, the first {gib(blocks[0])}"


def a_part_too_large_is_refused(machine: Machine) -> tuple[bool, str]:
    """Alone it gives everything back; beside recorded parts it leaves them at work."""
    too_much = machine.devices.memory(0).total
    large = False

    def takes(ids: Tensor, total: Tensor) -> Tensor:
        if large:
            machine.devices.allocate(0, too_much)
        return total

    with Run(machine, machine.graphs(), takes) as run:
        free, said = machine.free, []
        for good_ones in (0, 1):
            large = False
            if good_ones:
                run.step.prepare(machine.shapes[:1])
            large = True
            try:
                run.step.prepare(machine.shapes[1:])
            except Refused as error:
                said.append(str(error))
            if not good_ones and machine.free < free - SMALL_REQUESTS:
                return False, f"{gib(free)} were free, {gib(machine.free)} are"
        large = False
        (result,) = run.train(range(1))
    named = all("micro" in text and "rows" in text for text in said)
    return len(said) == 2 and named and not result.skipped, said[0][:60] if said else "nothing was refused"


def others_are_left_what_they_hold(machine: Machine) -> tuple[bool, str]:
    taken = machine.free // 4
    blocks = []
    for beside in (0, taken):
        arena = machine.arena()
        with machine.neighbour(max(beside, 1)):
            arena.hold()
            blocks.append(sum(arena.blocks))
            arena.release()
    return blocks[0] - blocks[
        1
    ] >= taken - GIB // 2, f"{gib(blocks[0])} alone, {gib(blocks[1])} beside others"


def nothing_to_hold_names_who_has_it(machine: Machine) -> tuple[bool, str]:
    arena, free = machine.arena(), machine.free
    with machine.neighbour(free - machine.slack):
        try:
            arena.hold()
        except AwaitingGPU as error:
            said = str(error)
        else:
            arena.release()
            return False, "it was held all the same"
    arena.hold()
    again = sum(arena.blocks)
    arena.release()
    return "others hold" in said and again >= SMALLEST_BLOCK, f"{said[:80]}"


def the_pool_counts_its_users(machine: Machine) -> tuple[bool, str]:
    cuda, pool = machine.cuda, machine.devices.open_pool(0)
    counts = [pool.users()]
    with cuda.active():
        graph = cuda.new_graph(pool)
        graph.begin()
        graph.end()
        counts.append(pool.users())
        graph.reset()
        counts.append(pool.users())
        graph = cuda.new_graph(pool)
        graph.begin()
        graph.end()
        pool.drop_user()  # what a capture that failed on an older torch needs
        counts.append(pool.users())
    pool.close()
    return counts[1:] == [counts[0] + 1, counts[0], counts[0]], " ".join(map(str, counts))


CHECKS: tuple[Check, ...] = (
    the_arena_serves_every_capture,
    memory_in_pieces_serves_too,
    a_part_too_large_is_refused,
    others_are_left_what_they_hold,
    nothing_to_hold_names_who_has_it,
    the_pool_counts_its_users,
)
