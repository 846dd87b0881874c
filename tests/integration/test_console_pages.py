"""The pages of the console in headless Chromium.

Texts of clients try to become markup everywhere: a script that ran would set ``window.hacked``,
and the browser would report a violation of the policy.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from urllib.parse import quote

import pytest
from support.surfaces.browser import Browser
from support.surfaces.console_calls import got
from support.surfaces.console_pages import ATTACK, checked, fits, shot, visit

from kbroker.client import KafkaProducer
from kbroker.client.admin.acls import Acl, create_acls
from kbroker.client.admin.quotas import alter_quotas
from kbroker.client.admin.topics import NewTopic, create_topics
from kbroker.client.admin.users import set_password
from kbroker.client.batches.offsets import commit
from kbroker.client.connections.cluster import Cluster
from kbroker.testing import Broker, wait_until

pytestmark = [pytest.mark.integration, pytest.mark.slow, pytest.mark.timeout(300)]

MEBIBYTE = 1 << 20


@pytest.fixture(scope="module")
def browser(tmp_path_factory) -> Iterator[Browser]:
    with Browser(tmp_path_factory.mktemp("browser")) as opened:
        opened.size(1200, 900)
        yield opened


@pytest.fixture
def page(browser: Browser) -> Iterator[Browser]:
    with checked(browser):
        yield browser


@pytest.fixture(scope="module")
def broker() -> Iterator[Broker]:
    """With hostile texts wherever clients choose them."""
    settings = {
        "authorizer.class.name": "kafka.security.authorizer.AclAuthorizer",
        "super.users": "User:ANONYMOUS",
        "group.initial.rebalance.delay.ms": 0,
    }
    with Broker(settings) as started, Cluster(started.bootstrap) as cluster:
        create_topics(cluster, [NewTopic("attacked", 2, 1), NewTopic("plain", 3, 1)])
        text = ATTACK.encode()
        with KafkaProducer(bootstrap_servers=started.bootstrap) as producer:
            producer.send("attacked", text, key=text, headers=[(ATTACK, text)], partition=0)
            producer.send("attacked", b'{"a": [1, {"big": 12345678901234567890}]}', partition=0)
            producer.send("attacked", b"\x00\xff\xfe binary", partition=1)
            producer.send("attacked", None, key=b"tombstone", partition=1)
            producer.send("attacked", b"y" * (MEBIBYTE - 1000) + b"END", partition=1)
        commit(cluster, ATTACK, {("attacked", 0): (1, "")})
        alter_quotas(cluster, (("user", ATTACK), ("client-id", None)), {"producer_byte_rate": 5e6})
        alter_quotas(cluster, (("client-id", ATTACK),), {"consumer_byte_rate": 1e9})
        create_acls(
            cluster, [Acl("TOPIC", "attacked", "LITERAL", f"User:{ATTACK}", "*", "READ", "ALLOW")]
        )
        set_password(cluster, ATTACK.split("\u202e")[0], "word", ["SCRAM-SHA-256"])
        yield started


PAGES = [
    ("overview", "Overview"),
    ("topics", "attacked"),
    ("topics/attacked", "1.0 MiB\nSize of leaders"),
    ("topics/attacked?tab=settings", "cleanup.policy"),
    ("topics/attacked?tab=messages", "tombstone"),
    ("groups", "onerror"),
    (f"groups/{quote(ATTACK, safe='')}", "Oldest unread record"),
    ("transactions", "No producer has used transactions yet"),
    ("reassignments", "No partition is being moved"),
    ("quotas", "onerror"),
    ("access", "onerror"),
    ("access?tab=users", "onerror"),
]


@pytest.mark.parametrize(("path", "text"), PAGES, ids=[path.split("%")[0] for path, _ in PAGES])
def test_page_shows_hostile_text_as_text_in_any_size_and_colour(
    page: Browser, broker: Broker, path: str, text: str
) -> None:
    visit(page, broker, path, text)
    name = path.split("%")[0].replace("/", "-").replace("?", "-")
    shot(page, f"{name}-wide")
    page.size(400, 800)
    narrow = fits(page)
    page.press("d")
    shot(page, f"{name}-narrow-other")
    page.press("d")

    assert narrow
    assert "\u202e" not in page.text("main")


def test_record_opens_with_headers_and_in_other_forms(page: Browser, broker: Broker) -> None:
    visit(page, broker, "topics/attacked?tab=messages&partitions=0&from=earliest", "12345")

    page.click("tr[data-record='0-0'] button")
    page.await_text("Headers")
    opened = page.text("tr[data-detail]")
    shot(page, "record-open")
    page.run(
        "const s = document.querySelector('tr[data-detail] select'); s.value = 'hex';"
        "s.dispatchEvent(new Event('change'))"
    )
    page.await_text("00000000  3c 69 6d 67", "tr[data-detail]")
    page.click("tr[data-record='0-1'] button")
    page.await_text('"big": 12345678901234567890')

    assert opened.count("<script>window.hacked=1</script>") == 4  # key, value, header and its name


def test_record_of_a_mebibyte_is_loaded_when_asked_for(page: Browser, broker: Broker) -> None:
    visit(page, broker, "topics/attacked?tab=messages&partitions=1", "binary")

    page.click("tr[data-record='1-2'] button")
    page.await_text("the beginning")
    began = time.monotonic()
    page.click_text("Load the whole record", "button")
    wait_until(
        lambda: page.run(
            "return [...document.querySelectorAll('tr[data-detail] pre')]"
            ".some((e) => e.textContent.endsWith('END'))"
        )
    )

    assert time.monotonic() - began < 10


def test_search_and_time_find_records(page: Browser, broker: Broker) -> None:
    visit(page, broker, "topics/attacked?tab=messages", "tombstone")

    page.type("input[type=search]", "binary")
    page.click_text("Read", "button")
    page.await_text("5 records searched")

    assert page.run("return document.querySelectorAll('tr[data-record]').length") == 1


def test_followed_topic_shows_what_is_written(page: Browser, broker: Broker) -> None:
    visit(page, broker, "topics/plain?tab=messages", "There are no records")

    page.click("#follow")
    with KafkaProducer(bootstrap_servers=broker.bootstrap) as producer:
        producer.send("plain", b"breaking news")
    page.await_text("breaking news")
    shot(page, "following")
    page.click("#follow")


def test_record_is_written_in_a_dialog(page: Browser, broker: Broker) -> None:
    visit(page, broker, "topics/plain?tab=messages", "Write a record")

    page.click("#produce")
    page.type("dialog textarea[name=value]", ATTACK.split("\u202e")[0])
    page.type("dialog textarea[name=headers]", "colour=green")
    shot(page, "produce-dialog")
    page.click_text("Write", "button")
    page.await_text("Written to partition")
    page.press("\ue00c")
    page.await_text("onerror", "main")

    (row,) = got(broker, "/topics/plain/messages?search=green&from=earliest")["records"]
    assert row["value"]["text"] == ATTACK.split("\u202e")[0]
    assert row["key"] is None


def test_topic_is_created_changed_and_deleted(page: Browser, broker: Broker) -> None:
    visit(page, broker, "topics", "Create a topic")

    page.click("#create")
    page.type("dialog input[name=name]", "bad name")
    page.click_text("Create", "button")
    page.await_text("INVALID_TOPIC_EXCEPTION", "dialog")
    shot(page, "create-dialog-refused")
    page.run("document.querySelector('dialog input[name=name]').value = ''")
    page.type("dialog input[name=name]", "made")
    page.type("dialog textarea", "retention.ms=1234567")
    page.click_text("Create", "button")
    page.await_text("made", "h1")
    visit(page, broker, "topics/made?tab=settings", "1234567")
    page.click("button[aria-label='Change retention.ms']")
    page.click("dialog input[type=checkbox]")
    page.click_text("Save", "button")
    wait_until(lambda: "1234567" not in page.text("main"))
    page.click_text("Delete", "button")
    page.type("dialog input[name=confirmation]", "made")
    page.run("document.querySelector('dialog button[type=submit]').click()")
    page.await_text("Create a topic")

    assert got(broker, "/topics?search=made")["total"] == 0


def test_topics_are_sorted_as_is_chosen(page: Browser, broker: Broker) -> None:
    visit(page, broker, "topics?internal=true", "attacked")
    choose = (
        "const box = [...document.querySelectorAll('main select')].find((each) => "
        "[...each.options].some((one) => one.value === arguments[0])); "
        "box.value = arguments[0]; box.dispatchEvent(new Event('change'))"
    )
    first = "return document.querySelector('main tbody td a').textContent"
    names = got(broker, "/topics?internal=true")["topics"]

    page.run(choose, "size")
    wait_until(lambda: "sort=size" in page.run("return location.hash"))
    wait_until(lambda: page.run(first) == "attacked")
    shot(page, "topics-by-size")
    page.run(choose, "rate")
    wait_until(lambda: "sort=rate" in page.run("return location.hash"))
    page.await_text("Records/s")
    page.run(choose, "name")

    wait_until(lambda: page.run(first) == min(row["name"] for row in names))


def test_reset_is_shown_before_it_is_done(page: Browser, broker: Broker) -> None:
    visit(page, broker, f"groups/{quote(ATTACK, safe='')}", "Reset offsets")

    page.click("#reset")
    page.click_text("Show what it does", "button")
    page.await_text("Nothing is changed yet", "dialog")
    shot(page, "reset-dialog")
    before = got(broker, "/group?group=" + quote(ATTACK, safe=""))["lag"]
    page.click_text("Reset", "button")
    page.await_text("The offsets are reset", "dialog")

    assert before == 1
    assert got(broker, "/group?group=" + quote(ATTACK, safe=""))["lag"] == 0


def test_empty_broker_shows_how_to_begin(page: Browser) -> None:
    """And what it shows works."""
    with Broker() as broker:
        visit(page, broker, "overview", "How to begin")
        shot(page, "empty-broker")
        snippets = page.run(
            "return [...document.querySelectorAll('pre')].map((e) => e.textContent)"
        )
        (python,) = [text for text in snippets if text.startswith("from kbroker.client")]
        seen: list[bytes] = []
        code = python.replace(
            "print(record.offset, record.value)", "seen.append(record.value); break"
        )
        exec(code, {"seen": seen})  # what users are told to run

        assert seen == [b"first record"]
        assert f"bootstrap.servers={broker.bootstrap}" in snippets


PAGES_OF_MANY = [
    # path, text, the most rows of tables, and requests of the API besides who asks
    # overview, findings, log directories, and the history of the broker and of names
    ("overview", "10,000", 40, 5),
    ("topics", "10,000 topics", 101, 1),
    ("topics?search=09999", "topic-09999", 2, 1),
    ("topics?skip=9900", "topic-09999", 101, 1),
    ("topics/topic-05000", "Size of leaders", 10, 2),
    ("topics/topic-05000?tab=messages", "There are no records", 10, 2),
    ("groups", "There are no groups yet", 10, 1),
]
ANSWER_BYTES_MAX = 100_000


def test_pages_of_ten_thousand_topics_take_and_show_a_page_of_them(page: Browser) -> None:
    """What they take does not grow with the topics that they do not show. How long it takes is
    for perf/monitoring.py to say.
    """
    with Broker({"partition.table.slots": 12_000}) as broker, Cluster(broker.bootstrap) as cluster:
        names = [f"topic-{number:05}" for number in range(10_000)]
        for at in range(0, len(names), 1000):
            made = create_topics(cluster, [NewTopic(name, 1, 1) for name in names[at : at + 1000]])
            assert not any(isinstance(row, Exception) for row in made.values())
        for path, text, rows, requests in PAGES_OF_MANY:
            visit(page, broker, path, text)
            shown = page.run("return document.querySelectorAll('main tr').length")
            taken = page.run(
                "return performance.getEntriesByType('resource')"
                ".filter((e) => e.name.includes('/api/')).map((e) => [e.name, e.encodedBodySize])"
            )
            assert shown <= rows, path
            own = [name for name, _ in taken if not name.endswith("/session")]
            assert 1 <= len(own) <= requests, taken
            assert len(taken) - len(own) <= 1, "who asks is asked once"
            assert sum(size for _, size in taken) < ANSWER_BYTES_MAX, taken
        visit(page, broker, "topics", "10,000 topics")
        shot(page, "topics-ten-thousand")
