"""`init/init`: make a data line from a typed form: pin its files and tokenizer, cut its held-out streams."""

from __future__ import annotations

from typing import Annotated, Any

from prefect import flow
from prefect.logging import get_run_logger
from prefect.states import Completed, Failed, State
from pydantic import Field

from flows.names import run_name
from trainer_core.errors import OUTCOMES, NstrainError, Refused
from trainer_core.host import load_host, resolve
from trainer_core.schedule.tokens import TokenCount


@flow(name="init", flow_run_name=run_name, persist_result=False)
def init(
    work: str,
    eos_id: Annotated[int, Field(ge=0)],
    cycle_tokens: TokenCount,
    recipe: str | None = None,
    tokenizer: str | None = None,
    calibration_from: str | None = None,
    seed: Annotated[int, Field(ge=0)] | None = None,
) -> State[Any]:
    """Make a data line: pin the files of its sources and its tokenizer, and cut the held-out streams.

    Args:
        work: Folder of the new data line, absolute or under work_root.
        eos_id: Token id that ends a document.
        cycle_tokens: Tokens of a cycle, for example 65536 or 2e9.
        recipe: recipe.json with sources and shares; empty means examples/minicpm-2b/recipe.json.
        tokenizer: tokenizer.json; empty means the one of the host settings.
        calibration_from: Data line whose measurements are taken over; empty means the host settings' one.
        seed: Seed of the line, instead of the recipe's.
    """
    from trainer_core.data.heldout.validation import make_heldout
    from trainer_core.data.making.initialize import init_data_line
    from trainer_core.data.recipe.schema import DEFAULT_RECIPE

    try:
        host = load_host()
        chosen, known = tokenizer or host.tokenizer, calibration_from or host.calibration_from
        if chosen is None:
            raise Refused("init: no tokenizer given, and the host settings name none")
        root = resolve(work)
        say = get_run_logger().info
        report = init_data_line(
            root,
            recipe=resolve(recipe) if recipe else DEFAULT_RECIPE,
            tokenizer=resolve(chosen),
            eos_id=eos_id,
            cycle_tokens=cycle_tokens,
            seed=seed,
            calibration_from=resolve(known) if known else None,
            progress=say,
        )
        make_heldout(root, progress=say)
        say(str(report))
    except NstrainError as error:
        name = OUTCOMES[error.exit_code].state_name if error.exit_code in OUTCOMES else "Failed"
        return Failed(name=name, message=str(error))
    return Completed(message=f"data line {root} is made; next: nstrain new RUN --data {root}")
