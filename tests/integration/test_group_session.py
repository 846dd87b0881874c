"""A group's nodes in a real ZooKeeper."""

from __future__ import annotations

import json
import threading
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from itertools import count
from typing import Any

import pytest
from support.brokers.zookeeper import skip_without_zookeeper
from support.clients.zookeeper_group import Store, opened

from kbroker.client.errors import ClientError
from kbroker.legacy.zookeeper_consumer.group_session import GroupSession
from kbroker.legacy.zookeeper_consumer.topic_filters import StreamSubscription, Whitelist
from kbroker.testing import wait_until, zookeeper

pytestmark = pytest.mark.integration

WAIT_S = 30
Open = Callable[..., GroupSession]
_numbers = count()


@pytest.fixture(scope="module")
def server() -> str:
    skip_without_zookeeper()
    return zookeeper.shared().connect


@pytest.fixture
def store(server: str) -> Iterator[Store]:
    """With a path of its own, a broker and a topic."""
    place = f"/sessions-{next(_numbers)}"
    with opened(server) as root:
        root.client.ensure_path(place)
    with opened(server + place) as found:
        broker = {"version": 4, "host": "h", "port": 9092, "endpoints": ["PLAINTEXT://h:9092"]}
        found.client.create("/brokers/ids/7", json.dumps(broker).encode(), makepath=True)
        topic = {"version": 1, "partitions": {"0": [7], "10": [7], "2": [7]}}
        found.client.create("/brokers/topics/t", json.dumps(topic).encode(), makepath=True)
        yield found


@pytest.fixture
def session(store: Store) -> Iterator[Open]:
    with ExitStack() as ends:

        def start(on_change: Callable[[], None] = lambda: None, **settings: Any) -> GroupSession:
            given = {"session_s": 2.0, "connection_s": 10.0, "protocol": "PLAINTEXT", **settings}
            made = GroupSession(store.connect, "g", on_change=on_change, **given)
            ends.callback(made.close)
            made.start()
            return made

        yield start


def test_members_brokers_and_topics_are_seen(store: Store, session: Open) -> None:
    one, other = session(), session()
    one.register("g_a", StreamSubscription({"t": 2}).node())
    other.register("g_b", StreamSubscription({"": 1}, Whitelist("t|u")).node())

    seen = one.see("g_a", True)

    assert seen.brokers == {"7": "h:9092"}
    assert seen.topics == {"t": (0, 2, 10)}
    assert seen.streams == {"g_a": {"t": 2}, "g_b": {"t": 1}}
    assert seen == one.see("g_a", True)


@pytest.mark.parametrize("what", ["member", "broker", "topic", "partitions", "static"])
def test_what_was_seen_is_watched(what: str, store: Store, session: Open) -> None:
    """ZK-17 to ZK-19; also a topic that is subscribed to and does not exist."""
    changed = threading.Event()
    one = session(changed.set)
    one.register("g_a", StreamSubscription({"": 1}, Whitelist("t|u")).node())
    session().register("g_b", StreamSubscription({"later": 1}).node())
    before = one.see("g_b" if what == "static" else "g_a", True)
    changed.clear()

    if what == "member":
        session().register("g_c", StreamSubscription({"t": 1}).node())
    elif what == "broker":
        store.client.delete("/brokers/ids/7")
    elif what == "topic":
        store.client.create("/brokers/topics/u", b'{"partitions":{"0":[7]}}')
    elif what == "static":
        store.client.create("/brokers/topics/later", b'{"partitions":{"0":[7]}}')
    else:
        store.client.set("/brokers/topics/t", b'{"partitions":{"0":[7]}}')

    assert changed.wait(WAIT_S)
    assert one.see("g_b" if what == "static" else "g_a", True) != before


def test_a_partition_has_one_owner_until_it_is_released(store: Store, session: Open) -> None:
    one, other = session(), session()
    keys = {("t", 0): "g_a-0", ("t", 2): "g_a-1"}
    assert one.claim(keys) == []
    assert one.claim(keys) == [], "a lost response"
    assert other.claim({("t", 0): "g_b-0", ("t", 10): "g_b-0"}) == [("t", 0)]
    assert store.owners("g", "t") == {0: "g_a-0", 2: "g_a-1", 10: "g_b-0"}
    released: list[int] = []
    other.watch_owners([("t", 0)], lambda: released.append(0))
    assert not released

    other.release([("t", 0), ("t", 10)])
    assert store.owners("g", "t") == {0: "g_a-0", 2: "g_a-1"}, "only its own"
    one.release(keys)

    wait_until(lambda: released == [0], WAIT_S, lambda: released)
    other.watch_owners([("t", 2)], lambda: released.append(2))
    assert released == [0, 2], "it was released before"
    assert other.claim({("t", 0): "g_b-0"}) == []


def test_offsets_are_numbers_as_text_and_stay(store: Store, session: Open) -> None:
    one = session()
    one.commit({("t", 0): 5, ("u", 1): 1 << 40})
    one.commit({("t", 0): 6})
    assert store.client.get("/consumers/g/offsets/t/0")[0] == b"6"
    assert store.client.get("/consumers/g/offsets/u/1")[0] == b"1099511627776"
    store.client.create("/consumers/g/offsets/t/3", b"-1")
    store.client.create("/consumers/g/offsets/t/4", b"x")
    keys = [("t", n) for n in range(5)] + [("u", 1)]
    assert one.offsets(keys) == {("t", 0): 6, ("u", 1): 1 << 40}
    one.close()
    assert store.offsets("g", "u") == {1: 1 << 40}


def test_a_member_that_cannot_be_read_is_named(store: Store, session: Open) -> None:
    one = session()
    store.client.create("/consumers/g/ids/g_x", b"[1]", makepath=True)
    with pytest.raises(ClientError, match="consumer g_x has registered"):
        one.see("g_a", True)
    store.client.delete("/consumers/g/ids/g_x")
    store.client.set("/brokers/topics/t", b"x")
    one.register("g_a", StreamSubscription({"t": 1}).node())
    with pytest.raises(ClientError, match="cannot read the node of topic t"):
        one.see("g_a", True)


def test_a_name_is_taken_over_once_its_session_has_ended(store: Store, session: Open) -> None:
    """A consumer with consumer.id that was killed and started again."""
    one = session()
    one.register("g_a", StreamSubscription({"t": 1}).node())
    one.register("g_a", StreamSubscription({"t": 1}).node())  # its own
    killed = one._client.client_id
    other = session(session_s=20.0)
    thread = threading.Thread(
        target=other.register, args=("g_a", StreamSubscription({"t": 2}).node())
    )
    thread.start()
    store.end_session(killed)
    thread.join(WAIT_S)
    assert not thread.is_alive()
    assert json.loads(store.ids("g")["g_a"])["subscription"] == {"t": 2}
    wait_until(one.take_lost, WAIT_S, "it knows")
    assert not one.take_lost()
