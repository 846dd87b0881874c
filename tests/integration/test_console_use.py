"""The console in headless Chromium: by keyboard, on a narrow window, with long names, and while its
broker is gone.
"""

from __future__ import annotations

from collections.abc import Iterator
from urllib.parse import quote

import pytest
from support.surfaces.browser import Browser
from support.surfaces.console_calls import got
from support.surfaces.console_pages import ATTACK, NARROW, checked, fits, shot, visit

from kbroker.client import KafkaConsumer, KafkaProducer
from kbroker.client.admin.topics import NewTopic, create_topics
from kbroker.client.batches.offsets import commit
from kbroker.client.connections.cluster import Cluster
from kbroker.testing import Broker, wait_until

pytestmark = [pytest.mark.integration, pytest.mark.slow, pytest.mark.timeout(300)]

LONG = "long." * 49 + "name"  # as long as a topic may be called
# What is below the oldest record.
FIRST_OPENED = "tr[data-record='0-0'] + tr[data-detail]"
TAB, ENTER, ESCAPE = "\ue004", "\ue007", "\ue00c"


@pytest.fixture(scope="module")
def browser(tmp_path_factory) -> Iterator[Browser]:
    with Browser(tmp_path_factory.mktemp("browser")) as opened:
        yield opened


@pytest.fixture
def page(browser: Browser) -> Iterator[Browser]:
    with checked(browser):
        yield browser


@pytest.fixture(scope="module")
def broker() -> Iterator[Broker]:
    with (
        Broker(group_initial_rebalance_delay_ms=0) as started,
        Cluster(started.bootstrap) as cluster,
    ):
        create_topics(cluster, [NewTopic(LONG, 1, 1), NewTopic("wide", 1, 1)])
        headers = [("h" * 3000, b"v" * 3000), (ATTACK * 3, ATTACK.encode())]
        with KafkaProducer(bootstrap_servers=started.bootstrap) as producer:
            producer.send(LONG, b"value", key=b"k" * 3000)
            producer.send("wide", b"w" * 100_000, key=b"k" * 3000, headers=headers)
            producer.send("wide", b"\xff" * 100_000)
            producer.send("wide", b'{"a":"' + b"j" * 50_000 + b'"}')
        yield started


def focused(browser: Browser) -> str:
    text: str = browser.run("return document.activeElement.outerHTML.slice(0, 300)")
    return text


def test_keys_lead_to_every_page_and_to_what_is_on_it(page: Browser, broker: Broker) -> None:
    visit(page, broker, "overview", "Processes of broker")

    for key, text in (("t", "Topics"), ("c", "Groups"), ("x", "Transactions"), ("q", "Quotas"),
                      ("m", "Reassignments"), ("a", "Access"), ("o", "Overview")):  # fmt: skip
        page.press("g", key)
        page.await_text(text, "h1")
    page.press("?")
    page.await_text("Keyboard", "dialog")
    shot(page, "keys")
    page.press(ESCAPE)
    wait_until(lambda: not page.text("dialog"))
    page.press("g", "t")
    page.await_text("wide")
    page.press("/", "w", "i", "d", "e", ENTER)
    page.await_text("1 topic")

    assert LONG not in page.text("main")
    assert "search" in focused(page)


def test_record_is_opened_and_read_without_a_mouse(page: Browser, broker: Broker) -> None:
    visit(page, broker, "topics/wide?tab=messages", "3 records shown")

    page.run("document.querySelector(\"tr[data-record='0-0'] button\").focus()")
    page.press(ENTER)
    page.await_text("Headers", "tr[data-detail]")
    reached = []
    for _ in range(3):
        page.press(TAB)
        reached.append(focused(page)[:7])

    assert reached[0] == "<select"
    assert "<pre ta" in reached


def test_skip_link_comes_first(page: Browser, broker: Broker) -> None:
    visit(page, broker, "overview", "Processes of broker")
    page.run("document.body.tabIndex = -1; document.body.focus()")

    page.press(TAB)
    first = focused(page)
    page.press(ENTER)

    assert "skip" in first
    assert focused(page).startswith("<main")


@pytest.mark.parametrize("width", [NARROW, 1200])
def test_opened_record_makes_its_table_no_wider(page: Browser, broker: Broker, width: int) -> None:
    page.size(width, 800)
    visit(page, broker, "topics/wide?tab=messages", "3 records shown")

    def widths() -> tuple[int, int]:
        return tuple(page.run(
            "const t = document.querySelector('table.records');"
            "return [t.offsetWidth, document.documentElement.scrollWidth]"
        ))  # fmt: skip

    before = widths()
    for number in range(3):
        page.click(f"tr[data-record='0-{number}'] button")
    page.await_text("Headers", FIRST_OPENED)
    opened = widths()
    shot(page, f"record-open-{width}")
    page.run(
        "for (const s of document.querySelectorAll('tr[data-detail] select'))"
        "{ s.value = 'hex'; s.dispatchEvent(new Event('change')) }"
    )
    page.await_text("00000000  77 77", FIRST_OPENED)
    page.run("document.querySelector('.scroll').scrollLeft = 10000")
    inside = page.run(
        "const d = document.querySelector('.detail').getBoundingClientRect();"
        "return d.left >= 0 && d.right <= innerWidth"
    )
    shot(page, f"record-open-hex-{width}")

    assert before == opened == widths()
    assert inside


