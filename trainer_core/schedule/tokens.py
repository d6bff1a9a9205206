"""The token count: an exact integer, however people write it.

`2e10`, `20_000`, `"4.7e9"` and `20000000000` are exact; `1.5`, `true`, `1e23` (beyond what a float or a line
can count exactly) and words are refused, never rounded.
"""

from __future__ import annotations

import re
from decimal import Decimal, InvalidOperation
from typing import Annotated, Any

from pydantic import BeforeValidator, Field

LIMIT = 2**63 - 1
"""Largest count: what a signed 64-bit integer holds."""

_NUMBER = re.compile(r"[0-9]+(_[0-9]+)*(\.[0-9]+)?([eE]\+?[0-9]{1,3})?")


def parse_tokens(value: Any) -> int:
    """The exact integer of a token count written as int, float or text.

    Raises ValueError saying what was found, for fractions, booleans, negatives and counts above 2**63 - 1.
    """
    if isinstance(value, bool) or not isinstance(value, int | float | str):
        raise ValueError(f"expected a token count such as 65536, 20_000 or 2e10, found {value!r}")
    if isinstance(value, str) and not _NUMBER.fullmatch(value.strip()):
        raise ValueError(f"expected a token count such as 65536, 20_000 or 2e10, found {value!r}")
    try:
        number = Decimal(value.strip().replace("_", "") if isinstance(value, str) else value)
    except InvalidOperation:
        raise ValueError(f"expected a token count, found {value!r}") from None
    if not number.is_finite() or number != number.to_integral_value():
        raise ValueError(f"a token count is a whole number, found {value!r}")
    if number < 0 or number > LIMIT:
        raise ValueError(f"a token count lies between 0 and 2**63 - 1, found {value!r}")
    return int(number)


TokenCount = Annotated[int, BeforeValidator(parse_tokens), Field(ge=0)]
"""Pydantic type of every token count in configuration, forms and commands."""
