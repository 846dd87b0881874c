"""``SimpleConsumer`` of 0.8: one connection to one broker, and no state but that."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from types import TracebackType
from typing import Any, overload

from kbroker.client.batches.offsets import TopicPartition
from kbroker.client.connections.security import Security
from kbroker.legacy.channel import BrokerLine
from kbroker.legacy.fetching import FetchRequest, FetchResponse, merged
from kbroker.legacy.legacy_errors import raise_for
from kbroker.legacy.offset_requests import (
    IN_BROKERS,
    ConsumerMetadataRequest,
    ConsumerMetadataResponse,
    OffsetAndMetadata,
    OffsetCommitRequest,
    OffsetCommitResponse,
    OffsetFetchRequest,
    OffsetFetchResponse,
    OffsetMetadataAndError,
    OffsetRequest,
    OffsetResponse,
    PartitionOffsetRequestInfo,
)
from kbroker.legacy.topic_metadata import (
    Broker,
    TopicMetadata,
    TopicMetadataRequest,
    TopicMetadataResponse,
)

SO_TIMEOUT_MS = 30_000
BUFFER_BYTES = 65_536


class SimpleConsumer:
    """so_timeout: ms that a response may take, besides the time that a fetch may wait.
    buffer_size: of the socket. security: settings of TLS and SASL.

    Which offset to read from is passed with each fetch, and errors of partitions are in the
    responses. A request that fails is sent again once, through another connection; what is raised
    then is ConnectionLost or Timeout. Any thread may call; one at a time is served.
    """

    def __init__(
        self,
        host: str,
        port: int,
        so_timeout: int = SO_TIMEOUT_MS,
        buffer_size: int = BUFFER_BYTES,
        client_id: str = "",
        *,
        security: Mapping[str, Any] | None = None,
    ) -> None:
        self.host = host
        self.port = port
        self.client_id = client_id
        self._line = BrokerLine(
            host,
            port,
            Security.from_options(security or {}),
            timeout_ms=so_timeout,
            receive_buffer=buffer_size,
        )

    def __enter__(self) -> SimpleConsumer:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()

    def close(self) -> None:
        """Close the connection."""
        self._line.close()

    def _ask(self, request: Any, **options: Any) -> Any:
        client_id = request.client_id or self.client_id
        return self._line.call(request.message(), client_id, attempts=2, **options)

    # -- messages

    def fetch(self, request: FetchRequest) -> FetchResponse:
        """Messages of partitions that this broker leads."""
        return FetchResponse.read(self._ask(request, more_ms=request.max_wait))

    def multifetch(self, requests: Iterable[FetchRequest]) -> list[FetchResponse]:
        """The responses to several, which go as one if no partition is in two of them."""
        asked = list(requests)
        whole = merged(asked)
        if whole is None:
            return [self.fetch(one) for one in asked]
        data = self.fetch(whole).data
        return [FetchResponse({key: data[key] for key in one.rows if key in data}) for one in asked]

    # -- metadata

    @overload
    def send(self, request: TopicMetadataRequest) -> TopicMetadataResponse: ...
    @overload
    def send(self, request: ConsumerMetadataRequest) -> ConsumerMetadataResponse: ...
    def send(self, request: Any) -> Any:
        """Where topics are, or the coordinator of a group; any broker knows."""
        if isinstance(request, TopicMetadataRequest):
            return TopicMetadataResponse.read(self._ask(request))
        if isinstance(request, ConsumerMetadataRequest):
            return ConsumerMetadataResponse.read(self._ask(request))
        raise TypeError(f"neither TopicMetadataRequest nor ConsumerMetadataRequest: {request!r}")

    def topic_metadata(self, topics: Iterable[str] = ()) -> list[TopicMetadata]:
        """Of these topics, or of all."""
        return self.send(TopicMetadataRequest(list(topics))).topics_metadata

    def find_coordinator(self, group: str) -> Broker:
        """The broker with the offsets of a group. Raises RejectedError; retriable while the
        cluster prepares to have some.
        """
        response = self.send(ConsumerMetadataRequest(group))
        raise_for(response.error_code, f"the coordinator of group {group}")
        assert response.coordinator is not None
        return response.coordinator

    # -- offsets of logs

    @overload
    def get_offsets_before(self, topic: OffsetRequest) -> OffsetResponse: ...
    @overload
    def get_offsets_before(
        self, topic: str, partition: int, time_ms: int, max_num_offsets: int
    ) -> list[int]: ...
    def get_offsets_before(
        self,
        topic: str | OffsetRequest,
        partition: int = 0,
        time_ms: int = OffsetRequest.LATEST_TIME,
        max_num_offsets: int = 1,
    ) -> Any:
        """Offsets from which can be read, the largest first: where segments begin that were last
        written to before the time, or with LATEST_TIME the end of the log, too.

        Takes a request, or what one for a single partition has; then it raises RejectedError.
        """
        if isinstance(topic, OffsetRequest):
            return OffsetResponse.read(self._ask(topic))
        info = PartitionOffsetRequestInfo(time_ms, max_num_offsets)
        response = OffsetResponse.read(self._ask(OffsetRequest({(topic, partition): info})))
        response.raise_for_error()
        return response.offsets(topic, partition)

    def earliest_or_latest_offset(self, topic: str, partition: int, time: int) -> int:
        """time: EARLIEST_TIME or LATEST_TIME. Raises RejectedError."""
        return self.get_offsets_before(topic, partition, time, 1)[0]

    # -- offsets of groups

    @overload
    def commit_offsets(self, group: OffsetCommitRequest) -> OffsetCommitResponse: ...
    @overload
    def commit_offsets(
        self,
        group: str,
        offsets: Mapping[TopicPartition, int | tuple[Any, ...]],
        metadata: str = "",
        *,
        version: int = IN_BROKERS,
    ) -> None: ...
    def commit_offsets(
        self,
        group: str | OffsetCommitRequest,
        offsets: Mapping[TopicPartition, int | tuple[Any, ...]] | None = None,
        metadata: str = "",
        *,
        version: int = IN_BROKERS,
    ) -> OffsetCommitResponse | None:
        """Takes a request, or what one has; then it raises RejectedError.

        version: IN_BROKERS, for which this must be the group's coordinator, or IN_ZOOKEEPER.
        metadata: of offsets that have none of their own.
        """
        if isinstance(group, OffsetCommitRequest):
            return OffsetCommitResponse.read(self._ask(group, version=group.version_id))
        given = {
            key: OffsetAndMetadata(info, metadata) if isinstance(info, int) else info
            for key, info in (offsets or {}).items()
        }
        request = OffsetCommitRequest(group, given, version)
        OffsetCommitResponse.read(self._ask(request, version=version)).raise_for_error()
        return None

    @overload
    def fetch_offsets(self, group: OffsetFetchRequest) -> OffsetFetchResponse: ...
    @overload
    def fetch_offsets(
        self, group: str, partitions: Iterable[TopicPartition], *, version: int = IN_BROKERS
    ) -> dict[TopicPartition, OffsetMetadataAndError]: ...
    def fetch_offsets(
        self,
        group: str | OffsetFetchRequest,
        partitions: Iterable[TopicPartition] = (),
        *,
        version: int = IN_BROKERS,
    ) -> Any:
        """Takes a request, or what one has; then it returns what is committed, without the
        partitions that have nothing, and raises RejectedError.
        """
        if isinstance(group, OffsetFetchRequest):
            return OffsetFetchResponse.read(self._ask(group, version=group.version_id))
        request = OffsetFetchRequest(group, partitions, version)
        return OffsetFetchResponse.read(self._ask(request, version=version)).committed()
