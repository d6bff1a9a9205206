"""Shared by all tests: where nothing may be left out, a skipped test is a failure.

With NSTRAIN_TEST_ALL=1 everything that tests need is installed, so a skip means that something is broken.
Tests marked `gpu` are deselected, not skipped, and stay out of this.
"""

from __future__ import annotations

import os
from collections.abc import Generator
from typing import Any

import pytest

ALL = os.environ.get("NSTRAIN_TEST_ALL") == "1"


def _fail_if_skipped(report: Any, keywords: Any) -> None:
    if ALL and report.skipped and not hasattr(report, "wasxfail") and "gpu" not in keywords:
        report.outcome = "failed"
        report.longrepr = f"skipped although NSTRAIN_TEST_ALL=1: {report.longrepr}"


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item: pytest.Item) -> Generator[None, Any, Any]:
    report = yield
    _fail_if_skipped(report, item.keywords)
    return report


@pytest.hookimpl(wrapper=True)
def pytest_make_collect_report(collector: pytest.Collector) -> Generator[None, Any, Any]:
    report = yield
    _fail_if_skipped(report, collector.keywords)
    return report
