"""How many examples property tests try: few enough for every change, many in the long suite."""

import os

from hypothesis import HealthCheck, settings

MANY = 20_000


def examples(few: int = 500) -> settings:
    """Settings for a property test: `few` examples, or MANY with NSTRAIN_CRASH_ALL=1."""
    return settings(
        max_examples=MANY if os.environ.get("NSTRAIN_CRASH_ALL") == "1" else few,
        deadline=None,
        suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large],
    )
