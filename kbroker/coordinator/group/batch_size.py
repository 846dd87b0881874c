"""Whether the records of an operation will fit into the one batch that they become.

A batch that the log rejects would cost the shard if soft state had changed by then. So an operation
whose records grow with its group asks first.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from kbroker.coordinator.machine import NO_PRODUCER
from kbroker.record.compression import NONE

if TYPE_CHECKING:
    from kbroker.coordinator.machine import Host

# The maximum overhead of a batch besides its records, and of a record besides its key and value.
_BATCH_OVERHEAD, _RECORD_OVERHEAD = 61, 32


def fits_batch(host: Host, records: Sequence[tuple[bytes, bytes | None]], spare: int = 0) -> bool:
    """Whether the topic takes these encoded records, and ``spare`` more bytes, in one batch."""
    from kbroker.config.topic_config import TopicConfig

    topic = host.image.topics.get(host.topic)
    config = TopicConfig.stored(topic.config if topic else {}, host.config)
    limit: int = min(config["max.message.bytes"], config["segment.bytes"]) - spare
    size = sum(_RECORD_OVERHEAD + len(key) + len(value or b"") for key, value in records)
    return size + _BATCH_OVERHEAD <= limit or len(_batch(host, records)) <= limit


def _batch(host: Host, records: Sequence[tuple[bytes, bytes | None]]) -> bytes:
    """The batch, as the shard would make it."""
    codec = host.config["offsets.topic.compression.codec"]
    if codec == NONE:
        from kbroker._ext.record.plain_batch import build_batch

        return bytes(build_batch(list(records), host.wall_ms(), *NO_PRODUCER))
    from kbroker.record.builder import BatchBuilder

    builder = BatchBuilder(codec)
    for key, value in records:
        builder.append(value, key, host.wall_ms())
    return bytes(builder.build())
