"""Topics that are created, enlarged and deleted by the controller."""

from __future__ import annotations

from typing import NamedTuple

from kbroker.ipc.calls.base import CHANGE_MS, CONTROLLER, NOBODY, SettingValue
from kbroker.ipc.documents import Document
from kbroker.ipc.operation import CallOperation


class Assigned(NamedTuple):
    """Brokers that a client wants a partition on, the preferred leader first."""

    partition: int
    replicas: list[int]


class TopicToCreate(Document):
    """num_partitions, replication_factor: -1 to have the broker's default."""

    name: str
    num_partitions: int = -1
    replication_factor: int = -1
    assignments: list[Assigned] = []
    configs: list[SettingValue] = []


class CreateTopics(Document):
    """within_ms: the call returns after this time at the latest, while the change continues. auto:
    only the names count, and an existing topic is a success. client_id, strict_quota: for the quota
    of changes (``controller.mutation_quotas``), None if none can apply; here and below.
    """

    topics: list[TopicToCreate]
    validate_only: bool = False
    within_ms: int = CHANGE_MS
    auto: bool = False
    asked_by: str = NOBODY
    client_id: str | None = None
    strict_quota: bool = False


class TopicToEnlarge(Document):
    """count: the new number of partitions. assignments: replicas of each new partition, in order;
    None: the controller chooses them.
    """

    name: str
    count: int
    assignments: list[list[int]] | None = None


class CreatePartitions(Document):
    topics: list[TopicToEnlarge]
    validate_only: bool = False
    within_ms: int = CHANGE_MS
    asked_by: str = NOBODY
    client_id: str | None = None
    strict_quota: bool = False


class TopicToDelete(Document):
    """A topic by its name or its id."""

    name: str | None = None
    topic_id: bytes | None = None


class DeleteTopics(Document):
    topics: list[TopicToDelete]
    within_ms: int = CHANGE_MS
    asked_by: str = NOBODY
    client_id: str | None = None
    strict_quota: bool = False


class TopicResult(Document):
    """The result for one topic; ``topic_id`` and later fields are set for some successes only.

    throttle_ms: of the first result, for how long the client must wait.
    """

    name: str | None
    error: int = 0
    message: str | None = None
    topic_id: bytes | None = None
    partitions: int = -1
    replication_factor: int = -1
    throttle_ms: int = 0


# The result has an entry for each topic, in order.
CREATE_TOPICS = CallOperation("create_topics", CreateTopics, list[TopicResult], (CONTROLLER,))
CREATE_PARTITIONS = CallOperation(
    "create_partitions", CreatePartitions, list[TopicResult], (CONTROLLER,)
)
DELETE_TOPICS = CallOperation("delete_topics", DeleteTopics, list[TopicResult], (CONTROLLER,))
