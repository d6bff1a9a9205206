"""The kernels equal their twins when interpreted, and compile for GPUs that are not here: see conftest.py."""

import re

import pytest

from tests.kernels.conftest import SUITES, Background

LEAST = {"interpreted": 150, "compiled": 60}
"""Tests that a suite has at least: an empty one would pass."""


@pytest.mark.slow
@pytest.mark.timeout(1600)
@pytest.mark.parametrize("name", SUITES)
def test_a_suite_passes(suites: Background, name: str) -> None:
    code, output = suites.result(name)
    assert code == 0, output
    assert int(re.findall(r"(\d+) passed", output)[-1]) >= LEAST[name]
