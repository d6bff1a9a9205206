"""Questions about a data line: `nstrain data verify|report`. They change nothing."""

from __future__ import annotations

import re
from pathlib import Path

from deployments.cli.printing import Flag, print_json, progress, say
from trainer_core.errors import Refused
from trainer_core.host import load_host, resolve


def verify(*, work: Path, sources: Flag = False, json: Flag = False) -> int:
    """Compare everything on disk with the data line's records; exit code 20 when something differs.

    Parameters
    ----------
    work
        Folder of the data line.
    sources
        Also hash the files of folders, and ask hubs whether the pinned commits still stand.
    json
        Print the answer as JSON.
    """
    load_host()
    from trainer_core.data.audit.verify import verify_data_line

    found = verify_data_line(resolve(work), sources=sources, progress=progress(quiet=json))
    if json:
        print_json(found.to_json())
    else:
        say(str(found))
    return 0 if found.ok else Refused.exit_code


def report(*, work: Path, cycles: str | None = None, json: Flag = False) -> int:
    """What cycles really held, from their manifests: shares at every level against the recipe, and counts.

    Parameters
    ----------
    work
        Folder of the data line.
    cycles
        First and last cycle as A..B, or one cycle; all planned ones when left out.
    json
        Print the report as JSON.
    """
    load_host()
    from trainer_core.data.audit.report import data_report

    found = data_report(resolve(work), _cycles(cycles))
    if json:
        print_json(found.to_json())
    else:
        say(str(found))
    return 0


def _cycles(text: str | None) -> tuple[int, int] | None:
    if text is None:
        return None
    match = re.fullmatch(r"(\d+)(?:\.\.(\d+))?", text, flags=re.ASCII)
    if match is None:
        raise Refused(f'--cycles: {text!r}; expected one cycle such as "3", or a range such as "0..9"')
    return int(match[1]), int(match[2] or match[1])
