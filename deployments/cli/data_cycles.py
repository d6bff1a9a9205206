"""The verbs of a data line's cycles: `nstrain data prepare|run-preparer|delete|rebuild`."""

from __future__ import annotations

import sys
from pathlib import Path

from deployments.cli.printing import Flag, listed, print_json, progress, say
from trainer_core.errors import Refused
from trainer_core.host import load_host, resolve


def prepare(*, work: Path, cycle: int, json: Flag = False) -> int:
    """Download, tokenize and publish one cycle; a published one is left as it is.

    Parameters
    ----------
    work
        Folder of the data line.
    cycle
        Number of the cycle, from 0.
    json
        Print the summary as JSON.
    """
    load_host()
    from trainer_core.data.prepare.preparer import CyclePreparer

    preparer = CyclePreparer(resolve(work))
    preparer.download(cycle)
    summary = preparer.tokenize(cycle)
    if json:
        print_json(summary)
    else:
        say(f"cycle {cycle} is published ({listed(summary)})")
    return 0


def run_preparer(*, work: Path, cycles_ahead: int = 1, cycles: int | None = None, once: Flag = False) -> int:
    """Prepare cycles ahead of the training line as it goes on, and delete trained ones; without Prefect.

    Parameters
    ----------
    work
        Folder of the data line.
    cycles_ahead
        Cycles to keep ready beyond the one that is trained.
    cycles
        Prepare no cycle beyond N-1, and end when the line has trained up to it; without it, go on as long
        as the line does.
    once
        Prepare what is wanted now and end, instead of following the line.
    """
    load_host()
    from trainer_core.ops.preparer import STOPPED
    from trainer_core.ops.preparer import run_preparer as run

    code, message = run(resolve(work), cycles_ahead=cycles_ahead, cycles=cycles, follow=not once, say=say)
    if code in (0, STOPPED):
        say(message)
    else:
        print(f"nstrain: {message}", file=sys.stderr)
    return code


def delete(*, work: Path, cycle: int, json: Flag = False) -> int:
    """Remove the shards of one cycle; its manifest stays, and it can be rebuilt from it.

    Refused while the training line runs and has not trained past the cycle.

    Parameters
    ----------
    work
        Folder of the data line.
    cycle
        Number of the cycle, from 0.
    json
        Print the outcome as JSON.
    """
    load_host()
    from trainer_core.ops.delete import delete_cycle

    found = delete_cycle(resolve(work), cycle)
    if json:
        print_json({"cycle": cycle, "deleted": found.deleted})
        return 0
    say(f"cycle {cycle}: {'shards removed' if found.deleted else 'there were no shards'}")
    if found.deleted and found.wanted:
        say("it is not trained to its end yet: it is made again when the training line needs it")
    return 0


def rebuild(*, work: Path, cycle: int, out: Path, json: Flag = False) -> int:
    """Write a cycle's shards again from its manifest and the sources, and compare them with it.

    Parameters
    ----------
    work
        Folder of the data line.
    cycle
        Number of the cycle, from 0.
    out
        Folder for the shards, new or empty.
    json
        Print the outcome as JSON.
    """
    load_host()
    from trainer_core.data.plan.manifest import read_cycle_manifest
    from trainer_core.data.plan.state_file import require_planned
    from trainer_core.data.prepare.preparer import CyclePreparer

    target, root = resolve(out), resolve(work)
    if target.exists():
        if not target.is_dir() or any(target.iterdir()):
            raise Refused(f"{target}: is not empty; name a new folder for the shards")
        target.rmdir()
    preparer = CyclePreparer(root)
    if not preparer.has_manifest(cycle):
        require_planned(preparer.paths, cycle, line=preparer.line)
    manifest = read_cycle_manifest(preparer.paths, cycle, line=preparer.line)
    progress(quiet=json)(f"cycle {cycle}: tokenizing its files again")
    preparer.rebuild(cycle, target)
    shards = [shard for shards in manifest.shards() for shard in shards]
    if json:
        print_json({"cycle": cycle, "out": str(target), "shards": len(shards), "identical": True})
    else:
        say(f"cycle {cycle}: {len(shards)} shards in {target}, all as its manifest says")
    return 0
