"""Who leads partitions, as the exam changes it: another broker takes over those of one that is gone
for good, or leaders change again and again.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import contextmanager, suppress

from kbroker.client import KafkaAdminClient, TopicPartition
from kbroker.client.errors import ClientError
from kbroker.testing import wait_until

MOVED_S = 120.0
Replicas = dict[TopicPartition, list[int]]


@contextmanager
def administration(bootstrap: str) -> Iterator[KafkaAdminClient]:
    """Of brokers that are not harmed."""
    admin = KafkaAdminClient(bootstrap_servers=bootstrap, default_api_timeout_ms=30_000)
    try:
        yield admin
    finally:
        admin.close()


def replicas_of(admin: KafkaAdminClient, topics: Iterable[str] | None = None) -> Replicas:
    """Of all partitions of these topics, None: of all."""
    found = admin.list_topics() if topics is None else admin.describe_topics(topics)
    return {
        TopicPartition(topic.name, row.partition): list(row.replicas)
        for topic in found
        for row in topic.partitions
    }


def hand_over(admin: KafkaAdminClient, old: int, new: int) -> None:
    """Let a broker have all replicas of another one, and lead where that was to lead."""
    moved = {
        key: [new if node == old else node for node in nodes]
        for key, nodes in replicas_of(admin).items()
        if old in nodes
    }
    if not moved:
        return

    def begun() -> bool:
        errors = [error for error in admin.alter_partition_reassignments(moved).values() if error]
        assert not errors, str(errors[0])
        return True

    def done() -> bool:
        return not admin.list_partition_reassignments(list(moved))

    wait_until(begun, MOVED_S, "a broker takes over")
    wait_until(done, MOVED_S, f"replicas move from {old} to {new}")
    admin.elect_leaders(list(moved))


def turn(admin: KafkaAdminClient, topics: Iterable[str]) -> None:
    """Let the next replica of each partition lead it."""
    turned = {key: nodes[1:] + nodes[:1] for key, nodes in replicas_of(admin, topics).items()}
    with suppress(ClientError):  # the next turn does
        admin.alter_partition_reassignments(turned)
        admin.elect_leaders(list(turned))
