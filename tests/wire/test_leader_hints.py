"""Leaders in responses of Fetch and Produce to clients that have asked another broker (KIP-951)."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from support.network.net_loop_harness import (
    TOPIC_ID,
    Harness,
    answers,
    partitions_of,
    produce,
    received,
    result,
)
from support.network.network_process import topic_document
from support.storage.fetch_log import FetchBench, follower_fields

from kbroker._ext.shared.partition_table import FOLLOWER
from kbroker.cluster.image import ClusterImage
from kbroker.ipc.calls import ImageDocument
from kbroker.workers.network.leader_hints import LeaderHints

pytestmark = pytest.mark.wire

NOT_LEADER, FENCED, UNKNOWN_EPOCH = 6, 74, 75
LEADER, OTHER, GONE = 7, 8, 9
EPOCH = 3
INSIDE, OUTSIDE = range(2)
LISTENERS = ["INSIDE", "OUTSIDE"]


def image(*leaders: int, name: str = "t") -> ClusterImage:
    """Topic t whose partitions these brokers lead; broker GONE is not live."""
    found = ClusterImage()
    document = topic_document(TOPIC_ID, [-1] * len(leaders), leader_epoch=EPOCH)
    rows = zip(document["partitions"], leaders, strict=True)
    document["partitions"] = [partition._replace(leader=leader) for partition, leader in rows]
    brokers = {
        str(number): {
            "endpoints": [
                ["INSIDE", f"in-{number}", 9000 + number, "PLAINTEXT"],
                ["OUTSIDE", f"out-{number}", 9100 + number, "PLAINTEXT"],
            ],
            "rack": rack,
        }
        for number, rack in ((LEADER, "r" * 200), (OTHER, None))
    }
    delta: ImageDocument = {"version": 1, "brokers": brokers, "topics": {name: document}}
    found.apply(delta)
    return found


def hints(*leaders: int, name: str = "t") -> Any:
    known = image(*leaders, name=name)
    return lambda listener: LeaderHints(known, LISTENERS[listener])


def leader_of(partition: Any) -> tuple[int, int] | None:
    found = partition.current_leader
    return None if found is None else (found.leader_id, found.leader_epoch)


def nodes(response: Any) -> list[tuple[int, str, int, str | None]]:
    return [(one.node_id, one.host, one.port, one.rack) for one in response.node_endpoints]


@pytest.fixture
def bench(tmp_path: Path) -> FetchBench:
    made = FetchBench(tmp_path)
    for log in made.topic(partitions=3):
        log.append()
        made.table.set_role(log.slot, FOLLOWER, EPOCH, 0)
    made.engine.encoder.find_leaders = hints(LEADER, OTHER, LEADER)
    return made


def fetch(bench: FetchBench, version: int, epoch: int = EPOCH, **fields: Any) -> Any:
    """As a follower, which is served by leaders only."""
    wanted = {("t", number): 0 for number in range(3)}
    fields |= follower_fields(2, version)
    return bench.fetch(wanted, version, leader_epoch=epoch, **fields)


@pytest.mark.parametrize("version", [16, 17, 18])
@pytest.mark.parametrize(("epoch", "code"), [(EPOCH, NOT_LEADER), (EPOCH - 1, FENCED)])
def test_fetch_from_the_wrong_broker_is_told_leaders_and_addresses(bench, version, epoch, code):
    response = fetch(bench, version, epoch)

    found = bench.partitions(response).values()
    assert [one.error_code for one in found] == [code] * 3
    assert [leader_of(one) for one in found] == [(LEADER, 3), (OTHER, 3), (LEADER, 3)]
    assert nodes(response) == [
        (LEADER, "in-7", 9007, "r" * 200),
        (OTHER, "in-8", 9008, None),
    ]


def test_fetch_that_fails_otherwise_is_told_nothing(bench):
    response = fetch(bench, 17, EPOCH + 1)

    assert {one.error_code for one in bench.partitions(response).values()} == {UNKNOWN_EPOCH}
    assert [leader_of(one) for one in bench.partitions(response).values()] == [None] * 3
    assert nodes(response) == []


@pytest.mark.parametrize("version", [12, 15])
def test_fetch_of_an_older_version_is_told_nothing(bench, version):
    response = fetch(bench, version)

    assert {leader_of(one) for one in bench.partitions(response).values()} == {None}


def test_fetch_that_waited_when_the_leader_changed_is_told_the_new_one(bench):
    bench.table.set_role(0, FOLLOWER, EPOCH - 1, 0)
    fields = {"leader_epoch": EPOCH - 1, "max_wait_ms": 500}
    assert bench.start({("t", 0): 1}, 17, **fields) is None

    bench.table.set_role(0, FOLLOWER, EPOCH, 0)
    bench.engine.wake_slot(0, bench.now_ms)

    (response,) = bench.completed(17).values()
    assert leader_of(bench.only(response)) == (LEADER, EPOCH)
    assert [node[0] for node in nodes(response)] == [LEADER]


@pytest.mark.parametrize(
    ("leaders", "told", "addresses"),
    [
        ((GONE, -1, GONE), [(GONE, EPOCH), None, (GONE, EPOCH)], []),
        ((LEADER,), [(LEADER, EPOCH), None, None], [LEADER]),
    ],
    ids=["not live or unknown", "fewer partitions"],
)
def test_only_what_the_image_has_is_told(bench, leaders, told, addresses):
    bench.engine.encoder.find_leaders = hints(*leaders)

    response = fetch(bench, 17)

    assert [leader_of(one) for one in bench.partitions(response).values()] == told
    assert [node[0] for node in nodes(response)] == addresses


def test_topic_that_the_image_does_not_have_is_told_nothing(bench):
    bench.engine.encoder.find_leaders = hints(LEADER, name="another")

    response = fetch(bench, 17)

    assert {leader_of(one) for one in bench.partitions(response).values()} == {None}
    assert nodes(response) == []


def test_address_is_that_of_the_listener_which_the_client_uses():
    found = hints(LEADER)(OUTSIDE)
    found.leader(b"t", 0)

    assert b"out-7" in found.tagged_fields() and b"in-7" not in found.tagged_fields()


# ---- Produce -----------------------------------------------------------------------------------


def produce_to_two(harness: Harness, version: int, *codes: int) -> Any:
    """The response to a Produce for both partitions, whose owner responds with these codes."""
    client = harness.connect()
    client.send(produce(version, records={0: bytes(61), 1: bytes(61)}))
    harness.turn()
    asked = harness.descriptors()
    harness.answer(*(result(one, code) for one, code in zip(asked, codes, strict=True)))
    harness.turn()
    ((_, response),) = answers(received(client), version)
    return response


@pytest.mark.parametrize("version", [10, 11, 12, 13])
def test_produce_to_the_wrong_broker_is_told_leaders_and_addresses(version):
    harness = Harness()
    harness.loop.produce.find_leaders = hints(OTHER, LEADER)

    response = produce_to_two(harness, version, 0, NOT_LEADER)

    assert [leader_of(one) for one in partitions_of(response)] == [None, (LEADER, EPOCH)]
    assert nodes(response) == [(LEADER, "in-7", 9007, "r" * 200)]


@pytest.mark.parametrize(("version", "code"), [(9, NOT_LEADER), (10, FENCED), (13, 0)])
def test_produce_of_an_older_version_or_without_that_error_is_told_nothing(version, code):
    harness = Harness()
    harness.loop.produce.find_leaders = hints(OTHER, LEADER)

    response = produce_to_two(harness, version, 0, code)

    assert [one.error_code for one in partitions_of(response)] == [0, code]
    assert [leader_of(one) for one in partitions_of(response)] == [None, None]
    assert nodes(response) == []
