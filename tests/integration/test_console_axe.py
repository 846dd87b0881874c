"""Every page of the console by axe-core, which looks for what keeps people from using it.

axe-core is fetched from npm into ``.cache`` when the test first runs: it is no part of the project.
"""

from __future__ import annotations

import io
import shutil
import subprocess
import tarfile
from collections.abc import Iterator
from pathlib import Path

import pytest
from support.surfaces.browser import Browser
from support.surfaces.console_calls import got
from support.surfaces.console_pages import visit

from kbroker.client import KafkaProducer
from kbroker.client.batches.offsets import commit
from kbroker.client.connections.cluster import Cluster
from kbroker.testing import Broker

pytestmark = [pytest.mark.integration, pytest.mark.slow, pytest.mark.timeout(900)]

VERSION = "4.10.3"
CACHE = Path(__file__).parents[2] / ".cache" / "axe-core"
SERIOUS = ("serious", "critical")
WIDTHS = (1440, 768, 400)
PAGES = (
    ("overview", "Processes of broker"),
    ("wrong", "What is wrong"),
    ("topics", "orders"),
    ("topics/orders", "Size of leaders"),
    ("topics/orders?tab=messages", "records shown"),
    ("topics/orders?tab=settings", "retention.ms"),
    ("groups", "billing"),
    ("groups/billing", "Oldest unread"),
    ("transactions", "Transactions"),
    ("transactions/pays", "pays"),
    ("reassignments", "Reassignments"),
    ("quotas", "Quotas"),
    ("access", "authorizer"),
)
LOOK = """
const found = await axe.run(document, { resultTypes: ["violations"] });
return found.violations.map((row) =>
  [row.impact, row.id, row.help, row.nodes.slice(0, 3).map((node) => node.html.slice(0, 160))]);
"""


@pytest.fixture(scope="module")
def axe() -> str:
    place = CACHE / f"axe-{VERSION}.js"
    if not place.exists():
        npm = shutil.which("npm")
        if npm is None:
            pytest.skip("npm is not installed")
        CACHE.mkdir(parents=True, exist_ok=True)
        done = subprocess.run(
            [npm, "pack", f"axe-core@{VERSION}"], cwd=CACHE, capture_output=True, timeout=120
        )
        if done.returncode:
            pytest.skip("axe-core cannot be fetched from npm")
        packed = CACHE / f"axe-core-{VERSION}.tgz"
        with tarfile.open(fileobj=io.BytesIO(packed.read_bytes())) as files:
            member = files.extractfile("package/axe.min.js")
            assert member is not None
            place.write_bytes(member.read())
    return place.read_text()


@pytest.fixture(scope="module")
def broker() -> Iterator[Broker]:
    with Broker() as started:
        got(started, "/topics", {"name": "orders", "partitions": 2})
        with KafkaProducer(
            bootstrap_servers=started.bootstrap, transactional_id="pays"
        ) as producer:
            producer.init_transactions()
            for end in (producer.commit_transaction, producer.abort_transaction):
                producer.begin_transaction()
                for number in range(3):
                    producer.send("orders", b'{"a": 1}', key=b"k", partition=number % 2)
                end()
        with Cluster(started.bootstrap) as cluster:
            commit(cluster, "billing", {("orders", 0): (1, "")})
        got(started, "/quotas", {"user": "alice", "quotas": {"producer_byte_rate": "1000"}})
        yield started


@pytest.fixture(scope="module")
def browser(tmp_path_factory) -> Iterator[Browser]:
    with Browser(tmp_path_factory.mktemp("browser")) as opened:
        yield opened


def issues(browser: Browser, axe: str) -> list[str]:
    """Those that are serious, on the page as it is."""
    browser.run(axe + "\nwindow.axe = axe;")
    found = browser.run(LOOK)
    return [f"{impact}: {name}: {text}: {nodes}" for impact, name, text, nodes in found
            if impact in SERIOUS]  # fmt: skip


@pytest.mark.parametrize(("path", "text"), PAGES)
def test_page_has_no_serious_issue(
    browser: Browser, broker: Broker, axe: str, path: str, text: str
) -> None:
    found = []
    for width in WIDTHS:
        browser.size(width, 900)
        visit(browser, broker, path, text)
        if "messages" in path:
            browser.click("tr[data-record] td.wide")
            browser.await_text("Show as", "tr[data-detail]")
        for theme in ("light", "dark"):
            browser.run("document.documentElement.dataset.theme = arguments[0]", theme)
            found += [f"{width} {theme}: {each}" for each in issues(browser, axe)]

    assert found == []


def test_dialogs_have_no_serious_issue(browser: Browser, broker: Broker, axe: str) -> None:
    browser.size(1440, 900)
    found = []
    for path, text, button in (
        ("topics", "orders", "#create"),
        ("topics/orders?tab=messages", "records shown", "#produce"),
        ("groups/billing", "Oldest unread", "#reset"),
        ("quotas", "alice", "#set"),
        ("overview", "Processes of broker", "#keys"),
    ):
        visit(browser, broker, path, text)
        browser.click(button)
        browser.await_text("", "dialog")
        found += [f"{path}: {each}" for each in issues(browser, axe)]

    assert found == []
