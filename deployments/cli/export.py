"""`nstrain export`: a line's checkpoint as a folder that transformers loads."""

from __future__ import annotations

from pathlib import Path

from deployments.cli.printing import Flag, print_json, quoted, say
from trainer_core.errors import Refused
from trainer_core.host import load_host, resolve


def export(run: Path, /, *, out: Path, at: str = "latest", ema: Flag = False, json: Flag = False) -> int:
    """Write a checkpoint in the Hugging Face layout; the line may train on meanwhile.

    Parameters
    ----------
    run
        Directory of the line, or its name under work_root.
    out
        Folder to make; one that is there must be empty.
    at
        The checkpoint after this update, or the latest.
    ema
        The moving average of the weights, of a line that keeps one.
    json
        Print JSON.
    """
    load_host()
    update = checkpoint_at(at)
    from trainer_core.ops.export import export_line

    done = export_line(resolve(run), out.expanduser().absolute(), at=update, ema=ema)
    record = done.record
    if json:
        print_json({**record.to_json(), "out": str(done.out), "bytes": done.bytes})
        return 0
    averaged = ", averaged" if record.ema else ""
    say(f"{done.out}: {record.line} at update {record.update}{averaged}, {record.tokens:,} tokens trained")
    say(f"  {done.files} files, {done.bytes:,} bytes; next: nstrain generate {quoted(done.out)} --prompt ...")
    return 0


def checkpoint_at(text: str) -> int | None:
    """The update that a person named, None for the latest."""
    if text == "latest":
        return None
    if not (text.isascii() and text.isdecimal() and len(text) <= 18):
        raise Refused(f"--at {text}: expected the update of a checkpoint, or latest")
    return int(text)
