"""A log of this process, as a read_committed consumer sees it."""

from __future__ import annotations

from support.storage.fetch_log import visible
from support.storage.log_store import LogStore

from kbroker._ext.fetch.fetch_engine import FetchEngine
from kbroker.protocol import codec
from kbroker.protocol.header import decode_response_header
from kbroker.protocol.messages.fetch import FetchRequest, FetchResponse
from kbroker.storage.log.partition_log import PartitionLog

FETCH_KEY, VERSION = 1, 12


def fetch_committed(
    engine: FetchEngine, token: int, offset: int, limit: int
) -> FetchResponse.PartitionData:
    """The response for partition 0 of topic ``t``; fails on an error code."""
    request = FetchRequest(max_wait_ms=0, min_bytes=0, max_bytes=1 << 20, isolation_level=1)
    wanted = FetchRequest.FetchPartition(
        partition=0, fetch_offset=offset, partition_max_bytes=limit
    )
    request.topics.append(FetchRequest.FetchTopic(topic="t", partitions=[wanted]))
    reply = engine.handle_bytes(codec.encode(request, VERSION), VERSION, 1, token, 0)
    assert reply is not None, "parked"
    _, position = decode_response_header(reply, FETCH_KEY, VERSION, 4)
    response = codec.decode_exact(FetchResponse, VERSION, reply, position)
    partition = response.responses[0].partitions[0]
    assert partition.error_code == 0, partition.error_code
    return partition


def committed_offsets(store: LogStore, log: PartitionLog, limit: int = 1 << 20) -> list[int]:
    """Offsets of the committed records in slot 0, from the log start to the log end."""
    engine = FetchEngine(store.table, 0, store.dirs)
    engine.put_topic("t", bytes(range(16)), [0])
    at, seen = log.log_start_offset, []
    for token in range(1, 1 << 20):
        if at >= log.last_stable_offset:
            break
        offsets, reached = visible(fetch_committed(engine, token, at, limit), at)
        seen += offsets
        if reached == at:
            break
        at = reached
    return seen
