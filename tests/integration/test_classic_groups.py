"""Groups of the classic protocol over real processes: a coordinator that dies and comes back."""

from __future__ import annotations

from typing import Any

import pytest

from kbroker.testing import Broker, wait_until

confluent_kafka = pytest.importorskip("confluent_kafka")
admin = pytest.importorskip("confluent_kafka.admin")

pytestmark = pytest.mark.integration

PARTITIONS = 4
SETTINGS = {"group.initial.rebalance.delay.ms": 200, "offsets.topic.num.partitions": 1}


class Member:
    """A consumer of topic ``t`` in group ``g``; ``changes`` counts changes of its assignment."""

    def __init__(self, broker: Broker, instance_id: str | None = None) -> None:
        settings: dict[str, Any] = {
            "bootstrap.servers": broker.bootstrap,
            "group.id": "g",
            "session.timeout.ms": 30_000,
            "heartbeat.interval.ms": 200,
            "auto.offset.reset": "earliest",
        }
        if instance_id is not None:
            settings["group.instance.id"] = instance_id
        self.consumer = confluent_kafka.Consumer(settings)
        self.changes = 0
        self.consumer.subscribe(["t"], on_assign=self.changed, on_revoke=self.changed)

    def changed(self, _consumer: object, _partitions: object) -> None:
        self.changes += 1

    @property
    def owned(self) -> set[int]:
        self.consumer.poll(0.05)
        return {p.partition for p in self.consumer.assignment()}

    def commit(self, offset: int) -> bool:
        """Commit for its partitions; False while the coordinator is away."""
        wanted = [confluent_kafka.TopicPartition("t", p, offset) for p in self.owned]
        try:
            self.consumer.commit(offsets=wanted, asynchronous=False)
        except confluent_kafka.KafkaException:
            return False
        return True


def create_topic(broker: Broker) -> Any:
    client = admin.AdminClient({"bootstrap.servers": broker.bootstrap})
    client.create_topics([admin.NewTopic("t", PARTITIONS, 1)])["t"].result(60)
    return client


def split(members: list[Member]) -> bool:
    """Whether the members own all partitions, each of them some."""
    owned = [member.owned for member in members]
    return all(owned) and sorted(p for share in owned for p in share) == list(range(PARTITIONS))


def generation(broker: Broker) -> int:
    """The newest generation that got its assignment, from the broker's log."""
    found = [line for line in broker.log_text.splitlines() if "received the assignment" in line]
    return int(found[-1].split("generation ")[1].split()[0])


def test_group_continues_when_its_coordinator_is_killed() -> None:
    with Broker(SETTINGS) as broker:
        create_topic(broker)
        members = [Member(broker), Member(broker)]
        wait_until(lambda: split(members), 60, "both members have partitions")
        before = [member.changes for member in members]
        number = generation(broker)

        for index in range(2):  # one of them runs the coordinator
            broker.kill("io", index)

        wait_until(lambda: all(m.commit(7) for m in members), 60, "commits are taken again")
        assert split(members)
        assert [member.changes for member in members] == before
        assert generation(broker) == number
        for member in members:
            member.consumer.close()


def test_static_member_is_restarted_without_a_rebalance() -> None:
    with Broker(SETTINGS) as broker:
        create_topic(broker)
        first, second = Member(broker, "i-1"), Member(broker, "i-2")
        wait_until(lambda: split([first, second]), 60, "both members have partitions")
        before, owned = first.changes, second.owned
        number = generation(broker)

        second.consumer.close()  # a static member does not leave when it closes
        again = Member(broker, "i-2")
        wait_until(lambda: again.owned == owned, 60, "the new incarnation has what the old one had")

        assert first.owned and first.changes == before
        assert generation(broker) == number
        again.consumer.close()
        first.consumer.close()


def test_group_is_listed_described_and_deleted() -> None:
    with Broker(SETTINGS) as broker:
        client = create_topic(broker)
        member = Member(broker)
        wait_until(lambda: split([member]), 60, "the member has all partitions")
        assert member.commit(3)

        found = client.describe_consumer_groups(["g"])["g"].result(60)
        assert found.state == confluent_kafka.ConsumerGroupState.STABLE
        (described,) = found.members
        assert {p.partition for p in described.assignment.topic_partitions} == member.owned
        assert described.host == "/127.0.0.1"
        with pytest.raises(confluent_kafka.KafkaException, match="NON_EMPTY_GROUP"):
            client.delete_consumer_groups(["g"])["g"].result(60)

        member.consumer.close()
        client.delete_consumer_groups(["g"])["g"].result(60)

        assert not client.list_consumer_groups().result(60).valid
