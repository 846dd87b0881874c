"""What a controller has begun and cannot end yet, and what each of it waits for. Pure.

Kafka says nothing while the deletion of a topic waits for a broker that is gone.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import islice

from kbroker.cluster.control_requests import PartitionKey
from kbroker.controller.state import reassignments
from kbroker.controller.state.state import ClusterState, PartitionState, TopicState
from kbroker.ipc.calls import WaitingWork
from kbroker.wording import counted, named_brokers

# BOUND: rows of each kind.
ROWS_MAX = 1_000


def waiting(state: ClusterState) -> list[WaitingWork]:
    """Deletions, reassignments and controlled shutdowns, at most ROWS_MAX of each."""
    kinds = _deletions(state), _reassignments(state), _shutdowns(state)
    return [row for kind in kinds for row in islice(kind, ROWS_MAX)]


def _deletions(state: ClusterState) -> Iterator[WaitingWork]:
    for topic in state.topics():
        if topic.deleting:
            yield WaitingWork("deletion", topic.name, _reason_of_deletion(state, topic))


def _reason_of_deletion(state: ClusterState, topic: TopicState) -> str:
    if topic.stopped:
        return "its nodes to be removed from the metadata store"
    replicas = {broker for partition in topic.partitions for broker in partition.replicas}
    missing = replicas - state.brokers.keys()
    if missing:
        return f"{named_brokers(missing)}, not registered, to delete its replicas"
    return f"{named_brokers(replicas)} to delete its replicas"


def _reassignments(state: ClusterState) -> Iterator[WaitingWork]:
    for key in state.keys():
        partition, topic = state.partition(key), state.existing(key[0])
        if partition is None or topic.deleting or not reassignments.is_reassigned(partition):
            continue
        reason = _reason_of_reassignment(state, partition)
        yield WaitingWork("reassignment", f"{key[0]}-{key[1]}", reason)


def _reason_of_reassignment(state: ClusterState, partition: PartitionState) -> str:
    behind = [b for b in reassignments.target(partition) if b not in partition.isr]
    if not behind:
        return "another leader"
    missing = set(behind) - state.brokers.keys()
    text = f"{named_brokers(behind)} to be in sync"
    return f"{text}; {named_brokers(missing)}: not registered" if missing else text


def _shutdowns(state: ClusterState) -> Iterator[WaitingWork]:
    for broker in sorted(state.shutting_down & state.brokers.keys()):
        led = [key for key in state.keys_on([broker]) if _is_to_move(state, broker, key)]
        reason = "itself to stop"
        if led:
            name, number = led[0]
            count = counted(len(led), "partition")
            reason = f"other replicas in sync of {count}, {name}-{number} among them"
        yield WaitingWork("controlled shutdown", f"broker {broker}", reason)


def _is_to_move(state: ClusterState, broker: int, key: PartitionKey) -> bool:
    partition = state.partition(key)
    return partition is not None and partition.leader == broker and len(partition.replicas) > 1
