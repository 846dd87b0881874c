"""Clients of other projects behind one small interface, so that a test runs with each of them.

A driver does one thing with its client and reports what that client reported: nothing is repaired
or retried here beyond what the client does on its own.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

CODECS = ("none", "gzip", "snappy", "lz4", "zstd")
BEGINNING = "beginning"
WAIT_S = 20.0


@dataclass(frozen=True, slots=True)
class Message:
    """A record that a test produces."""

    value: bytes | None
    key: bytes | None = None
    headers: tuple[tuple[str, bytes | None], ...] = ()
    timestamp_ms: int | None = None


@dataclass(frozen=True, slots=True)
class Stored:
    """A record that a consumer returned."""

    offset: int
    value: bytes | None
    key: bytes | None
    headers: tuple[tuple[str, bytes | None], ...]
    timestamp_ms: int
    partition: int = 0


class ClientError(Exception):
    """The client reported a Kafka error; ``code`` is the number on the wire."""

    def __init__(self, code: int, text: str) -> None:
        super().__init__(f"error {code}: {text}")
        self.code = code


class Driver(Protocol):
    """The operations that every client supports."""

    name: str
    null_headers: bool  # whether it sends headers without a value
    header_sets: bool  # whether each message of a batch can have headers of its own
    timestamps: bool  # whether it lets the application set the timestamp

    def produce(
        self,
        topic: str,
        messages: Sequence[Message],
        *,
        partition: int = 0,
        codec: str = "none",
        acks: str = "all",
        idempotent: bool = False,
    ) -> list[int]:
        """The offsets returned by the client, one per message; empty without (acks=0)."""

    def fetch(
        self,
        topic: str,
        count: int,
        *,
        partition: int | range = 0,
        start: int | str = BEGINNING,
        committed: bool = False,
        timeout_s: float = WAIT_S,
    ) -> list[Stored]:
        """Up to ``count`` records of one partition or several (of the whole topic, then) from an
        offset, the beginning or the end; fewer after the timeout.
        """

    def close(self) -> None:
        """Close the driver's resources."""


class OffsetDriver(Driver, Protocol):
    """A client that requests offsets."""

    def offset(self, topic: str, which: str | int, partition: int = 0) -> int:
        """``earliest``, ``latest`` or of the first record at or after a timestamp (-1: none)."""


class AdminDriver(OffsetDriver, Protocol):
    """A client with an admin interface."""

    def create_topic(
        self, topic: str, partitions: int = 1, config: Mapping[str, str] | None = None
    ) -> None: ...

    def delete_topic(self, topic: str) -> None: ...

    def create_partitions(self, topic: str, total: int) -> None: ...

    def partitions(self, topic: str) -> int:
        """The number of partitions; raises UNKNOWN_TOPIC_OR_PARTITION for an unknown topic."""

    def topic_config(self, topic: str) -> dict[str, str | None]: ...

    def broker_config(self, broker_id: int) -> dict[str, str | None]: ...

    def alter_topic_config(self, topic: str, name: str, value: str) -> None: ...

    def delete_records(self, topic: str, before: int) -> int:
        """Returns the low watermark."""

    def cluster(self) -> dict[str, Any]:
        """``{"id": ..., "controller": 0, "brokers": {0: "host:port"}}``."""


def numbers(partition: int | range) -> list[int]:
    """The partitions for ``fetch``."""
    return [partition] if isinstance(partition, int) else list(partition)


def payloads(count: int, size: int = 100) -> list[Message]:
    """Distinct messages that every codec can compress."""
    return [Message(b"%08d|" % n + b"abcdefghij" * (size // 10)) for n in range(count)]


def options(driver: Driver, **settings: object) -> dict[str, Any]:
    """Java's config names, with underscores, for the driver's ``fetch``."""
    if driver.name == "confluent-kafka":
        renamed = {"fetch_max_wait_ms": "fetch.wait.max.ms"}
        return {
            renamed.get(name, name).replace("_", "."): value for name, value in settings.items()
        }
    if driver.name == "kcat":
        renamed = {"fetch_max_wait_ms": "fetch_wait_max_ms"}
        return {renamed.get(name, name): str(value) for name, value in settings.items()}
    return settings
