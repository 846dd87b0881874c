"""Which partition of an internal topic coordinates a group or a transactional id."""

from __future__ import annotations

from kbroker.internal_topics import OFFSETS_TOPIC, TRANSACTIONS_TOPIC

__all__ = ["OFFSETS_TOPIC", "TRANSACTIONS_TOPIC", "coordinator_partition", "java_hash"]

SMALLEST_INT = -(2**31)


def java_hash(text: str) -> int:
    """``String.hashCode`` of Java: signed 32 bits over UTF-16 code units."""
    value = 0
    if text.isascii():
        for unit in text.encode():
            value = (31 * value + unit) & 0xFFFFFFFF
    else:
        data = text.encode("utf-16-le", "surrogatepass")
        for low, high in zip(data[::2], data[1::2], strict=True):
            value = (31 * value + (high << 8 | low)) & 0xFFFFFFFF
    return value - 0x100000000 if value >= 0x80000000 else value


def coordinator_partition(key: str, partitions: int) -> int:
    """The partition that coordinates ``key``, a group id or a transactional id."""
    # COMPAT: Kafka's Utils.abs, where the smallest number has the absolute value 0. Logs that move
    # between the two brokers must have groups in the same partition.
    number = java_hash(key)
    return 0 if number == SMALLEST_INT else abs(number) % partitions
