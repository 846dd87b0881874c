"""The console's API over HTTP: the broker, topics, and what is rejected."""

from __future__ import annotations

import json
import os
import signal
import socket
import sys
import time
from collections.abc import Iterator

import pytest
from support.brokers.all_processes import wait_until_all_serve
from support.surfaces.console_calls import call, got

from kbroker.client import KafkaProducer
from kbroker.console.operation import LONG_MAX
from kbroker.testing import Broker, wait_until

pytestmark = pytest.mark.integration


@pytest.fixture(scope="module")
def broker() -> Iterator[Broker]:
    with Broker() as started:
        yield started


@pytest.fixture(scope="module")
def orders(broker: Broker) -> str:
    got(broker, "/topics", {"name": "orders", "partitions": 3})
    with KafkaProducer(bootstrap_servers=broker.bootstrap) as producer:
        for number in range(10):
            producer.send("orders", b"v" * 100, partition=number % 2)
        old = int(time.time() * 1000) - 7_200_000
        producer.send("orders", b"old", partition=2, timestamp_ms=old)
    return "orders"


def test_nothing_is_wrong_with_a_broker_that_is_well(broker: Broker) -> None:
    found = got(broker, "/findings")

    assert (found["findings"], found["unknown"]) == ([], [])


def test_stuck_process_is_a_finding_with_the_command_that_mends_it(broker: Broker) -> None:
    os.kill(broker.pids["cleaner-0"], signal.SIGSTOP)
    try:
        wait_until(lambda: got(broker, "/findings")["findings"])
        (found,) = got(broker, "/findings")["findings"]
        assert got(broker, "/overview")["health"]["status"] == "degraded"
    finally:
        os.kill(broker.pids["cleaner-0"], signal.SIGCONT)

    assert (found["subject"], found["kind"]) == ("cleaner-0 of broker 0", "process-stuck")
    assert found["command"] and found["cost"] and found["since_ms"]
    wait_until(lambda: not got(broker, "/findings")["findings"])


def test_history_has_rates_since_the_start_of_the_broker(broker: Broker) -> None:
    """Nobody has to have asked before."""
    wait_until(lambda: len(got(broker, "/history")["times"]) >= 2, 60)

    found = got(broker, "/history")

    assert (found["step_s"], found["left_out"]) == (10, 0)
    series = {row["what"]: row["points"] for row in found["series"]}
    assert series.keys() >= {"records_in", "bytes_in", "bytes_out", "requests", "connections"}
    assert all(len(points) == len(found["times"]) for points in series.values())
    (free,) = got(broker, "/history?of=log-dirs")["series"]
    assert free["points"][-1] > 0
    assert free["of"] == str(broker.data_dir)
    assert got(broker, "/history?span=day")["step_s"] == 300
    both = got(broker, "/history?of=broker,log-dirs&most=1")["series"]
    assert {row["of"] for row in both} == {"", str(broker.data_dir)}


def test_overview_has_brokers_processes_and_counts(broker: Broker, orders: str) -> None:
    found = got(broker, "/overview")

    assert [row["node"] for row in found["brokers"]] == [0]
    assert found["topics"] == 1 and found["partitions"] == 3
    assert found["offline"]["count"] == found["under_replicated"]["count"] == 0
    assert found["listeners"][0]["address"] == broker.bootstrap
    assert {row["name"] for row in found["health"]["processes"]} == set(broker.pids)


def test_log_dirs_have_sizes(broker: Broker, orders: str) -> None:
    (row,) = got(broker, "/log-dirs")["log_dirs"]

    assert row["replicas"] == 3 and row["bytes"] > 1000 and row["error"] is None


def test_topic_has_partitions_offsets_sizes_and_growth(broker: Broker, orders: str) -> None:
    found = got(broker, f"/topics/{orders}")

    assert [(row["start"], row["end"], row["leader"]) for row in found["rows"]] == [
        (0, 5, 0),
        (0, 5, 0),
        (0, 1, 0),
    ]
    assert found["records"] == 11
    assert found["bytes"] == sum(row["bytes"] for row in found["rows"]) > 1000
    assert found["growth"] == {"records_last_hour": 10, "records_last_day": 11}


