"""The offsets of a group in the brokers, as the consumers of 0.8 keep them there: the coordinator
is found through any broker, and again when it has moved.
"""

from __future__ import annotations

import logging
import random
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from types import TracebackType
from typing import Any, TypeVar

from kbroker.client.batches.offsets import TopicPartition
from kbroker.client.errors import ClientError
from kbroker.legacy.offset_requests import (
    OffsetCommitRequest,
    OffsetFetchRequest,
    OffsetMetadataAndError,
)
from kbroker.legacy.simple_consumer import SimpleConsumer

logger = logging.getLogger("kbroker.client.legacy.offset_channel")

_T = TypeVar("_T")
FOREVER = -1


class OffsetChannel:
    """brokers: gives the (host, port) of brokers that may be asked for the coordinator, each time.

    backoff_ms: ``offsets.channel.backoff.ms``, before another attempt. socket_timeout_ms:
    ``offsets.channel.socket.timeout.ms``, how long a response may take. One thread at a time.
    """

    def __init__(
        self,
        group: str,
        brokers: Callable[[], Sequence[tuple[str, int]]],
        *,
        backoff_ms: int = 1_000,
        socket_timeout_ms: int = 10_000,
        client_id: str = "",
        security: Mapping[str, Any] | None = None,
        sleep: Callable[[float], None] = time.sleep,
    ) -> None:
        self.group = group
        self._brokers = brokers
        self._backoff_s = backoff_ms / 1000
        self._socket_timeout_ms = socket_timeout_ms
        self._client_id = client_id
        self._security = security
        self._sleep = sleep
        self._coordinator: SimpleConsumer | None = None

    def __enter__(self) -> OffsetChannel:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()

    def close(self) -> None:
        """Close the connection; the next call opens another one."""
        if self._coordinator is not None:
            self._coordinator.close()
            self._coordinator = None

    def commit(
        self,
        offsets: Mapping[TopicPartition, int | tuple[Any, ...]],
        retries: int = 0,
    ) -> None:
        """retries: ``offsets.commit.max.retries`` where nothing may be lost, at shutdown; finding
        the coordinator is not counted.

        Raises the last error.
        """

        def attempt(coordinator: SimpleConsumer) -> None:
            request = OffsetCommitRequest(self.group, offsets, client_id=self._client_id)
            coordinator.commit_offsets(request).raise_for_error()

        if offsets:
            self._repeated("commit offsets", attempt, retries)

    def fetch(
        self, partitions: Iterable[TopicPartition], retries: int = FOREVER
    ) -> dict[TopicPartition, OffsetMetadataAndError]:
        """What is committed, without the partitions that have nothing.

        A coordinator that is loading its offsets is asked again, as is another one if it has moved.
        """
        request = OffsetFetchRequest(self.group, partitions, client_id=self._client_id)
        if not request.request_info:
            return {}
        return self._repeated(
            "read offsets", lambda one: one.fetch_offsets(request).committed(), retries
        )

    def _repeated(self, doing: str, attempt: Callable[[SimpleConsumer], _T], retries: int) -> _T:
        while True:
            coordinator = self._found()
            try:
                return attempt(coordinator)
            except ClientError as error:
                self.close()
                if not retries or not error.retriable:
                    raise
                logger.info("cannot %s of group %s: %s; trying again", doing, self.group, error)
            retries -= 1 if retries > 0 else 0
            self._sleep(self._backoff_s)

    def _found(self) -> SimpleConsumer:
        """A connection to the coordinator; asks until there is one."""
        while self._coordinator is None:
            brokers = list(self._brokers())
            random.shuffle(brokers)
            for host, port in brokers:
                try:
                    with self._connected(host, port) as any_broker:
                        coordinator = any_broker.find_coordinator(self.group)
                except ClientError as error:
                    if not error.retriable:
                        raise
                    logger.info(
                        "%s:%d does not name the coordinator of group %s: %s",
                        host,
                        port,
                        self.group,
                        error,
                    )
                    continue
                self._coordinator = self._connected(coordinator.host, coordinator.port)
                break
            else:
                self._sleep(self._backoff_s)
        return self._coordinator

    def _connected(self, host: str, port: int) -> SimpleConsumer:
        return SimpleConsumer(
            host,
            port,
            self._socket_timeout_ms,
            client_id=self._client_id,
            security=self._security,
        )
