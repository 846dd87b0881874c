"""Each form of the console in headless Chromium, by keyboard alone, in every size and colour;
records that are followed, exported and replayed; logging out.
"""

from __future__ import annotations

import json
from collections.abc import Iterator

import pytest
from support.security.secured import PASSWORDS, Site
from support.surfaces.browser import Browser
from support.surfaces.console_calls import got
from support.surfaces.console_pages import checked, fits, shot, visit

from kbroker.client import KafkaProducer
from kbroker.client.batches.offsets import commit
from kbroker.client.connections.cluster import Cluster
from kbroker.testing import Broker, wait_until

pytestmark = [pytest.mark.integration, pytest.mark.slow, pytest.mark.timeout(900)]

TAB, ENTER, ESCAPE, DOWN = "\ue004", "\ue007", "\ue00c", "\ue015"
TABS_MAX = 80
RECORDS = 500
# As many as take a page that follows them half a minute.
MANY_RECORDS = 200_000
# Where the focus is, and whether what has it can be seen.
FOCUS = """
const e = document.activeElement;
const r = e.getBoundingClientRect();
return [e.matches(arguments[0]) && e.textContent.trim().includes(arguments[1]),
        r.left >= -1 && r.right <= innerWidth + 1];
"""
# Neither the dialog nor what is in it is cut off.
INSIDE = """
const d = document.querySelector("dialog");
const r = d.getBoundingClientRect();
const within = (e) => {
  const box = e.getBoundingClientRect();
  return e.offsetParent === null || (box.left >= r.left && box.right <= r.right);
};
return r.left >= 0 && r.right <= innerWidth && r.top >= 0 && r.bottom <= innerHeight
  && [...d.querySelectorAll("input, select, textarea, button")].every(within);
"""
# The link to the page that is shown, in a row that may be wider than the window.
HERE_IS_SEEN = """
const r = document.querySelector("#nav a[aria-current]").getBoundingClientRect();
return r.left >= 0 && r.right <= innerWidth;
"""
LONG = "long." * 49 + "name"


@pytest.fixture(scope="module")
def browser(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Browser]:
    with Browser(tmp_path_factory.mktemp("browser")) as opened:
        yield opened


@pytest.fixture
def page(browser: Browser) -> Iterator[Browser]:
    with checked(browser):
        yield browser


@pytest.fixture(scope="module")
def broker() -> Iterator[Broker]:
    settings = {
        "authorizer.class.name": "kafka.security.authorizer.AclAuthorizer",
        "super.users": "User:ANONYMOUS",
    }
    with Broker(settings) as started:
        got(started, "/topics", {"name": "orders", "partitions": 2})
        got(started, "/topics", {"name": "again", "partitions": 1})
        got(started, "/topics", {"name": LONG, "partitions": 1})
        got(started, "/topics", {"name": "many", "partitions": 1})
        with KafkaProducer(bootstrap_servers=started.bootstrap) as producer:
            for number in range(RECORDS):
                producer.send("orders", f"v{number}".encode(), key=b"k", partition=0)
            for number in range(MANY_RECORDS):
                producer.send("many", f"v{number}".encode())
        yield started


def reach(page: Browser, selector: str, text: str = "") -> None:
    """Move the focus there, as somebody without a mouse does."""
    for _ in range(TABS_MAX):
        is_there, is_seen = page.run(FOCUS, selector, text)
        if is_there:
            assert is_seen, f"{selector} has the focus out of sight"
            return
        page.press(TAB)
    raise AssertionError(f"{selector} {text!r} is not reached by the tab key")


def push(page: Browser, selector: str, text: str = "") -> None:
    reach(page, selector, text)
    page.press(ENTER)


def write(page: Browser, selector: str, text: str) -> None:
    reach(page, selector)
    page.press(*text)


def close(page: Browser) -> None:
    page.press(ESCAPE)
    wait_until(lambda: not page.text("dialog"))


