"""A consumer's share of its group, with a group of a few lines in place of ZooKeeper."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any

import pytest

from kbroker.client.batches.offsets import TopicPartition
from kbroker.client.errors import RejectedError, UnreachableError
from kbroker.legacy.zookeeper_consumer.consumer_errors import (
    ConsumerTimeout,
    RebalanceFailed,
)
from kbroker.legacy.zookeeper_consumer.group_session import GroupSnapshot
from kbroker.legacy.zookeeper_consumer.kafka_stream import KafkaStream
from kbroker.legacy.zookeeper_consumer.rebalancer import Rebalancer
from kbroker.legacy.zookeeper_consumer.topic_filters import StreamSubscription, Whitelist
from kbroker.legacy.zookeeper_consumer.zookeeper_consumer_settings import ConsumerConfig
from kbroker.testing import wait_until

pytestmark = pytest.mark.unit

ME, OTHER = "g_b", "g_a"


class Group:
    """Session, storage and fetcher in one; ``did`` has what was called."""

    def __init__(self) -> None:
        self.did: list[Any] = []
        self.members = {ME: {"t": 1}}
        self.partitions = {"t": (0, 1, 2)}
        self.brokers = {"0": "h:1"}
        self.owners: dict[TopicPartition, str] = {}
        self.stored: dict[TopicPartition, int] = {}
        self.id: int | None = 1
        self.lost = False
        self.on_conflict: Callable[[], None] = lambda: None
        self.fail_commits = False
        self.fail_reads = False

    # session

    def register(self, consumer: str, data: bytes) -> None:
        self.did.append("register")

    def see(self, me: str, exclude_internal: bool) -> GroupSnapshot:
        data = {name: repr(topics).encode() for name, topics in self.members.items()}
        return GroupSnapshot(data, dict(self.brokers), dict(self.partitions), dict(self.members))

    def claim(self, wanted: Mapping[TopicPartition, str]) -> list[TopicPartition]:
        busy = [key for key in wanted if self.owners.get(key, wanted[key]) != wanted[key]]
        self.owners.update({key: name for key, name in wanted.items() if key not in busy})
        self.did.append(("claim", sorted(n for _, n in wanted), sorted(n for _, n in busy)))
        return busy

    def release(self, keys: Iterable[TopicPartition]) -> None:
        mine = sorted(key for key in keys if self.owners.get(key, "").startswith(ME))
        for key in mine:
            del self.owners[key]
        self.did.append(("release", [n for _, n in mine]))

    def watch_owners(self, keys: Iterable[TopicPartition], then: Callable[[], None]) -> None:
        self.on_conflict()
        for key in keys:
            if key not in self.owners:
                then()

    def take_lost(self) -> bool:
        found, self.lost = self.lost, False
        return found

    # storage

    def read(self, keys: Iterable[TopicPartition]) -> dict[TopicPartition, int]:
        if self.fail_reads:
            raise RejectedError(29, "read offsets")
        return {key: self.stored[key] for key in keys if key in self.stored}

    def commit(self, offsets: Mapping[TopicPartition, int], *, retry: bool) -> None:
        if self.fail_commits:
            raise UnreachableError({"h": "away"})
        self.stored.update(offsets)
        self.did.append(("commit", dict(offsets), retry))

    # fetcher

    def start(self, parts: Iterable[Any], addresses: Iterable[str]) -> None:
        self.parts = list(parts)
        self.did.append(("start", sorted(part.key[1] for part in self.parts), list(addresses)))

    def stop(self) -> None:
        self.did.append("stop")


@pytest.fixture
def group() -> Group:
    return Group()


@pytest.fixture
def made(group: Group) -> Iterator[Callable[..., tuple[Rebalancer, KafkaStream]]]:
    running: list[tuple[Rebalancer, threading.Event]] = []

    def make(**settings: Any) -> tuple[Rebalancer, KafkaStream]:
        given = {"rebalance_backoff_ms": 10, "rebalance_max_retries": 3, **settings}
        config = ConsumerConfig(group_id="g", zookeeper_connect="x:1", **given)
        closing = threading.Event()
        one: Any = group
        found = Rebalancer(config, ME, one, one, one, closing)
        running.append((found, closing))
        return found, KafkaStream("s", chunks_max=10, timeout_s=0.0)

    yield make
    for one, closing in running:
        closing.set()
        one.close()


def begin(
    made: Any, subscription: StreamSubscription | None = None
) -> tuple[Rebalancer, KafkaStream]:
    rebalancer, stream = made
    rebalancer.begin(
        subscription or StreamSubscription({"t": 1}), [stream], lambda topic, n: stream
    )
    return rebalancer, stream


def test_it_registers_claims_reads_offsets_and_fetches(group: Group, made: Any) -> None:
    """ZK-16 to ZK-22, in this order: offsets are not read before the owner before has committed."""
    group.stored = {("t", 1): 7}
    begin(made())
    assert group.did == [
        "register", "stop", ("commit", {}, True), ("claim", [0, 1, 2], []),
        ("start", [0, 1, 2], ["h:1"]),
    ]  # fmt: skip
    assert [part.fetch_offset for part in group.parts] == [None, 7, None]
    assert set(group.owners.values()) == {f"{ME}-0"}


def test_lag_is_known_of_owned_partitions_that_were_fetched(group: Group, made: Any) -> None:
    group.stored = {("t", 0): 3, ("t", 1): 7, ("t", 2): 9}
    rebalancer, _ = begin(made())
    assert rebalancer.lags() == {}

    for part, known in zip(group.parts, (10, 7, 8), strict=True):
        part.high_watermark = known
    group.parts[0].consumed = 5

    assert rebalancer.lags() == {("t", 0): 5, ("t", 1): 0, ("t", 2): 0}


def test_a_new_member_gets_partitions_after_a_commit(group: Group, made: Any) -> None:
    rebalancer, _ = begin(made())
    for part in group.parts:
        part.consumed = 5
    group.did.clear()
    group.members = {ME: {"t": 1}, OTHER: {"t": 1}}

    rebalancer.changed()

    wait_until(lambda: ("start", [2], ["h:1"]) in group.did, 10, lambda: group.did)
    all_three = {("t", n): 5 for n in range(3)}
    assert group.did == [
        "stop", ("commit", all_three, True), ("release", [0, 1, 2]), ("claim", [2], []),
        ("start", [2], ["h:1"]),
    ]  # fmt: skip
    assert list(group.owners) == [("t", 2)]


def test_nothing_happens_if_nothing_has_changed(group: Group, made: Any) -> None:
    rebalancer, _ = begin(made())
    group.did.clear()
    rebalancer.changed()
    rebalancer._rebalance()
    assert group.did == []


def test_a_broker_that_leaves_is_a_reason_to_rebalance(group: Group, made: Any) -> None:
    """ZK-18."""
    rebalancer, _ = begin(made())
    group.did.clear()
    group.brokers = {"1": "h:2"}
    rebalancer.changed()
    wait_until(lambda: ("start", [0, 1, 2], ["h:2"]) in group.did, 10, lambda: group.did)


def test_a_partition_that_is_not_released_yet_is_claimed_again(group: Group, made: Any) -> None:
    group.owners = {("t", 1): f"{OTHER}-0"}
    group.on_conflict = lambda: group.owners.pop(("t", 1), None) and None

    begin(made(rebalance_backoff_ms=60_000))  # the release ends the pause

    claims = [one for one in group.did if one[0] == "claim"]
    assert claims == [("claim", [0, 1, 2], [1]), ("claim", [0, 1, 2], [])]
    assert ("release", [0, 2]) in group.did


def test_it_gives_up_after_all_attempts_and_owns_nothing(group: Group, made: Any) -> None:
    """ERR-12."""
    group.owners = {("t", 1): f"{OTHER}-0"}
    with pytest.raises(RebalanceFailed, match=r"in 3 attempts .* last: others own t-1"):
        begin(made())
    assert sum(one[0] == "claim" for one in group.did) == 3
    assert group.owners == {("t", 1): f"{OTHER}-0"}


def test_a_failure_later_is_raised_by_the_stream_and_tried_again(group: Group, made: Any) -> None:
    rebalancer, stream = begin(made(zookeeper_session_timeout_ms=50))
    group.members = {ME: {"t": 1}, OTHER: {"t": 1}}
    group.owners[("t", 2)] = f"{OTHER}-0"
    rebalancer.changed()

    def told() -> bool:
        try:
            next(stream)
        except ConsumerTimeout:
            return False
        except RebalanceFailed:
            return True
        raise AssertionError

    wait_until(told, 10, "RebalanceFailed")
    del group.owners[("t", 2)]
    wait_until(lambda: ("start", [2], ["h:1"]) in group.did, 10, lambda: group.did)


def test_without_brokers_it_waits(group: Group, made: Any) -> None:
    group.brokers = {}
    rebalancer, _ = begin(made())
    assert not group.owners
    group.brokers = {"0": "h:1"}
    rebalancer.changed()
    wait_until(lambda: len(group.owners) == 3, 10, lambda: group.did)


def test_after_the_end_of_its_session_it_registers_again_without_a_commit(
    group: Group, made: Any
) -> None:
    """Others have read on meanwhile: what it would commit is old."""
    rebalancer, _ = begin(made())
    old = list(group.parts)
    for part in old:
        part.consumed = 5
    group.did.clear()
    group.owners.clear()
    group.lost, group.id = True, None
    rebalancer.changed()
    wait_until(lambda: not any(part.active for part in old), 10, "it stops reading")
    assert not any(one[0] in ("commit", "claim") for one in group.did)

    group.id = 2
    rebalancer.changed()

    wait_until(lambda: ("start", [0, 1, 2], ["h:1"]) in group.did, 10, lambda: group.did)
    assert group.did.index("register") < group.did.index(("claim", [0, 1, 2], []))
    assert group.stored == {}


def test_partitions_are_given_up_although_a_commit_fails(group: Group, made: Any) -> None:
    rebalancer, _ = begin(made())
    for part in group.parts:
        part.consumed = 5
    group.fail_commits = True
    group.members = {ME: {"t": 1}, OTHER: {"t": 1}}
    rebalancer.changed()
    wait_until(lambda: list(group.owners) == [("t", 2)], 10, lambda: group.did)


def test_partitions_are_released_if_offsets_cannot_be_read(group: Group, made: Any) -> None:
    group.fail_reads = True
    with pytest.raises(RebalanceFailed, match="read offsets"):
        begin(made())
    assert not group.owners


def test_only_what_has_moved_is_committed(group: Group, made: Any) -> None:
    rebalancer, _ = begin(made())
    group.parts[1].consumed = 4
    rebalancer.commit(retry=False)
    rebalancer.commit(retry=False)
    rebalancer.commit({("t", 0): 9}, retry=True)
    assert group.did[-3:] == [
        ("commit", {("t", 1): 4}, False), ("commit", {}, False), ("commit", {("t", 0): 9}, True)
    ]  # fmt: skip


def test_an_offset_that_was_given_stays_until_another_message_is_returned(
    group: Group, made: Any
) -> None:
    """So a damaged message is skipped: its partition stands still."""
    rebalancer, _ = begin(made())
    group.parts[0].consumed = 4
    rebalancer.commit({("t", 0): 6}, retry=True)
    rebalancer.commit(retry=True)
    assert group.stored[("t", 0)] == 6
    group.parts[0].consumed = 5
    rebalancer.commit(retry=True)
    assert group.stored[("t", 0)] == 5


def test_without_auto_commit_nothing_is_committed_before_a_loss(group: Group, made: Any) -> None:
    rebalancer, _ = begin(made(auto_commit_enable=False))
    for part in group.parts:
        part.consumed = 5
    group.members = {ME: {"t": 1}, OTHER: {"t": 1}}
    rebalancer.changed()
    wait_until(lambda: list(group.owners) == [("t", 2)], 10, lambda: group.did)
    assert not any(one[0] == "commit" for one in group.did)


def test_a_filter_owns_the_transactions_topic_and_does_not_read_it(group: Group, made: Any) -> None:
    """Consumers of 0.8.2 in the group count it as one of users'."""
    group.members = {ME: {"t": 1, "__transaction_state": 1}}
    group.partitions = {"t": (0,), "__transaction_state": (0,)}
    begin(made(), StreamSubscription({"": 1}, Whitelist(".*")))
    assert len(group.owners) == 2
    assert [part.key for part in group.parts] == [("t", 0)]
