"""What people look at: the run page and the artifacts of a real line, in a real browser.

NSTRAIN_SCREENSHOTS=DIR keeps the pictures (docs/images holds such ones).
"""

from __future__ import annotations

import os
import re
import shutil
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from tests.tools.host import Host, host_at, until
from tests.tools.real_line import SLOW, make_real_line

playwright = pytest.importorskip("playwright.sync_api")
CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(CHROMIUM is None, reason="no Chromium on this machine (Debian: apt install chromium)"),
]

WIDTH = 1400
QUIET = (
    "--no-sandbox",
    "--disable-gpu",
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
)


@dataclass(frozen=True)
class Shown:
    """A finished run and the browser page to look at it."""

    host: Host
    run: str
    page: playwright.Page
    pictures: Path

    def open(self, address: str) -> None:
        self.page.goto(f"{self.host.record.ui}{address}")

    def keep(self, name: str, height: int) -> bytes:
        """A picture of the upper part of the page as it is."""
        part = {"x": 0, "y": 0, "width": WIDTH, "height": height}
        picture: bytes = self.page.screenshot(path=str(self.pictures / f"{name}.png"), clip=part)
        return picture


@pytest.fixture(scope="module")
def shown(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Shown]:
    root = tmp_path_factory.mktemp("host")
    pictures = Path(os.environ.get("NSTRAIN_SCREENSHOTS") or tmp_path_factory.mktemp("pictures"))
    pictures.mkdir(parents=True, exist_ok=True)
    paths = make_real_line(root / "line", cycles=3, size=SLOW)
    with host_at(root, port=4330) as host, playwright.sync_playwright() as driver:
        host.up()
        run = host.start("trunk/trunk", line=str(paths.root))
        assert host.wait(run, 240)["name"] == "Finished", host.log_tail()
        until(lambda: "delete-c2" in host.tasks(run), 30)
        browser = driver.chromium.launch(executable_path=CHROMIUM, args=list(QUIET))
        try:
            page = browser.new_page(viewport={"width": WIDTH, "height": 900})
            page.set_default_timeout(60_000)
            yield Shown(host, run, page, pictures)
        finally:
            browser.close()


def test_the_run_page_shows_the_state_and_the_cycles(shown: Shown) -> None:
    shown.open(f"/v2/runs/flow-run/{shown.run}")
    page = shown.page
    playwright.expect(page.get_by_text("Finished", exact=True).first).to_be_visible()
    playwright.expect(page.get_by_text("line:trunk")).to_be_visible()
    page.wait_for_selector("canvas")
    page.wait_for_timeout(4_000)  # the graph flies in
    picture = shown.keep("run-page", 520)
    assert len(picture) > 20_000, "the page is empty"
    page.get_by_role("tab", name="Task Runs").click()
    for kind in ("train", "delete", "tokenize"):
        page.get_by_placeholder(re.compile("Search", re.I)).first.fill(f"{kind}-c1")
        playwright.expect(page.get_by_text(f"{kind}-c1").first).to_be_visible()


def test_the_artifacts_are_a_table_of_cycles_a_loss_plot_and_progress(shown: Shown) -> None:
    page = shown.page
    shown.open(f"/v2/runs/flow-run/{shown.run}?tab=Artifacts")
    for key in ("trunk-cycles", "trunk-loss", "trunk-progress"):
        playwright.expect(page.get_by_text(key).first).to_be_visible()
    shown.open("/v2/artifacts/key/trunk-loss")
    page.get_by_text("Training loss").first.wait_for()
    newest = shown.host.api.call("POST", "/artifacts/latest/filter", {"limit": 50})
    by_key = {artifact["key"]: artifact for artifact in newest}
    shown.open(f"/v2/artifacts/artifact/{by_key['trunk-loss']['latest_id']}")
    plot = page.locator("img[src^='data:image/png']").first
    plot.wait_for()
    width, height = plot.evaluate("image => [image.naturalWidth, image.naturalHeight]")
    assert width >= 400, "the plot did not load"
    assert height >= 200
    shown.keep("loss-artifact", 660)
    shown.open(f"/v2/artifacts/artifact/{by_key['trunk-cycles']['latest_id']}")
    table = page.locator("table").first
    table.wait_for()
    rows = table.locator("tbody tr")
    playwright.expect(rows).to_have_count(3)
    shown.keep("cycle-table", 520)
