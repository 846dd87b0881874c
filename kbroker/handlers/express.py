"""Frequent requests about one group or transactional id, handed on undecoded.

Only the key, their first field, is read here: commits and heartbeats are the bulk of what a
coordinator is sent, and decoding them twice would be a third of their cost. Whatever is unusual
about one (no coordinator, an error, a malformed body) takes the way through its handler.
"""

from __future__ import annotations

import struct
from typing import TYPE_CHECKING, NamedTuple

from kbroker.cluster.image import NO_SLOT
from kbroker.coordinator.partitioner import (
    OFFSETS_TOPIC,
    TRANSACTIONS_TOPIC,
    coordinator_partition,
)
from kbroker.handlers.coordinated import TIMEOUT_MS
from kbroker.protocol.api import ApiKey
from kbroker.protocol.header import RequestHeader

if TYPE_CHECKING:
    from kbroker.ipc.rpc import Pending
    from kbroker.workers.network import NetworkWorker

_INT16 = struct.Struct(">h")
# BOUND: keys whose coordinator is remembered until the image changes.
REMEMBERED_MAX = 20_000


class Route(NamedTuple):
    topic: str
    first_version: int
    first_flexible: int


def _route(key: ApiKey, topic: str, first_version: int = 0) -> tuple[int, Route]:
    return int(key), Route(topic, first_version, key.first_flexible)


ROUTES: dict[int, Route] = dict(
    [
        # Version 0 of a commit goes to the metadata store.
        _route(ApiKey.OFFSET_COMMIT, OFFSETS_TOPIC, 1),
        _route(ApiKey.HEARTBEAT, OFFSETS_TOPIC),
        _route(ApiKey.CONSUMER_GROUP_HEARTBEAT, OFFSETS_TOPIC),
        _route(ApiKey.ADD_OFFSETS_TO_TXN, TRANSACTIONS_TOPIC),
        _route(ApiKey.END_TXN, TRANSACTIONS_TOPIC),
    ]
)


def hand_on(
    process: NetworkWorker, route: Route, header: RequestHeader, frame: bytes, peer_host: str
) -> Pending | None:
    """Ask the coordinator; resolves to the response's body or an error. None: not this way."""
    start = header.end_offset
    if header.api_version < route.first_version:
        return None
    if header.api_version >= route.first_flexible:
        # A compact length in one byte; longer keys take the long way.
        if start >= len(frame) or not 1 < frame[start] < 0x80:
            return None
        end = start + frame[start]
        key = frame[start + 1 : end]
    else:
        if start + 2 > len(frame):
            return None
        (size,) = _INT16.unpack_from(frame, start)
        if size <= 0:
            return None
        end = start + 2 + size
        key = frame[start + 2 : end]
    if end > len(frame):
        return None
    remembered = process.image.derived
    found = remembered.get((route.topic, key))
    if found is None:
        found = _find(process, route.topic, key)
        if found is None:
            return None
        if len(remembered) >= REMEMBERED_MAX:
            remembered.clear()
        remembered[route.topic, key] = found
    return process.coordinators.call(
        found[0],
        found[1],
        header.api_key,
        header.api_version,
        frame[start:],
        header.client_id or "",
        peer_host,
        TIMEOUT_MS,
    )


def _find(process: NetworkWorker, topic: str, key: bytes) -> tuple[int, int] | None:
    """Slot and incarnation of a key's coordinator here."""
    known = process.image.topics.get(topic)
    if known is None:
        return None
    try:
        text = key.decode()
    except UnicodeDecodeError:
        return None
    partition = known.partitions[coordinator_partition(text, len(known.partitions))]
    if partition.leader != process.context.broker_id or partition.slot == NO_SLOT:
        return None
    return partition.slot, partition.slot_incarnation
