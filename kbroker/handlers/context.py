"""The context of a request: its connection, and calls to other processes."""

from __future__ import annotations

import time
from collections.abc import AsyncIterator, Callable, Container, Iterable, Iterator, Sequence
from contextlib import contextmanager
from itertools import chain
from typing import TYPE_CHECKING, Protocol, TypeVar

from kbroker._ext.shared.partition_table import FOLLOWER, LEADER, OFFLINE, ONLINE
from kbroker.cluster.image import (
    NO_SLOT,
    AdvertisedEndpoint,
    BrokerImage,
    ClusterImage,
    PartitionImage,
)
from kbroker.config.quota_keys import MUTATION
from kbroker.errors import ErrorCode, WireError
from kbroker.ipc.calls import (
    CREATE_TOPICS,
    CallOperation,
    CreatePartitions,
    CreateTopics,
    DeleteTopics,
    OfClient,
    TopicResult,
    TopicToCreate,
)
from kbroker.ipc.process_table import CONTROLLER, Address
from kbroker.ipc.rpc import Pending
from kbroker.ipc.slices import Slices
from kbroker.protocol.api import ApiKey, title
from kbroker.protocol.header import DecodedHeader
from kbroker.security.access import EVERYTHING
from kbroker.security.operations import CLUSTER_NAME, AclOperation, Kind
from kbroker.security.principal import ANONYMOUS, KafkaPrincipal
from kbroker.types import BrokerId

if TYPE_CHECKING:
    from kbroker._ext.network.connection import Connection
    from kbroker._ext.shared.partition_table import Slot
    from kbroker.config.loader import BrokerConfig
    from kbroker.coordinator.producer_ids import ProducerIds
    from kbroker.security.access import Access
    from kbroker.workers.network.network import NetworkWorker

T = TypeVar("T")
Q = TypeVar("Q")
A = TypeVar("A")


class Named(Protocol):
    """A topic in a request; it may have an id instead of a name."""

    @property
    def name(self) -> str | None: ...


N = TypeVar("N", bound=Named)


def now_ms() -> int:
    return time.monotonic_ns() // 1_000_000


# A change gets this long even if the client allows less: with a timeout of 0 it is started anyway,
# and nearly always completed long before this is over.
CHANGE_MIN_MS = 1_000
# The allowance of a call on top of the timeout of the process that serves it.
CALL_MARGIN_MS = 2_000
# For auto-created topics: a client named them, or a coordinator needs them.
CREATION_TIMEOUT_MS = 10_000
# BOUND: topics per call to the controller. It and all processes that learn of the topics serve
# other requests between two calls.
CALL_TOPICS_MAX = 200
# The versions from which on clients know THROTTLING_QUOTA_EXCEEDED (KIP-599).
STRICT_FROM: dict[int, int] = {
    ApiKey.CREATE_TOPICS: 6,
    ApiKey.DELETE_TOPICS: 5,
    ApiKey.CREATE_PARTITIONS: 3,
}
LIMITS_CHANGES = "limits changes"  # in ``ClusterImage.derived``: whether a quota limits them
# BOUND: bytes of the requests that other processes of the broker are serving or have queued.
GIVEN_AWAY_BYTES_MAX = 64 << 20


