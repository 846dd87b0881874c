"""What a ZooKeeper consumer raises besides the errors of all clients."""

from __future__ import annotations

from typing import Any

from kbroker.client.errors import ClientError, Timeout


class ConsumerTimeout(Timeout):
    """A stream had no message for ``consumer.timeout.ms``. It can be read on."""


class RebalanceFailed(ClientError):
    """A consumer could not take its partitions in ``rebalance.max.retries`` attempts: others of its
    group still own them, or ZooKeeper does not respond. It is tried again later.
    """

    retriable = True

    def __init__(self, consumer: str, attempts: int, last: str) -> None:
        self.consumer = consumer
        self.attempts = attempts
        self.last = last
        super().__init__(
            f"{consumer} could not rebalance in {attempts} attempts (rebalance.max.retries); "
            f"last: {last}"
        )

    def __reduce__(self) -> tuple[Any, ...]:
        return type(self), (self.consumer, self.attempts, self.last)


class NoInitialOffset(ClientError):
    """A partition has no committed offset, and ``auto.offset.reset`` tells none."""

    def __init__(self, topic: str, partition: int, reset: str) -> None:
        self.topic = topic
        self.partition = partition
        self.reset = reset
        super().__init__(
            f"{topic}-{partition}: the group has no offset, and auto.offset.reset={reset} is "
            "neither smallest nor largest: commit one, or set it"
        )

    def __reduce__(self) -> tuple[Any, ...]:
        return type(self), (self.topic, self.partition, self.reset)


class GroupDisagrees(ClientError):
    """What the consumers of a group have registered does not allow the strategy."""
