"""The console's API over HTTP: records read, searched, followed and written."""

from __future__ import annotations

import base64
import time
from collections.abc import Iterator
from urllib.parse import quote

import pytest
from support.surfaces.console_calls import call, got

from kbroker.client import KafkaProducer
from kbroker.testing import Broker

pytestmark = pytest.mark.integration

HOUR_MS = 3_600_000
NASTY = "<script>alert(1)</script>\u202e\x00"


@pytest.fixture(scope="module")
def broker() -> Iterator[Broker]:
    with Broker() as started:
        yield started


@pytest.fixture(scope="module")
def now_ms() -> int:
    return int(time.time() * 1000)


@pytest.fixture(scope="module")
def logged(broker: Broker, now_ms: int) -> str:
    """Two partitions whose records alternate in time: a0, b0, a1, b1, ..."""
    got(broker, "/topics", {"name": "logged", "partitions": 2})
    with KafkaProducer(bootstrap_servers=broker.bootstrap) as producer:
        for number in range(100):
            for partition, letter in enumerate("ab"):
                producer.send(
                    "logged",
                    f"{letter}{number}{' Needle' if number == 77 else ''}".encode(),
                    key=f"key-{number}".encode(),
                    headers=[("h", b"\xff\xfe" if number == 5 else b"head")],
                    partition=partition,
                    timestamp_ms=now_ms - HOUR_MS * 2 + number * 60_000 + partition,
                )
    return "logged"


def texts(found: dict) -> list[str]:
    return [row["value"]["text"] for row in found["records"]]


def test_newest_records_are_in_order_of_time(broker: Broker, logged: str) -> None:
    found = got(broker, f"/topics/{logged}/messages?limit=4")

    assert texts(found) == ["a98", "b98", "a99", "b99"]
    assert found["complete"] and found["next"] == [100, 100]


def test_oldest_records_continue_where_the_last_call_ended(broker: Broker, logged: str) -> None:
    path = f"/topics/{logged}/messages"

    first = got(broker, f"{path}?from=earliest&limit=3")
    following = ",".join(map(str, first["next"]))
    second = got(broker, f"{path}?positions={following}&limit=3")

    assert texts(first) == ["a0", "b0", "a1"]
    assert first["next"] == [2, 1] and not first["complete"]
    assert texts(second) == ["b1", "a2", "b2"]


def test_every_record_is_read_once_over_many_calls(broker: Broker, logged: str) -> None:
    path, seen, query = f"/topics/{logged}/messages", [], "from=earliest"
    while True:
        found = got(broker, f"{path}?{query}&limit=7")
        seen += [(row["partition"], row["offset"]) for row in found["records"]]
        if found["complete"]:
            break
        query = "positions=" + ",".join(map(str, found["next"]))

    assert sorted(seen) == [(partition, offset) for partition in (0, 1) for offset in range(100)]


def test_records_are_found_by_offset_and_time(broker: Broker, logged: str, now_ms: int) -> None:
    path = f"/topics/{logged}/messages?limit=2"
    at = now_ms - HOUR_MS * 2 + 50 * 60_000

    by_offset = got(broker, f"{path}&partitions=1&from=offset&offset=40")
    by_time = got(broker, f"{path}&from=time&time={at}")
    after_all = got(broker, f"{path}&from=time&time={now_ms + HOUR_MS}")
    beyond = got(broker, f"{path}&partitions=1&from=offset&offset=4000")

    assert texts(by_offset) == ["b40", "b41"]
    assert texts(by_time) == ["a50", "b50"]
    assert after_all["records"] == beyond["records"] == []


@pytest.mark.parametrize(
    ("query", "expected"),
    [
        ("search=needle", ["a77 Needle", "b77 Needle"]),
        ("search=NEEDLE&in=value", ["a77 Needle", "b77 Needle"]),
        ("search=needle&in=key", []),
        ("search=key-12&in=key", ["a12", "b12"]),
        ("search=b99", ["b99"]),
    ],
)
def test_search_finds_text(broker: Broker, logged: str, query: str, expected: list[str]) -> None:
    found = got(broker, f"/topics/{logged}/messages?from=earliest&{query}")

    assert texts(found) == expected
    assert found["scanned"] == 200 and found["complete"]


def test_search_ends_at_its_bound_and_says_where(broker: Broker, logged: str) -> None:
    found = got(broker, f"/topics/{logged}/messages?from=earliest&search=needle&scan=50")

    assert found["records"] == [] and not found["complete"]
    assert found["scanned"] == 50 and found["next"] == [25, 25]


