"""``SyncProducer`` of 0.8: sends each request at once, to one broker."""

from __future__ import annotations

from collections.abc import Mapping
from types import TracebackType
from typing import Any, NamedTuple, overload

from kbroker.client.batches.offsets import TopicPartition
from kbroker.client.connections.security import Security
from kbroker.client.settings.client_settings import (
    INT_MAX,
    ClientSetting,
    ClientSettings,
    text,
    whole,
)
from kbroker.legacy.channel import BrokerLine
from kbroker.legacy.legacy_errors import raise_for
from kbroker.legacy.message_set import MessageSet
from kbroker.legacy.topic_metadata import TopicMetadataRequest, TopicMetadataResponse
from kbroker.protocol.messages.produce import ProduceRequest

REQUEST_ROWS = (
    ClientSetting(
        "client.id", text, "", "Name of this producer in brokers' logs, quotas and metrics."
    ),
    ClientSetting(
        "request.required.acks",
        whole,
        0,
        "Whose acknowledgement a request needs: none (0: failures are not noticed), the leader's "
        "(1), or that of all in-sync replicas (-1). Brokers from 0.9 on reject other numbers.",
        -1,
        32_767,
    ),
    ClientSetting(
        "request.timeout.ms",
        whole,
        10_000,
        "How long the leader waits for replicas before it responds with an error, and the producer "
        "for a response before it closes the connection.",
        1,
        INT_MAX,
    ),
    ClientSetting(
        "send.buffer.bytes",
        whole,
        100 * 1024,
        "TCP send buffer, -1: the system's.",
        -1,
        INT_MAX,
    ),
)
_SETTINGS = {row.name: row for row in REQUEST_ROWS}


class ProducerRequest:
    """data: message sets by (topic, partition). acks, ack_timeout_ms: of the producer if None."""

    def __init__(
        self,
        data: Mapping[TopicPartition, MessageSet],
        *,
        required_acks: int | None = None,
        ack_timeout_ms: int | None = None,
        client_id: str = "",
    ) -> None:
        self.data = dict(data)
        self.required_acks = required_acks
        self.ack_timeout_ms = ack_timeout_ms
        self.client_id = client_id

    def message(self, acks: int, timeout_ms: int) -> ProduceRequest:
        """As it is sent."""
        topics: dict[str, Any] = {}
        for (topic, partition), messages in self.data.items():
            row = ProduceRequest.TopicProduceData(name=topic, partition_data=[])
            topics.setdefault(topic, row).partition_data.append(
                ProduceRequest.PartitionProduceData(index=partition, records=messages.data)
            )
        return ProduceRequest(
            acks=acks if self.required_acks is None else self.required_acks,
            timeout_ms=timeout_ms if self.ack_timeout_ms is None else self.ack_timeout_ms,
            topic_data=list(topics.values()),
        )


class ProducerResponseStatus(NamedTuple):
    """offset: of the first message, in the log. error: 0, or of the protocol."""

    error: int
    offset: int


class ProducerResponse:
    """status: by (topic, partition)."""

    def __init__(self, status: Mapping[TopicPartition, ProducerResponseStatus]) -> None:
        self.status = dict(status)

    @classmethod
    def read(cls, response: Any) -> ProducerResponse:
        """From the decoded one."""
        return cls(
            {
                (topic.name, row.index): ProducerResponseStatus(row.error_code, row.base_offset)
                for topic in response.responses
                for row in topic.partition_responses
            }
        )

    @property
    def has_error(self) -> bool:
        return any(row.error for row in self.status.values())

    def raise_for_error(self) -> None:
        """Raise RejectedError for the first partition that has an error."""
        for (topic, partition), row in self.status.items():
            raise_for(row.error, f"produce to {topic}-{partition}")


class SyncProducer:
    """settings: ``client.id``, ``request.required.acks``, ``request.timeout.ms``,
    ``send.buffer.bytes``, and those of TLS and SASL; as keywords, with ``_`` for ``.``, too.
    security: instead of those.

    Returns when the broker has responded, or with acks 0 once the request is written. Nothing is
    sent twice: after ConnectionLost or Timeout the caller decides. Any thread may call; one at a
    time is served.
    """

    def __init__(
        self,
        host: str,
        port: int,
        settings: Mapping[str, Any] | None = None,
        *,
        security: Security | None = None,
        **keywords: Any,
    ) -> None:
        read = ClientSettings(_SETTINGS, settings, keywords)
        self.host = host
        self.port = port
        self.client_id: str = read["client.id"]
        self.required_acks: int = read["request.required.acks"]
        self.ack_timeout_ms: int = read["request.timeout.ms"]
        self._line = BrokerLine(
            host,
            port,
            security or read.security,
            timeout_ms=self.ack_timeout_ms,
            send_buffer=read["send.buffer.bytes"],
        )

    def __enter__(self) -> SyncProducer:
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

    @overload
    def send(self, request: TopicMetadataRequest) -> TopicMetadataResponse: ...
    @overload
    def send(self, request: ProducerRequest) -> ProducerResponse | None: ...
    @overload
    def send(self, request: str, partition: int, message_set: MessageSet) -> int | None: ...
    def send(
        self,
        request: Any,
        partition: int | None = None,
        message_set: MessageSet | None = None,
    ) -> Any:
        """Send a request; or a message set to a partition, by name and number, which returns the
        offset of its first message and raises RejectedError. None with acks 0.
        """
        if isinstance(request, TopicMetadataRequest):
            answer = self._line.call(request.message(), request.client_id or self.client_id)
            return TopicMetadataResponse.read(answer)
        if isinstance(request, ProducerRequest):
            return self._produce(request)
        if partition is None or message_set is None:
            raise TypeError("send(request), or send(topic, partition, message_set)")
        response = self._produce(ProducerRequest({(request, partition): message_set}))
        if response is None:
            return None
        response.raise_for_error()
        return response.status[request, partition].offset

    def _produce(self, request: ProducerRequest) -> ProducerResponse | None:
        message = request.message(self.required_acks, self.ack_timeout_ms)
        answer = self._line.call(
            message, request.client_id or self.client_id, expects_response=message.acks != 0
        )
        return None if answer is None else ProducerResponse.read(answer)
