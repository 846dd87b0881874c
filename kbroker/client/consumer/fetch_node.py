"""The brokers that a consumer fetches from, and what of their responses is in memory."""

from __future__ import annotations

from typing import NamedTuple

from kbroker.client.batches.offsets import TopicPartition as Key
from kbroker.client.consumer.fetch_link import FetchLink
from kbroker.client.consumer.fetch_session import FetchSession
from kbroker.client.consumer.partitions import ReadPartition


class FetchedFrom(NamedTuple):
    """What a fetch asks for: a version of a partition's position, and an offset."""

    part: ReadPartition
    version: int
    offset: int

    @property
    def holds(self) -> bool:
        return self.part.version == self.version and self.part.fetch_offset == self.offset


class Source:
    """A response, until all of its sets are read."""

    __slots__ = ("left", "node")

    def __init__(self, node: FetchNode) -> None:
        self.node = node
        self.left = 0


class FetchNode:
    """A broker that is fetched from. responses: those in memory. sent: what is in flight.
    doubted_at: when metadata was last asked for because it is silent.
    """

    __slots__ = (
        "address",
        "connecting",
        "doubted_at",
        "failures",
        "id",
        "link",
        "rejections",
        "responses",
        "retry_at",
        "sent",
        "session",
        "trouble",
    )

    def __init__(self, node_id: int) -> None:
        self.id = node_id
        self.link: FetchLink | None = None
        self.session = FetchSession()
        self.connecting = False
        self.failures = 0
        self.rejections = 0  # of whole fetches, in a row
        self.retry_at = 0.0
        self.responses = 0
        self.sent: dict[Key, FetchedFrom] = {}
        self.doubted_at = 0.0
        self.address: tuple[str, int] | None = None
        self.trouble: Exception | None = None