@pytest.mark.parametrize("theme", ["light", "dark"])
@pytest.mark.parametrize("width", [1440, 768, 400])
def test_forms_are_used_without_a_mouse(
    page: Browser, broker: Broker, width: int, theme: str
) -> None:
    name = f"{theme}-{width}"
    with Cluster(broker.bootstrap) as cluster:
        commit(cluster, name, {("orders", 0): (5, ""), (LONG, 0): (0, "")})
    page.size(width, 900)

    def begin(path: str, text: str, selector: str, button: str = "") -> None:
        visit(page, broker, path, text)
        page.run("document.documentElement.dataset.theme = arguments[0]", theme)
        assert fits(page), path
        assert page.run(HERE_IS_SEEN), path
        push(page, selector, button)
        page.await_text("", "dialog")
        assert page.run(INSIDE), f"the dialog of {path} is larger than the window"

    begin("access", "ACL", "button", "Create an ACL")
    write(page, "dialog input[name=principal]", f"User:{name}")
    write(page, "dialog input[name=name]", "orders")
    shot(page, f"acl-{name}")
    push(page, "dialog button", "Create")
    page.await_text(f"User:{name}", "main")
    (acl,) = got(broker, f"/acls?search={name}")["acls"]
    assert (acl["operation"], acl["permission"], acl["name"]) == ("READ", "ALLOW", "orders")

    begin("access?tab=users", "SCRAM", "button", "Add a user")
    write(page, "dialog input[name=user]", name)
    write(page, "dialog input[name=password]", "word")
    shot(page, f"user-{name}")
    push(page, "dialog button", "Save")
    page.await_text(name, "main")
    assert name in [row["user"] for row in got(broker, "/users")["users"]]

    begin("quotas", "Quotas", "#set")
    write(page, "dialog input[name=user]", name)
    write(page, "dialog input[name=producer_byte_rate]", "2097152")
    shot(page, f"quota-{name}")
    push(page, "dialog button", "Save")
    page.await_text(name, "main")
    (quota,) = got(broker, f"/quotas?search={name}")["quotas"]
    assert quota["quotas"] == {"producer_byte_rate": 2097152.0}

    begin("reassignments", "Reassignments", "#move")
    write(page, "dialog input[name=topic]", "orders")
    write(page, "dialog input[name=replicas]", "0")
    push(page, "dialog button", "Show what it does")
    page.await_text("From brokers 0 to 0", "dialog")
    shot(page, f"move-{name}")
    close(page)

    begin("reassignments", "Reassignments", "#plan")
    write(page, "dialog input[name=brokers]", "0")
    push(page, "dialog button", "Show the plan")
    page.await_text("no broker would be left", "dialog")
    shot(page, f"plan-{name}")
    assert page.run(INSIDE)
    close(page)

    begin(f"groups/{name}", "Oldest unread record", "#reset")
    push(page, "dialog button", "Show what it does")
    page.await_text("Nothing is changed yet", "dialog")
    shot(page, f"reset-{name}")
    assert page.run(INSIDE)
    push(page, "dialog button.danger", "Reset")
    page.await_text("The offsets are reset", "dialog")
    close(page)
    assert got(broker, f"/group?group={name}")["lag"] == 0


def test_plan_with_nothing_to_move_cannot_be_begun(page: Browser) -> None:
    with Broker() as broker:
        got(broker, "/topics", {"name": "t", "partitions": 1})
        for width in (1440, 768, 400):
            page.size(width, 900)
            visit(page, broker, "reassignments", "No partition is being moved")
            page.click("#plan")
            page.run(
                "const s = document.querySelector('dialog select[name=intent]');"
                "s.value = 'balance'; s.dispatchEvent(new Event('input', { bubbles: true }))"
            )
            hidden = page.run(
                "return document.querySelector('dialog input[name=brokers]').offsetParent === null"
            )
            page.click_text("Show the plan", "button")
            page.await_text("Nothing has to move", "dialog")
            begin = page.run("return document.querySelector('dialog button.danger').disabled")
            shot(page, f"plan-empty-{width}")

            assert hidden and begin


def test_follower_that_is_behind_skips_to_now(page: Browser, broker: Broker) -> None:
    visit(page, broker, "topics/many?tab=messages&from=earliest", "50 records shown")

    push(page, "#follow")
    page.await_text("records behind")
    shot(page, "behind")
    push(page, "#skip")
    page.await_text("records skipped")
    page.await_text("up to now")
    shot(page, "skipped")
    wait_until(lambda: page.run("return document.activeElement.id") == "follow")
    page.press(ENTER)

    assert page.text("#follow") == "Follow"


def test_records_are_exported_and_chosen_ones_replayed(page: Browser, broker: Broker) -> None:
    visit(page, broker, "topics/orders?tab=messages&partitions=0", "50 records shown")
    page.run(
        "const make = URL.createObjectURL;"
        "URL.createObjectURL = (blob) => {"
        " blob.text().then((text) => (window.taken = text)); return make.call(URL, blob); }"
    )

    push(page, "#export")
    wait_until(lambda: page.run("return window.taken || ''"))
    lines = page.run("return window.taken").splitlines()
    reach(page, "tr[data-record] input")
    page.press(" ", DOWN, " ")
    push(page, "#replay", "Replay 2 records")
    page.run("document.querySelector('dialog input[name=topic]').value = ''")
    write(page, "dialog input[name=topic]", "again")
    shot(page, "replay-dialog")
    push(page, "dialog button", "Write them")
    page.await_text("2 records written to again", "dialog")
    shot(page, "replayed")
    close(page)

    exported = [json.loads(line) for line in lines]
    assert [row["offset"] for row in exported] == list(range(RECORDS - 50, RECORDS))
    assert exported[0]["topic"] == "orders" and exported[0]["key"]["text"] == "k"
    copies = got(broker, "/topics/again/messages?from=earliest")["records"]
    assert [row["value"]["text"] for row in copies] == [f"v{RECORDS - 2}", f"v{RECORDS - 1}"]


def test_user_who_is_logged_in_is_named_and_may_log_out(
    page: Browser, tmp_path_factory: pytest.TempPathFactory
) -> None:
    site = Site(tmp_path_factory.mktemp("site"))
    with Broker(site.settings("SASL_PLAINTEXT", mechanisms="PLAIN")) as broker:
        host = broker.metrics_url.removeprefix("http://")
        page.open(f"http://admin:{PASSWORDS['admin']}@{host}/login")
        page.await_text("admin", "header")
        shot(page, "logged-in")
        assert page.text("#logout") == "Log out"