def test_following_returns_what_was_written_since(broker: Broker, logged: str) -> None:
    got(broker, "/topics", {"name": "followed", "partitions": 1})
    path = "/topics/followed/messages"
    before = got(broker, path)

    got(broker, path, {"value": "news"})
    after = got(broker, f"{path}?positions={before['next'][0]}")

    assert texts(after) == ["news"]
    assert after["next"] == [1]


def test_written_record_comes_back_as_it_was(broker: Broker) -> None:
    got(broker, "/topics", {"name": "written", "partitions": 4})
    body = {"key": NASTY, "value": NASTY, "headers": {NASTY: NASTY, "none": None}}

    made = got(broker, "/topics/written/messages", body)
    place = f"partition={made['partition']}&offset={made['offset']}"
    found = got(broker, f"/topics/written/message?{place}")

    assert found["key"]["text"] == found["value"]["text"] == NASTY
    assert found["headers"][0]["name"]["text"] == NASTY
    assert found["headers"][1]["value"] is None


def test_bytes_are_base64_and_a_null_is_null(broker: Broker) -> None:
    got(broker, "/topics", {"name": "binary", "partitions": 1})
    data = base64.b64encode(b"\x00\xff").decode()

    got(broker, "/topics/binary/messages", {"key_base64": data, "partition": 0})
    (row,) = got(broker, "/topics/binary/messages")["records"]

    assert row["key"] == {"size": 2, "cut": False, "base64": data}
    assert row["value"] is None


def test_record_of_a_mebibyte_is_cut_in_lists_and_whole_alone(broker: Broker) -> None:
    got(broker, "/topics", {"name": "large", "partitions": 1})
    text = "ä" * (500 << 10)

    got(broker, "/topics/large/messages", f'{{"value": "{text}"}}'.encode())
    (row,) = got(broker, "/topics/large/messages?bytes=999")["records"]
    whole = got(broker, "/topics/large/message?partition=0&offset=0")

    # In the middle of a character.
    assert row["value"] == {"size": 1000 << 10, "cut": True, "text": "ä" * 499}
    assert whole["value"]["text"] == text


def test_keys_go_where_a_producer_sends_them(broker: Broker) -> None:
    got(broker, "/topics", {"name": "keyed", "partitions": 50})
    keys = ["", "a", "ab", "abc", "abcd", "abcde", "ключ", "k" * 1000]
    with KafkaProducer(bootstrap_servers=broker.bootstrap) as producer:
        sent = [producer.send("keyed", b"", key=key.encode()).result().partition for key in keys]

    chosen = [
        got(broker, "/topics/keyed/messages", {"key": key, "value": ""})["partition"]
        for key in keys
    ]

    assert chosen == sent


def test_committed_records_leave_out_aborted_ones(broker: Broker) -> None:
    got(broker, "/topics", {"name": "transactional", "partitions": 1})
    producer = KafkaProducer(bootstrap_servers=broker.bootstrap, transactional_id="t")
    with producer:
        producer.init_transactions()
        producer.begin_transaction()
        producer.send("transactional", b"aborted").result()
        producer.abort_transaction()
        producer.begin_transaction()
        producer.send("transactional", b"committed")
        producer.commit_transaction()

    path = "/topics/transactional/messages?from=earliest"

    assert texts(got(broker, path)) == ["aborted", "committed"]
    assert texts(got(broker, f"{path}&read_committed=true")) == ["committed"]


@pytest.mark.parametrize(
    ("path", "status", "text"),
    [
        ("/topics/logged/messages?from=start", 400, "earliest, latest, offset, time"),
        ("/topics/logged/messages?from=offset", 400, "from=offset needs offset"),
        ("/topics/logged/messages?from=time", 400, "milliseconds since 1970"),
        ("/topics/logged/messages?partitions=0,7", 400, "no partition 7, but 0 to 1"),
        ("/topics/logged/messages?partitions=x", 400, "whole numbers"),
        ("/topics/logged/messages?positions=1", 400, "1 offsets for 2 partitions"),
        ("/topics/logged/messages?offset=-1", 400, "a whole number, 0 or more"),
        ("/topics/logged/messages?limit=501", 400, "1 to 500"),
        ("/topics/logged/messages?in=values", 400, "any, key, value, headers"),
        ("/topics/none/messages", 404, "topic none"),
        ("/topics/logged/message?partition=0", 400, "offset is missing"),
        ("/topics/logged/message?partition=0&offset=100", 404, "the offsets 0 to 100"),
    ],
)
def test_wrong_readings_are_explained(
    broker: Broker, logged: str, path: str, status: int, text: str
) -> None:
    answer = call(broker, path)

    assert answer.status == status
    assert text in answer.message