class RequestContext:
    """One request. ``image`` is the process's own and moves on while a handler awaits."""

    __slots__ = (
        "access",
        "api_key",
        "api_version",
        "body_offset",
        "broker_id",
        "client_id",
        "config",
        "connection",
        "correlation_id",
        "frame",
        "image",
        "listener",
        "principal",
        "process",
        "producer_ids",
        "slices",
    )

    def __init__(
        self,
        process: NetworkWorker,
        connection: Connection,
        header: DecodedHeader,
        frame: bytes,
        config: BrokerConfig,
        producer_ids: ProducerIds,
    ) -> None:
        self.frame = frame
        self.body_offset = header.end_offset
        self.api_key = header.api_key
        self.api_version = header.api_version
        self.client_id = header.client_id
        self.correlation_id = header.correlation_id
        self.connection = connection
        self.access: Access = connection.access
        # As of the arrival of the request; a client may authenticate again.
        self.principal: KafkaPrincipal = self.access.principal
        self.listener: str = process.context.listeners[connection.listener][0].name
        self.image: ClusterImage = process.image
        self.config = config
        self.broker_id: BrokerId = process.context.broker_id
        self.producer_ids = producer_ids
        self.process = process
        self.slices: Slices = process.slices

    @property
    def local_address(self) -> tuple[str, int]:
        """Host and port that the client reached."""
        address: tuple[str, int] = self.connection.local_address
        return address

    @property
    def body(self) -> bytes:
        """The request after its header, as received."""
        return self.frame[self.body_offset :]

    def each(self, items: Iterable[T]) -> AsyncIterator[T]:
        """Iterate over the items, which may be thousands; other requests are served in between."""
        return self.slices.each(items)

    @contextmanager
    def given_away(self) -> Iterator[None]:
        """While another process has the request, for up to an hour, others of its size may begin.

        COORDINATOR_NOT_AVAILABLE, at which clients try again, if too much is given away already.
        """
        process, size = self.process, len(self.frame)
        if process.given_away_bytes and process.given_away_bytes + size > GIVEN_AWAY_BYTES_MAX:
            raise WireError(ErrorCode.COORDINATOR_NOT_AVAILABLE)
        process.given_away_bytes += size
        process.loop.lighten(self.connection)
        try:
            yield
        finally:
            process.given_away_bytes -= size

    # -- what its sender may do --------------------------------------------------------------

    def allowed(
        self,
        operation: AclOperation,
        kind: Kind,
        names: Iterable[str],
        *,
        is_filter: bool = False,
    ) -> Container[str]:
        """The resources for which the client is authorized.

        is_filter: it did not name them, or something else may authorize it: no denial is logged.
        """
        access = self.access
        if access.everything:
            return EVERYTHING
        return access.allowed(operation, kind, names, title(self.api_key), is_filter=is_filter)

    def allows(
        self,
        operation: AclOperation,
        kind: Kind,
        name: str = CLUSTER_NAME,
        *,
        is_filter: bool = False,
    ) -> bool:
        """Like ``allowed``, for one resource."""
        return name in self.allowed(operation, kind, (name,), is_filter=is_filter)

    def creatable(self, topics: Iterable[str]) -> Container[str]:
        """The topics that the client may create: all, with Create on the cluster."""
        if self.allows(AclOperation.CREATE, Kind.CLUSTER, is_filter=True):
            return EVERYTHING
        return self.allowed(AclOperation.CREATE, Kind.TOPIC, topics)

    def cluster_operations(self) -> int:
        """The bits of its authorized operations on the cluster, if it may describe the cluster."""
        if not self.allows(AclOperation.DESCRIBE, Kind.CLUSTER):
            return 0
        return self.access.operations(Kind.CLUSTER)

    # -- calls -------------------------------------------------------------------------------

    def controller(
        self, operation: CallOperation[Q, A], request: Q, timeout_ms: int | None = None
    ) -> Pending[A]:
        """Call the controller; the request of a change names the client's principal."""
        if isinstance(request, OfClient) and self.principal != ANONYMOUS:
            request.asked_by = str(self.principal)
        return self.process.rpc.call(CONTROLLER, operation, request, timeout_ms)

    async def change_in_parts(
        self,
        operation: CallOperation[Q, list[TopicResult]],
        timeout_ms: int,
        topics: Sequence[Sequence[N]],
        request: Callable[[list[N], int], Q],
    ) -> list[TopicResult]:
        """Change topics through the controller, in parts of thousands, and wait until the changes
        are in effect everywhere; returns all results. Raises WireError if there is no controller.

        timeout_ms: the client's. The controller ends the wait, but the change continues. topics:
        entries of the same name are together, as they may not be in different calls. request:
        makes the request for a part of them, to be answered within so many ms.
        """
        until_ms = now_ms() + timeout_ms
        results: list[TopicResult] = []
        for first in range(0, len(topics), CALL_TOPICS_MAX):
            part = list(chain.from_iterable(topics[first : first + CALL_TOPICS_MAX]))
            left_ms = max(0, until_ms - now_ms()) if first else timeout_ms
            within_ms = max(left_ms, CHANGE_MIN_MS)
            asked = request(part, within_ms)
            self._name_client(asked)
            try:
                some = await self.controller(operation, asked, within_ms + CALL_MARGIN_MS)
            except WireError as error:
                if not results:
                    raise
                self._throttle(results)
                rest = chain.from_iterable(topics[first:])
                return results + [
                    TopicResult(topic.name, int(error.code), error.message) for topic in rest
                ]
            results += some
        self._throttle(results)
        return results

    def _name_client(self, asked: object) -> None:
        """Name the client of a change, if it may be limited."""
        if LIMITS_CHANGES not in self.image.derived:
            quotas = self.image.quotas.values()
            self.image.derived[LIMITS_CHANGES] = any(MUTATION in own for own in quotas)
        if not self.image.derived[LIMITS_CHANGES] or self.api_key not in STRICT_FROM:
            return
        if isinstance(asked, CreateTopics | CreatePartitions | DeleteTopics):
            asked.client_id = self.client_id or ""
            asked.strict_quota = self.api_version >= STRICT_FROM[self.api_key]

    def _throttle(self, results: Iterable[TopicResult]) -> None:
        """Mute the client's connection after changes that exceed its quota."""
        throttle_ms = max((result.throttle_ms for result in results), default=0)
        if throttle_ms:
            self.process.loop.mute(self.connection, now_ms() + throttle_ms)

    async def create_automatically(self, names: Iterable[str]) -> list[TopicResult]:
        """Auto-create topics through the controller; one result for each."""
        return await self.change_in_parts(
            CREATE_TOPICS,
            CREATION_TIMEOUT_MS,
            [[TopicToCreate(name)] for name in names],
            lambda topics, within_ms: CreateTopics(topics, within_ms=within_ms, auto=True),
        )

    def io_worker(
        self, to: Address, operation: CallOperation[Q, A], request: Q, timeout_ms: int | None = None
    ) -> Pending[A]:
        """Call one io worker."""
        return self.process.rpc.call(to, operation, request, timeout_ms)

    @property
    def io_workers(self) -> list[Address]:
        """The addresses of all io workers."""
        return self.process.io_workers

    # -- the image ---------------------------------------------------------------------------

    def endpoint(self, broker: BrokerImage) -> AdvertisedEndpoint | None:
        """The broker's address for this client: that of the listener that it uses."""
        for endpoint in broker.endpoints:
            if endpoint.listener == self.listener:
                return endpoint if endpoint.host else endpoint._replace(host=self.local_address[0])
        return None

    def partition(self, topic: str, number: int) -> PartitionImage:
        """The partition; UNKNOWN_TOPIC_OR_PARTITION."""
        known = self.image.topics.get(topic)
        if known is None or not 0 <= number < len(known.partitions):
            raise WireError(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION)
        return known.partitions[number]

    def led_partition(
        self, topic: str, number: int, leader_epoch: int = -1
    ) -> tuple[PartitionImage, Slot]:
        """The partition and its slot if it is led and served here; else WireError.

        leader_epoch: what the client takes for the current one, -1 if it does not know.
        """
        partition = self.partition(topic, number)
        return partition, self.slot(partition, leader_epoch)

    def slot(self, partition: PartitionImage, leader_epoch: int = -1) -> Slot:
        """The partition's slot, as ``PartitionTable.read`` gives it, if it is led and served here.

        The image says where a partition is; what this broker is to it, its owner says in the slot.
        """
        slot = self._served(partition)
        # COMPAT: the epoch counts first: a client that knows an older leader is fenced.
        check_epoch(leader_epoch, slot["leader_epoch"])
        if slot["role"] != LEADER:
            raise WireError(ErrorCode.NOT_LEADER_OR_FOLLOWER)
        return slot

    def replica(self, topic: str, number: int) -> PartitionImage:
        """The partition, if this broker leads or follows it and serves it; else WireError."""
        partition = self.partition(topic, number)
        self._served(partition)
        return partition

    def may_lead(self, partition: PartitionImage) -> bool:
        """Whether to ask its owner: it leads the partition, or has not published its role yet."""
        if partition.slot == NO_SLOT:
            return False
        return self.process.table.role(partition.slot, partition.slot_incarnation) != FOLLOWER

    def _served(self, partition: PartitionImage) -> Slot:
        """The slot of a replica that this broker leads or follows."""
        slot = None if partition.slot == NO_SLOT else self.process.table.read(partition.slot)
        if slot is not None and slot["slot_incarnation"] == partition.slot_incarnation:
            if slot["state"] == OFFLINE:
                raise WireError(ErrorCode.KAFKA_STORAGE_ERROR)
            if slot["state"] == ONLINE and slot["role"] in (LEADER, FOLLOWER):
                return slot
        # It is elsewhere, or its owner is loading the log or restarting: it will be available soon.
        raise WireError(ErrorCode.NOT_LEADER_OR_FOLLOWER)


def bound_of(timeout_ms: int) -> int | None:
    """The deadline of a call for a client's timeout; None, which is that of the operation, if the
    client sets none.

    COMPAT: kafka-go sends 0 for none. Kafka has no deadline for these at all with ZooKeeper.
    """
    return None if timeout_ms <= 0 else max(timeout_ms, CHANGE_MIN_MS)


def check_epoch(asked: int, current: int) -> None:
    """Raise WireError unless a client knows the current leader epoch, or says none."""
    if 0 <= asked < current:
        raise WireError(ErrorCode.FENCED_LEADER_EPOCH)
    if asked > current:
        raise WireError(ErrorCode.UNKNOWN_LEADER_EPOCH)


def partition_error(error: WireError) -> int:
    """The code for one partition when the call to its owner failed."""
    if error.code == ErrorCode.COORDINATOR_NOT_AVAILABLE:  # the io worker is being restarted
        return int(ErrorCode.NOT_LEADER_OR_FOLLOWER)
    return int(error.code)
