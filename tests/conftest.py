"""Shared by all tests: a home of their own, and where nothing may be left out, a skipped test is a failure.

The home keeps tests away from the host's settings, slots and device leases, and from each other's users.
With NSTRAIN_TEST_ALL=1 everything that tests need is installed, so a skip means that something is broken.
Tests marked `gpu` are deselected, not skipped, and stay out of this.
"""

from __future__ import annotations

import os
from collections.abc import Generator, Iterator
from typing import Any

import pytest

ALL = os.environ.get("NSTRAIN_TEST_ALL") == "1"


def _fail_if_skipped(report: Any, keywords: Any) -> None:
    if ALL and report.skipped and not hasattr(report, "wasxfail") and "gpu" not in keywords:
        report.outcome = "failed"
        report.longrepr = f"skipped although NSTRAIN_TEST_ALL=1: {report.longrepr}"


@pytest.fixture(scope="session", autouse=True)
def home_of_the_tests(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """No test waits for a slot that a preparer of this host holds, or reads its host.json."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("HOME", str(tmp_path_factory.mktemp("home")))
        yield


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
