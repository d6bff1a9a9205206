"""`nstrain generate`: text of a line's model, or of an exported one, as it is made."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any, Literal

from deployments.cli.export import checkpoint_at
from deployments.cli.printing import Flag, Text, print_json
from trainer_core.errors import Refused
from trainer_core.host import load_host, resolve


def generate(
    source: Path,
    /,
    *,
    prompt: Text = "",
    max_new_tokens: int = 128,
    temperature: float = 1.0,
    top_k: int | None = None,
    top_p: float | None = None,
    seed: int = 0,
    num_samples: int = 1,
    ignore_eos: Flag = False,
    at: str = "latest",
    ema: Flag = False,
    device: Literal["cpu", "cuda"] = "cpu",
    json: Flag = False,
) -> int:
    """Let a trained model write, beside a line that trains on if need be.

    Parameters
    ----------
    source
        Directory of a line, its name under work_root, or a folder that `nstrain export` wrote.
    prompt
        What the text begins with; nothing stands before it but the end of another document.
    max_new_tokens
        Most tokens behind the prompt.
    temperature
        Scores are divided by it; 0: always the likeliest token.
    top_k
        Choose among this many of the likeliest tokens.
    top_p
        Choose among the likeliest tokens that have this much probability together.
    seed
        Seed of the draws: equal seeds give equal texts.
    num_samples
        How many texts.
    ignore_eos
        Go on where the model ends its document.
    at
        The checkpoint after this update, or the latest.
    ema
        The moving average of the weights, of a line that keeps one.
    device
        Where it computes; a GPU that a line trains on has no room.
    json
        Print JSON when all is written.
    """
    load_host()
    from trainer_core.generate.sampling import Sampling
    from trainer_core.ops.generate import Request, generate_texts

    request = Request(
        prompt=prompt,
        sampling=Sampling(temperature=temperature, top_k=top_k, top_p=top_p),
        max_new_tokens=max_new_tokens,
        samples=num_samples,
        seed=seed,
        stop_at_end=not ignore_eos,
    )
    problems = request.problems()
    update = None
    try:
        update = checkpoint_at(at)
    except Refused as refused:
        problems += refused.problems
    if problems:
        raise Refused(problems)

    def begin(number: int) -> None:
        if num_samples > 1:
            _show(f"{'' if number == 0 else chr(10)}--- {number + 1}\n")

    quiet: dict[str, Any] = {} if json else {"begin": begin, "show": _show}
    found = generate_texts(resolve(source), request, at=update, ema=ema, device=device, **quiet)
    if json:
        print_json([{**vars(sample), "ids": list(sample.ids)} for sample in found])
    return 0


def _show(piece: str) -> None:
    sys.stdout.write(piece)
    sys.stdout.flush()