@pytest.mark.parametrize(
    ("body", "text"),
    [
        ({"value": "x", "partition": 9}, "no partition 9"),
        ({"value": "x", "value_base64": "eA=="}, "either value or value_base64"),
        ({"value_base64": "%"}, "not base64"),
        ({"value": "\ud800"}, "surrogate"),
        ({"value": 1}, "text of at most"),
        ({"value": "x" * (1 << 20) + "x"}, "at most 1048576"),
    ],
)
def test_wrong_records_are_not_written(broker: Broker, logged: str, body: dict, text: str) -> None:
    answer = call(broker, f"/topics/{logged}/messages", body)

    assert answer.status == 400
    assert text in answer.message
    assert got(broker, f"/topics/{logged}/messages")["next"] == [100, 100]


def test_topic_of_many_partitions_asks_for_some(broker: Broker) -> None:
    got(broker, "/topics", {"name": "many", "partitions": 100})
    got(broker, "/topics/many/messages", {"value": "x", "partition": 99})

    refused = call(broker, "/topics/many/messages")
    some = got(broker, f"/topics/many/messages?partitions={quote('98,99')}")

    assert refused.status == 400 and "up to 64" in refused.message
    assert texts(some) == ["x"]


def test_records_say_what_became_of_their_transactions(broker: Broker) -> None:
    got(broker, "/topics", {"name": "marked", "partitions": 1})
    with (
        KafkaProducer(bootstrap_servers=broker.bootstrap, transactional_id="ends") as ends,
        KafkaProducer(bootstrap_servers=broker.bootstrap, transactional_id="opens") as opens,
        KafkaProducer(bootstrap_servers=broker.bootstrap) as plain,
    ):
        for producer in (ends, opens):
            producer.init_transactions()
        plain.send("marked", b"plain").result()
        for value, end in ((b"no", ends.abort_transaction), (b"yes", ends.commit_transaction)):
            ends.begin_transaction()
            ends.send("marked", value).result()
            end()
        opens.begin_transaction()
        opens.send("marked", b"open").result()
        plain.send("marked", b"behind").result()

        found = got(broker, "/topics/marked/messages?from=earliest")
        committed = got(broker, "/topics/marked/messages?from=earliest&read_committed=true")
        opens.commit_transaction()
    later = got(broker, "/topics/marked/messages?from=earliest&read_committed=true")

    marks = [(row["value"]["text"], row["transaction"]) for row in found["records"]]
    assert marks == [
        ("plain", None),
        ("no", "aborted"),
        ("yes", "committed"),
        ("open", "open"),
        ("behind", "waiting"),
    ]
    (row,) = found["partitions"]
    assert row["stable"] == found["records"][3]["offset"] < row["end"]
    assert texts(committed) == ["plain", "yes"]
    assert texts(later) == ["plain", "yes", "open", "behind"]


def test_chosen_records_are_written_again_as_they_are(broker: Broker, logged: str) -> None:
    got(broker, "/topics", {"name": "again", "partitions": 3})
    body = {"source": logged, "partitions": [1, 0], "offsets": [5, 7]}

    tried = got(broker, "/topics/again/replay", body | {"dry_run": True})
    nothing = got(broker, "/topics/again/messages?from=earliest")["records"]
    done = got(broker, "/topics/again/replay", body | {"timestamps": "kept"})
    found = got(broker, "/topics/again/messages?from=earliest")["records"]

    assert [row["to_offset"] for row in tried["records"]] == [None, None] and nothing == []
    places = {(row["to_partition"], row["to_offset"]) for row in done["records"]}
    assert places == {(row["partition"], row["offset"]) for row in found}
    originals = [
        got(broker, f"/topics/{logged}/message?partition={number}&offset={offset}")
        for number, offset in zip(body["partitions"], body["offsets"], strict=True)
    ]
    for each in (*originals, *found):
        del each["partition"], each["offset"]
    assert sorted(found, key=str) == sorted(originals, key=str)


@pytest.mark.parametrize(
    ("change", "status", "text"),
    [
        ({"offsets": [0, 1]}, 400, "1 and 2 numbers"),
        ({"offsets": [], "partitions": []}, 400, "0 records, 1 to 500"),
        ({"offsets": [100]}, 404, "no record at offset 100"),
        ({"source": "nothing"}, 404, "topic nothing"),
        ({"partitions": [1], "partition_by": "same"}, 400, "use partition_by=key"),
    ],
)
def test_replay_of_what_is_not_there_writes_nothing(
    broker: Broker, logged: str, change: dict, status: int, text: str
) -> None:
    if not got(broker, "/topics?search=narrow")["total"]:
        got(broker, "/topics", {"name": "narrow", "partitions": 1})
    body = {"source": logged, "partitions": [0], "offsets": [0]} | change

    answer = call(broker, "/topics/narrow/replay", body)

    assert (answer.status, text in answer.message) == (status, True), answer.body
    assert got(broker, "/topics/narrow/messages")["records"] == []
