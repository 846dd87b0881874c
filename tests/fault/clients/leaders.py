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
    moved: Replicas = {}

    def known() -> bool:
        with _again():
            found = replicas_of(admin)
        moved.update(
            {
                key: [new if node == old else node for node in nodes]
                for key, nodes in found.items()
                if old in nodes
            }
        )
        return True

    wait_until(known, MOVED_S, "replicas are known")
    if not moved:
        return

    def begun() -> bool:
        with _again():
            found = admin.alter_partition_reassignments(moved)
        errors = [error for error in found.values() if error]
        assert not errors, str(errors[0])
        return True

    def done() -> bool:
        with _again():
            return not admin.list_partition_reassignments(list(moved))

    wait_until(begun, MOVED_S, "a broker takes over")
    wait_until(done, MOVED_S, f"replicas move from {old} to {new}")
    with suppress(ClientError):  # they are balanced later
        admin.elect_leaders(list(moved))


@contextmanager
def _again() -> Iterator[None]:
    """In a condition of ``wait_until``: a machine may be too busy for an answer."""
    try:
        yield
    except ClientError as error:
        raise AssertionError(str(error)) from error


def turn(admin: KafkaAdminClient, topics: Iterable[str]) -> None:
    """Let the next replica of each partition lead it."""
    turned = {key: nodes[1:] + nodes[:1] for key, nodes in replicas_of(admin, topics).items()}
    with suppress(ClientError):  # the next turn does
        admin.alter_partition_reassignments(turned)
        admin.elect_leaders(list(turned))