def test_topics_are_searched_and_paged(broker: Broker, orders: str) -> None:
    for name in ("page-a", "page-b", "page-c"):
        got(broker, "/topics", {"name": name, "partitions": 1})

    found = got(broker, "/topics?search=page-&limit=2&skip=1")

    assert found["total"] == 3
    assert [row["name"] for row in found["topics"]] == ["page-b", "page-c"]
    for far in (2**31, LONG_MAX):
        behind = got(broker, f"/topics?search=page-&skip={far}")
        assert (behind["total"], behind["topics"], behind["next_cursor"]) == (3, [], None)
    for name in ("page-a", "page-b", "page-c"):
        got(broker, f"/topics/{name}", method="DELETE")
    assert got(broker, "/topics?search=page-")["total"] == 0


def test_topics_are_sorted_by_size_and_rate(broker: Broker) -> None:
    sizes = {"sort-a": 1, "sort-b": 40, "sort-c": 7}
    for name, size in sizes.items():
        got(broker, "/topics", {"name": name, "partitions": 2})
        _write(broker, name, 1, size * 1000)

    first = got(broker, "/topics?search=sort-&sort=size&limit=2")
    rest = got(broker, f"/topics?search=sort-&sort=size&limit=2&cursor={first['next_cursor']}")
    by_name = got(broker, "/topics?search=sort-")
    unknown = got(broker, "/topics?search=sort-&sort=rate")
    _write(broker, "sort-c", 50, 10)
    _write(broker, "sort-a", 5, 10)
    wait_until(lambda: got(broker, "/topics?search=sort-&sort=rate")["sorted"] == len(sizes))
    by_rate = got(broker, "/topics?search=sort-&sort=rate")["topics"]

    rows = first["topics"] + rest["topics"]
    assert (first["total"], first["sorted"]) == (3, 3)
    assert [row["name"] for row in rows] == ["sort-b", "sort-c", "sort-a"]
    assert [row["bytes"] for row in rows] == sorted((row["bytes"] for row in rows), reverse=True)
    assert [row["name"] for row in by_name["topics"]] == sorted(sizes)
    assert (by_name["sorted"], unknown["sorted"]) == (None, 0)
    assert [row["name"] for row in by_rate] == ["sort-c", "sort-a", "sort-b"]
    assert by_rate[0]["records_per_second"] > by_rate[1]["records_per_second"] > 0
    assert by_rate[2]["records_per_second"] == 0
    for name in sizes:
        got(broker, f"/topics/{name}", method="DELETE")


def _write(broker: Broker, topic: str, records: int, size: int) -> None:
    with KafkaProducer(bootstrap_servers=broker.bootstrap) as producer:
        for number in range(records):
            producer.send(topic, os.urandom(size), partition=number % 2)


def test_settings_are_changed_and_unset(broker: Broker, orders: str) -> None:
    path = f"/topics/{orders}/settings"

    got(broker, path, {"settings": {"retention.ms": "1000"}, "dry_run": True})
    before = {row["name"]: row for row in got(broker, path)["settings"]}
    got(broker, path, {"settings": {"retention.ms": "3600000"}})
    changed = {row["name"]: row for row in got(broker, path)["settings"]}
    got(broker, path, {"settings": {"retention.ms": None}})
    after = {row["name"]: row for row in got(broker, path)["settings"]}

    assert not before["retention.ms"]["own"]
    assert changed["retention.ms"]["own"] and changed["retention.ms"]["value"] == "3600000"
    assert after["retention.ms"] == before["retention.ms"]


def test_dry_run_creates_and_adds_nothing(broker: Broker, orders: str) -> None:
    got(broker, "/topics", {"name": "never", "dry_run": True})
    got(broker, f"/topics/{orders}/partitions", {"count": 5, "dry_run": True})

    assert got(broker, "/topics?search=never")["total"] == 0
    assert got(broker, f"/topics/{orders}")["partitions"] == 3


