"""The cluster image, and the orders that go with it."""

from __future__ import annotations

from types import NoneType
from typing import Any, NamedTuple, NotRequired, TypedDict

from kbroker.ipc.calls.base import (
    ACCEPTOR,
    CLEANER,
    CONTROLLER,
    EXPORTER,
    IO_WORKER,
    NETWORK,
    Nothing,
)
from kbroker.ipc.documents import Document
from kbroker.ipc.operation import CallOperation

# To a process that may still be starting; the call is retried.
HELLO_DEADLINE_MS = 1_000
# io workers create directories and open logs meanwhile.
IMAGE_DEADLINE_MS = 60_000


class FeaturesDocument(TypedDict):
    """Finalized features."""

    levels: dict[str, int]
    epoch: int


class ImageDocument(TypedDict):
    """A snapshot of the image, or a delta of it (docs/architecture/cluster.md).

    ``cluster.image`` reads what is below the names.
    """

    version: int
    snapshot: NotRequired[bool]
    cluster_id: NotRequired[str]
    controller_id: NotRequired[int]
    brokers: NotRequired[dict[str, Any]]
    topics: NotRequired[dict[str, Any]]
    broker_config: NotRequired[dict[str, dict[str, str]]]
    group_config: NotRequired[dict[str, Any]]
    features: NotRequired[FeaturesDocument]
    quotas: NotRequired[dict[str, Any]]
    client_metrics: NotRequired[dict[str, Any]]
    acls: NotRequired[list[Any]]  # see ``security.acls``; only if the authorizer has them


class ImageChange(Document):
    delta: ImageDocument


class ImageTaken(Document):
    """errors: of partitions that cannot be served, by ``topic-partition``."""

    errors: dict[str, int]


class StoppedReplica(NamedTuple):
    """A replica whose log must be deleted, or kept under another name (``is_kept``). An order that
    arrives late does not affect a later replica in the slot.
    """

    topic: str
    partition: int
    slot: int
    slot_incarnation: int
    is_kept: bool = False


class StopReplicas(Document):
    replicas: list[StoppedReplica]


# Returns the image to a process, which gets all changes from now on.
HELLO = CallOperation("hello", Nothing, ImageDocument, (CONTROLLER,), HELLO_DEADLINE_MS)
# The processes that have an image. Others do not get changes.
IMAGE = CallOperation(
    "image",
    ImageChange,
    ImageTaken,
    (IO_WORKER, NETWORK, ACCEPTOR, CLEANER, EXPORTER),
    IMAGE_DEADLINE_MS,
)
# The reply is sent when the logs are deleted. Nothing else deletes a log.
STOP_REPLICAS = CallOperation(
    "stop_replicas", StopReplicas, NoneType, (IO_WORKER,), IMAGE_DEADLINE_MS
)
# A network process starts: after the reply, messages of its predecessor are ignored.
NETWORK_STARTS = CallOperation("network_starts", Nothing, NoneType, (IO_WORKER,), HELLO_DEADLINE_MS)
