"""The size limit of one operation, whose records become one batch."""

from __future__ import annotations

from kbroker._ext.coordinator.offset_records import encode_key
from kbroker.coordinator.machine import CoordinatorOperation, Host

# The maximum overhead of a batch besides its records, and of a record besides its key and value.
BATCH_OVERHEAD, RECORD_OVERHEAD = 61, 32
# BOUND: a batch up to this size fits any max.message.bytes; the config is not looked up.
SURELY_FITS_BYTES = 16 * 1024
# BOUND: bytes of keys in one operation of tombstones. Their batch stays far below the default of
# max.message.bytes, and takes a millisecond or two to write.
TOMBSTONE_BYTES_MAX = 128 * 1024


def fits(host: Host, op: CoordinatorOperation) -> bool:
    """Whether the encoded records of an operation fit one batch of the topic."""
    size = BATCH_OVERHEAD
    for key, value in op.records:
        size += RECORD_OVERHEAD + len(key) + (0 if value is None else len(value))
    if size <= SURELY_FITS_BYTES:
        return True
    topic = host.image.topics.get(host.topic)
    setting = None if topic is None else topic.config.get("max.message.bytes")
    return size <= int(setting or host.config["message.max.bytes"])


class Tombstones:
    """Appends to one operation while there is room. count: how many were appended."""

    __slots__ = ("_op", "_room", "count")

    def __init__(self, op: CoordinatorOperation) -> None:
        self._op = op
        self._room = TOMBSTONE_BYTES_MAX
        self.count = 0

    @property
    def is_full(self) -> bool:
        return self._room <= 0

    def add(self, group_id: str, topic: str, partition: int) -> bool:
        """Delete an offset; False, and nothing is appended, if there is no more room."""
        if self._room <= 0:
            return False
        key = encode_key(group_id, topic, partition)
        self._op.append_encoded(key, None)
        self._room -= len(key) + RECORD_OVERHEAD
        self.count += 1
        return True