@pytest.mark.parametrize(
    ("path", "body", "status", "text"),
    [
        ("/topics?limit=0", None, 400, "limit: '0' is not allowed: a whole number, 1 to 500"),
        ("/topics?limit=1&limit=2", None, 400, "limit is given twice"),
        ("/topics?size=1", None, 400, "this path takes search, sort, internal, limit, skip"),
        ("/topics?internal=yes", None, 400, "true or false"),
        ("/topics?search=" + "x" * 300, None, 400, "text of at most 249 characters"),
        ("/topics?search=" + "x" * 7000, None, 400, "6000 characters"),
        ("/overview?x=1", None, 400, "this path takes no parameters"),
        ("/topics/nobody", None, 404, "topic nobody"),
        ("/nothing", None, 404, "/api/v1/openapi.json"),
        ("/topics", {"partitions": 1}, 400, "name is missing"),
        ("/topics", {"name": "a", "partitions": "1"}, 400, "a whole number, 1 to 100000"),
        ("/topics", {"name": "a", "partitions": True}, 400, "a whole number"),
        ("/topics", {"name": "a", "size": 1}, 400, "allowed: name, partitions"),
        ("/topics", {"name": "bad name"}, 400, "INVALID_TOPIC_EXCEPTION"),
        ("/topics", {"name": "orders"}, 409, "TOPIC_ALREADY_EXISTS"),
        ("/topics", {"name": "b", "settings": {"no.such": "1"}}, 400, "no.such"),
        ("/topics", [], 400, "must be a JSON object"),
        ("/topics", b"{", 400, "not JSON"),
        ("/topics", b"[" * 100_000, 400, "not JSON"),
        ("/topics", b'"' + b"x" * (3 << 20) + b'"', 413, "2097152 bytes"),
        ("/overview", {}, 405, "this path allows GET"),
        ("/topics?cursor=x", None, 400, "cursor: this is none"),
        ("/history?span=year", None, 400, "span: 'year' is not allowed: hour, day"),
        ("/history?of=broker,all", None, 400, "of: 'all' is not allowed: broker, topics"),
        ("/topics/orders/messages", {"key_base64": "\u00fc"}, 400, "key_base64 is not base64"),
    ],
)
def test_what_is_wrong_is_said_with_what_is_allowed(
    broker: Broker, orders: str, path: str, body: object, status: int, text: str
) -> None:
    answer = call(broker, path, body)

    assert answer.status == status
    assert text in answer.message
    assert answer.headers["Content-Type"] == "application/problem+json"
    assert answer.json.keys() == {"type", "title", "status", "detail", "code"}
    assert answer.json["status"] == status


def test_body_must_be_json(broker: Broker) -> None:
    answer = call(broker, "/topics", b"name=a", headers={"Content-Type": "text/plain"})

    assert answer.status == 415
    assert "application/json" in answer.message


@pytest.mark.parametrize(
    "headers",
    [
        {"Host": "evil.example"},
        {"Host": "evil.example:80"},
        {"Origin": "http://evil.example"},
        {"Origin": "null"},
        {"Sec-Fetch-Site": "cross-site"},
    ],
)
def test_pages_of_other_sites_change_nothing(broker: Broker, headers: dict[str, str]) -> None:
    """Neither by the user's own browser, nor under a name that points to this machine."""
    answer = call(broker, "/topics", {"name": "stolen"}, headers=headers)

    assert answer.status == 403
    assert got(broker, "/topics?search=stolen")["total"] == 0


def test_every_response_forbids_scripts_of_others(broker: Broker) -> None:
    for path in ("//console/", "//console/app.js", "/overview", "/nothing", "//login"):
        answer = call(broker, path)
        policy = answer.headers["Content-Security-Policy"]
        assert "default-src 'none'" in policy and "'unsafe" not in policy, path
        assert answer.headers["X-Content-Type-Options"] == "nosniff"