def test_names_of_any_length_fit(page: Browser, broker: Broker) -> None:
    group = "g" * 250 + ATTACK
    with Cluster(broker.bootstrap) as cluster:
        commit(cluster, group, {(LONG, 0): (0, "")})
    consumer = KafkaConsumer(
        bootstrap_servers=broker.bootstrap, group_id="of-clients", client_id=ATTACK + "c" * 200,
        auto_offset_reset="earliest",
    )  # fmt: skip
    with consumer:
        consumer.subscribe([LONG])
        wait_until(lambda: consumer.poll(0.1) or consumer.assignment())
        page.size(NARROW, 800)
        for number, (path, text) in enumerate((
            ("topics", LONG),
            (f"topics/{LONG}", "Size of leaders"),
            (f"topics/{LONG}?tab=messages", "1 record shown"),
            ("groups", "onerror"),
            (f"groups/{quote(group, safe='')}", "Oldest unread record"),
            ("groups/of-clients", "onerror"),
        )):  # fmt: skip
            visit(page, broker, path, text)
            shot(page, f"long-{number}")
            assert fits(page), path
            assert "\u202e" not in page.text("main")


def test_lag_is_a_curve(page: Browser, broker: Broker) -> None:
    with Cluster(broker.bootstrap) as cluster:
        commit(cluster, "curve", {("wide", 0): (1, "")})
    visit(page, broker, "groups/curve", "Lag over time")

    label = page.run("return document.querySelector('figure svg').getAttribute('aria-label')")
    shot(page, "group-curve")

    assert label == "lag in records, now 2"
    assert "2 records" in page.text("figure")


def test_quota_is_set_and_removed_in_a_dialog(page: Browser, broker: Broker) -> None:
    visit(page, broker, "quotas", "There are no quotas")

    page.click("#set")
    page.type("dialog input[name=client_id]", ATTACK.split("\u202e")[0])
    page.type("dialog input[name=producer_byte_rate]", "2097152")
    shot(page, "quota-dialog")
    page.click_text("Save", "button")
    page.await_text("2.0 MiB")
    shot(page, "quotas-set")
    (row,) = got(broker, "/quotas")["quotas"]
    page.click_text("Change", "button")
    page.run("document.querySelector('dialog input[name=producer_byte_rate]').value = ''")
    page.click_text("Save", "button")
    page.await_text("There are no quotas")

    name = ATTACK.split("\u202e")[0]
    assert row["entity"] == [{"type": "client-id", "name": name}]
    assert got(broker, "/quotas")["total"] == 0


HAS = "return document.querySelector(`[aria-label='${arguments[0]}']`) !== null"


def test_overview_shows_which_topics_and_clients_are_busy(page: Browser, broker: Broker) -> None:
    with KafkaProducer(bootstrap_servers=broker.bootstrap, client_id=ATTACK) as producer:
        visit(page, broker, "overview", "Who is busy")

        def is_shown() -> bool:
            producer.send("wide", b"v" * 1000, partition=0).get(60)
            return all(page.run(HAS, f"{name} that are busy") for name in ("Topics", "Clients"))

        wait_until(is_shown, 60, "both are told of")
    rows = page.text("[aria-label='Clients that are busy']")
    assert ATTACK[:40] in rows  # names are cut
    assert "wide" in page.text("[aria-label='Topics that are busy']")


def test_move_is_shown_before_it_is_done(page: Browser, broker: Broker) -> None:
    visit(page, broker, "reassignments", "No partition is being moved")

    page.click("#move")
    page.type("dialog input[name=topic]", "wide")
    page.type("dialog input[name=replicas]", "7")
    page.click_text("Show what it does", "button")
    page.await_text("there is no broker 7, but 0", "dialog")
    page.run("document.querySelector('dialog input[name=replicas]').value = ''")
    page.type("dialog input[name=replicas]", "0")
    page.click_text("Show what it does", "button")
    page.await_text("From brokers 0 to 0", "dialog")
    shot(page, "move-dialog")
    page.click_text("Move", "button")

    wait_until(lambda: not page.text("dialog"))


def test_console_that_only_shows_has_no_buttons_that_change(page: Browser) -> None:
    with Broker(console_read_only="true") as broker, Cluster(broker.bootstrap) as cluster:
        with KafkaProducer(bootstrap_servers=broker.bootstrap) as producer:
            producer.send("t", b"v")
        commit(cluster, "g", {("t", 0): (0, "")})
        shown = {}
        for path, text in (
            ("topics", "healthy"), ("topics/t", "Size of leaders"), ("quotas", "no quotas"),
            ("topics/t?tab=settings", "cleanup.policy"), ("reassignments", "being moved"),
            ("topics/t?tab=messages", "1 record shown"), ("groups/g", "Oldest unread record"),
        ):  # fmt: skip
            visit(page, broker, path, text)
            shown[path] = set(page.run(
                "return [...document.querySelectorAll('main button')]"
                ".filter((b) => b.offsetParent).map((b) => b.textContent)"
            ))  # fmt: skip
        shot(page, "read-only")

    assert page.text("header .read-only") == "read-only"
    assert shown.pop("groups/g") == {"Reset offsets"}  # whose dry run changes nothing
    assert shown.pop("topics/t?tab=messages") == {"Read", "Follow", "Export as JSON lines", "0"}
    assert set().union(*shown.values()) == set()


def test_page_says_that_the_broker_is_gone_and_goes_on_when_it_is_back(page: Browser) -> None:
    with Broker() as broker:
        visit(page, broker, "overview", "Processes of broker")
        broker.config["metrics.port"] = broker.metrics_url.rpartition(":")[2]
        broker.stop()
        page.await_text("the broker does not answer: is it running?", "#alert")
        shot(page, "broker-gone")
        kept = page.text("main")
        broker.start()
        wait_until(lambda: not page.text("#alert"), 60)

    assert "Processes of broker" in kept
