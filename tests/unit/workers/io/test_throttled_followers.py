"""Followed partitions while the quota of the follower is used up (KIP-73)."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from support.replication.follower_host import FollowerHost
from support.replication.scripted_leader import ScriptedLeader

from kbroker.config.loader import BrokerConfig
from kbroker.replication.throttles import FOLLOWER_REPLICAS
from kbroker.workers.base import now_ms

pytestmark = pytest.mark.unit

RATE = "follower.replication.throttled.rate"
FAR_AHEAD = 1 << 40


class Throttled:
    """Partition 0 of topic t is throttled, partition 1 is not."""

    def __init__(self, path: Path, leader: ScriptedLeader) -> None:
        self.leader = leader
        self.host = FollowerHost(path, leader, partitions=2, topic={FOLLOWER_REPLICAS: "0:0,1:7"})
        self.set_rate(1000)
        for number in range(2):
            self.leader.log("t", number).append(size=100)
        self.leader.publish()

    def set_rate(self, rate: int) -> None:
        self.host.config = BrokerConfig({**self.host.settings, RATE: str(rate)})
        self.host.followers.take_settings()

    def use_up(self, count: int = 1 << 30) -> None:
        self.host.quota.add(count, now_ms())

    def append(self) -> None:
        for number in range(2):
            self.leader.log("t", number).append(size=100)
        self.leader.publish()

    def is_copied(self, partition: int) -> bool:
        return self.host.bytes_of(partition) == self.leader.log("t", partition).data()

    def run_until(self, reached: Callable[[], object], what: str = "") -> None:
        self.host.run_until(reached, what)

    def named_in_last_fetch(self) -> set[int]:
        last = self.leader.fetches[-1]
        return {p.partition for topic in last.topics for p in topic.partitions}


@pytest.fixture
def throttled(tmp_path: Path) -> Iterator[Throttled]:
    with ScriptedLeader() as leader:
        made = Throttled(tmp_path, leader)
        yield made
        made.host.close()


def test_partition_is_not_fetched_while_the_quota_is_used_up(throttled: Throttled) -> None:
    throttled.use_up()
    throttled.host.publish()
    throttled.run_until(lambda: throttled.is_copied(1), "the other partition is followed")
    assert throttled.host.bytes_of(0) == b""

    throttled.set_rate(FAR_AHEAD)

    throttled.run_until(lambda: throttled.is_copied(0), "there is no throttle any more")
    throttled.append()
    throttled.run_until(lambda: throttled.is_copied(0) and throttled.is_copied(1))


def test_what_is_fetched_counts(throttled: Throttled) -> None:
    throttled.set_rate(1)
    throttled.host.publish()
    throttled.run_until(lambda: throttled.is_copied(0) and throttled.is_copied(1))
    fetched = len(throttled.leader.log("t", 0).data())
    # That much, and nothing of the other partition.
    throttled.host.quota.rate = fetched - 1
    assert throttled.host.quota.is_exceeded(now_ms())
    throttled.host.quota.rate = fetched
    assert not throttled.host.quota.is_exceeded(now_ms())


def test_partition_at_the_high_watermark_is_not_throttled(throttled: Throttled) -> None:
    throttled.host.publish()
    throttled.run_until(lambda: throttled.is_copied(0) and throttled.is_copied(1))

    throttled.use_up()
    throttled.append()

    throttled.run_until(lambda: throttled.is_copied(0) and throttled.is_copied(1))


def test_settings_of_the_topic_take_effect_at_once(throttled: Throttled) -> None:
    throttled.use_up()
    throttled.host.publish()
    throttled.run_until(lambda: throttled.is_copied(1))
    assert throttled.host.bytes_of(0) == b""

    throttled.host.topic = {}
    throttled.host.publish()

    throttled.run_until(lambda: throttled.is_copied(0), "it is not throttled any more")


def test_link_with_nothing_but_throttled_partitions_waits(tmp_path: Path) -> None:
    """It neither fetches nor turns until the quota allows it."""
    with ScriptedLeader() as leader:
        leader.log("t", 0).append(size=100)
        host = FollowerHost(tmp_path, leader, topic={FOLLOWER_REPLICAS: "*"})
        host.quota.rate = 1000
        host.quota.add(1 << 30, now_ms())
        host.publish()
        (link,) = host.followers._links.values()
        host.run_until(lambda: link.is_connected and host.followers.machine(0).is_fetching)
        host.turn()

        due = host.followers.next_deadline_ms()

        assert due is not None
        assert due > now_ms()
        assert leader.fetches == []
        host.quota.rate = FAR_AHEAD
        host.run_until(lambda: host.bytes_of() == leader.log("t", 0).data())
        host.close()
