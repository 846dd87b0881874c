"""Fetch requests of 0.8 and what comes back."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import Any, NamedTuple

from kbroker.client.batches.offsets import TopicPartition
from kbroker.errors import ErrorCode
from kbroker.legacy.legacy_errors import raise_for
from kbroker.legacy.message_set import MessageAndOffset, MessageSet
from kbroker.protocol.messages import fetch

_ORDINARY_CONSUMER = -1


class FetchRequest:
    """What to fetch of one partition: from which offset on, and how many bytes at most.

    max_wait: ms that the broker may wait until there are min_bytes. ``FetchRequestBuilder`` makes
    one for several partitions.
    """

    def __init__(
        self,
        topic: str,
        partition: int,
        offset: int,
        max_bytes: int,
        *,
        max_wait: int = 0,
        min_bytes: int = 0,
        client_id: str = "",
    ) -> None:
        self.rows: dict[TopicPartition, tuple[int, int]] = {(topic, partition): (offset, max_bytes)}
        self.max_wait = max_wait
        self.min_bytes = min_bytes
        self.client_id = client_id

    @classmethod
    def of(
        cls,
        rows: Mapping[TopicPartition, tuple[int, int]],
        *,
        max_wait: int = 0,
        min_bytes: int = 0,
        client_id: str = "",
    ) -> FetchRequest:
        """rows: offset and bytes by (topic, partition)."""
        made = cls.__new__(cls)
        made.rows = dict(rows)
        made.max_wait, made.min_bytes, made.client_id = max_wait, min_bytes, client_id
        return made

    def __repr__(self) -> str:
        return f"FetchRequest({self.rows}, max_wait={self.max_wait}, min_bytes={self.min_bytes})"

    def message(self) -> fetch.FetchRequest:
        """As it is sent."""
        topics: dict[str, Any] = {}
        for (topic, partition), (offset, max_bytes) in self.rows.items():
            row = fetch.FetchRequest.FetchTopic(topic=topic, partitions=[])
            topics.setdefault(topic, row).partitions.append(
                fetch.FetchRequest.FetchPartition(
                    partition=partition, fetch_offset=offset, partition_max_bytes=max_bytes
                )
            )
        return fetch.FetchRequest(
            replica_id=_ORDINARY_CONSUMER,
            max_wait_ms=self.max_wait,
            min_bytes=self.min_bytes,
            topics=list(topics.values()),
        )


class FetchRequestBuilder:
    """``FetchRequestBuilder().client_id("c").add_fetch("t", 0, 12, 65536).max_wait(100).build()``.

    A partition that is added again replaces what was added before.
    """

    def __init__(self) -> None:
        self._rows: dict[TopicPartition, tuple[int, int]] = {}
        self._client_id = ""
        self._max_wait = 0
        self._min_bytes = 0

    def add_fetch(
        self, topic: str, partition: int, offset: int, fetch_size: int
    ) -> FetchRequestBuilder:
        """offset: of the first message that is wanted. fetch_size: in bytes."""
        self._rows[topic, partition] = offset, fetch_size
        return self

    def client_id(self, client_id: str) -> FetchRequestBuilder:
        """The name for the broker's logs and quotas."""
        self._client_id = client_id
        return self

    def max_wait(self, max_wait: int) -> FetchRequestBuilder:
        """How many ms the broker may wait for ``min_bytes``."""
        self._max_wait = max_wait
        return self

    def min_bytes(self, min_bytes: int) -> FetchRequestBuilder:
        """For how many bytes it waits."""
        self._min_bytes = min_bytes
        return self

    def build(self) -> FetchRequest:
        """The request; the builder is empty then."""
        rows, self._rows = self._rows, {}
        return FetchRequest.of(
            rows,
            max_wait=self._max_wait,
            min_bytes=self._min_bytes,
            client_id=self._client_id,
        )


class FetchResponsePartition(NamedTuple):
    """Of one partition. error: the code of the protocol, 0 if there is none."""

    error: int
    high_watermark: int
    messages: MessageSet


class FetchResponse:
    """data: by (topic, partition). Iterating goes over the messages of all of them."""

    def __init__(self, data: Mapping[TopicPartition, FetchResponsePartition]) -> None:
        self.data = dict(data)

    @classmethod
    def read(cls, response: Any) -> FetchResponse:
        """From the decoded one."""
        return cls(
            {
                (topic.topic, row.partition_index): FetchResponsePartition(
                    row.error_code,
                    row.high_watermark,
                    MessageSet(b"" if row.records is None else row.records),
                )
                for topic in response.responses
                for row in topic.partitions
            }
        )

    @property
    def has_error(self) -> bool:
        return any(row.error for row in self.data.values())

    def error_code(self, topic: str, partition: int) -> int:
        """0 if there is none."""
        return self._row(topic, partition).error

    def message_set(self, topic: str, partition: int) -> MessageSet:
        """Empty if there is an error."""
        return self._row(topic, partition).messages

    def high_watermark(self, topic: str, partition: int) -> int:
        """The offset of the next message that will be committed."""
        return self._row(topic, partition).high_watermark

    def raise_for_error(self) -> None:
        """Raise RejectedError for the first partition that has an error."""
        for (topic, partition), row in self.data.items():
            raise_for(row.error, f"fetch of {topic}-{partition}")

    def _row(self, topic: str, partition: int) -> FetchResponsePartition:
        row = self.data.get((topic, partition))
        if row is None:
            raise KeyError(f"{topic}-{partition} is not in the response")
        return row

    def __iter__(self) -> Iterator[MessageAndOffset]:
        for row in self.data.values():
            yield from row.messages

    def __repr__(self) -> str:
        named = {
            f"{topic}-{partition}": ErrorCode(row.error).name
            for (topic, partition), row in self.data.items()
        }
        return f"FetchResponse({named})"


def merged(requests: Iterable[FetchRequest]) -> FetchRequest | None:
    """One request for all; None if two of them name the same partition."""
    rows: dict[TopicPartition, tuple[int, int]] = {}
    max_wait = min_bytes = 0
    client_id = ""
    for one in requests:
        if rows.keys() & one.rows.keys():
            return None
        rows.update(one.rows)
        max_wait, min_bytes = max(max_wait, one.max_wait), max(min_bytes, one.min_bytes)
        client_id = client_id or one.client_id
    return FetchRequest.of(rows, max_wait=max_wait, min_bytes=min_bytes, client_id=client_id)