def test_pages_name_nothing_outside_of_the_broker(broker: Broker) -> None:
    page = call(broker, "//").body.decode()

    assert '<script type="module" src="app.js">' in page
    assert "://" not in page and "onclick" not in page and "style=" not in page


@pytest.mark.parametrize(
    "path",
    ["//console/..%2fapplication.py", "//console/%2e%2e/application.py", "//console/nothing.js"],
)
def test_other_files_are_not_served(broker: Broker, path: str) -> None:
    assert call(broker, path).status == 404


def test_openapi_names_every_operation(broker: Broker) -> None:
    from kbroker.console.operations import OPERATIONS

    found = got(broker, "/openapi.json")

    named = {(method.upper(), path) for path, row in found["paths"].items() for method in row}
    assert named == {(each.method, each.path) for each in OPERATIONS}
    parameters = found["paths"]["/topics"]["get"]["parameters"]
    (limit,) = (row for row in parameters if row["name"] == "limit")
    assert limit["schema"] == {"type": "integer", "minimum": 1, "maximum": 500, "default": 100}


def raw_request(broker: Broker, data: bytes, seconds: float) -> bytes:
    """What comes within this time, or until the end."""
    host, _, port = broker.metrics_url.removeprefix("http://").rpartition(":")
    with socket.create_connection((host, int(port)), timeout=seconds) as sock:
        sock.sendall(data)
        response = b""
        try:
            while piece := sock.recv(65536):
                response += piece
        except TimeoutError:
            pass  # the exporter waits for more, as the caller may expect
        return response


def test_second_request_of_a_connection_is_not_served(broker: Broker) -> None:
    """The exporter looks at the first alone; others may be for it."""
    one = b"GET /console/ HTTP/1.1\r\nHost: localhost\r\n\r\n"

    response = raw_request(broker, one + b"GET /metrics HTTP/1.1\r\nHost: localhost\r\n\r\n", 30)

    assert response.count(b"HTTP/1.1 ") == 1
    assert b"connection: close" in response.lower()


@pytest.mark.slow
def test_bodies_that_never_come_hold_up_nobody(broker: Broker) -> None:
    head = (
        b"POST /api/v1/topics HTTP/1.1\r\nHost: localhost\r\n"
        b"Content-Type: application/json\r\nContent-Length: 10\r\n\r\n"
    )
    host, _, port = broker.metrics_url.removeprefix("http://").rpartition(":")
    slow = [socket.create_connection((host, int(port)), timeout=60) for _ in range(20)]
    for sock in slow:
        sock.sendall(head)

    assert got(broker, "/overview")["broker"] == 0
    assert b" 408 " in slow[0].recv(65536).splitlines()[0]
    for sock in slow:
        sock.close()


def test_console_is_off_where_others_could_reach_it() -> None:
    with Broker(metrics_host="0.0.0.0") as broker:
        off = call(broker, "/overview")
    with Broker(metrics_host="0.0.0.0", console_enable="true") as broker:
        on = call(broker, "/overview")
    with Broker(console_enable="false") as broker:
        disabled = call(broker, "//console/")
        wait_until_all_serve(broker)
        health = call(broker, "//health")

    assert off.status == disabled.status == 404
    assert b"console.enable=true" in off.body
    assert on.status == health.status == 200


def test_exporter_loads_the_console_when_it_is_opened() -> None:
    """Until then, a broker has no memory of it."""
    with Broker(command=[sys.executable, "-m", "kbroker.cli.start"]) as broker:

        def anonymous_kib() -> int:
            with open(f"/proc/{broker.pids['exporter-0']}/status") as file:
                line = next(line for line in file if line.startswith("RssAnon:"))
            return int(line.split()[1])

        wait_until_all_serve(broker)
        call(broker, "//metrics")
        before = anonymous_kib()
        got(broker, "/overview")
        opened = anonymous_kib()

        assert opened - before > 4096
        assert json.loads(call(broker, "//health").body)["status"] == "ok"
