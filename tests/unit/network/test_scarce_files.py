"""Every file descriptor of a segment is held by a response that its client does not read."""

from __future__ import annotations

import struct
import time
from pathlib import Path

import pytest
from support.network.net_loop_harness import Harness, framed

from kbroker._ext.shared.partition_table import LEADER, ONLINE
from kbroker.protocol import codec, header
from kbroker.protocol.api import ApiKey
from kbroker.protocol.messages.fetch import FetchRequest

pytestmark = pytest.mark.unit

BATCHES, BATCH_BYTES = 15, 100_000
LOG_BYTES = BATCHES * BATCH_BYTES


def fetch(*wanted: tuple[int, int]) -> bytes:
    """A Fetch of these partitions from these offsets."""
    partitions = [
        FetchRequest.FetchPartition(
            partition=partition, fetch_offset=offset, partition_max_bytes=LOG_BYTES
        )
        for partition, offset in wanted
    ]
    topic = FetchRequest.FetchTopic(topic="t", partitions=partitions)
    request = FetchRequest(replica_id=-1, max_wait_ms=0, min_bytes=1, topics=[topic])
    head = header.encode_request_header(ApiKey.FETCH, 4, 1, "me")
    return framed(head + codec.encode(request, 4))


@pytest.fixture
def harness(tmp_path: Path) -> Harness:
    """Room for two open files; partition 0 has two segments, partition 1 has one."""
    made = Harness(log_dirs=[str(tmp_path)], open_files=2)
    for partition, bases in ((0, (0, BATCHES)), (1, (0,))):
        log = tmp_path / f"t-{partition}"
        log.mkdir()
        for base in bases:
            content = b"".join(
                struct.pack(">qiib", base + n, BATCH_BYTES - 12, 0, 2) + bytes(BATCH_BYTES - 17)
                for n in range(BATCHES)
            )
            (log / f"{base:020d}.log").write_bytes(content)
            (log / f"{base:020d}.index").write_bytes(b"")
        made.table.reset(partition, state=ONLINE, role=LEADER, slot_incarnation=7 + partition)
        end = (base + BATCHES, base, LOG_BYTES)
        made.table.publish(partition, log_start_offset=0, log_end=end)
    return made


def ask(harness: Harness, client, partition: int, offset: int) -> None:
    client.send(fetch((partition, offset)))
    harness.turn()


def relieve(harness: Harness, after_s: float) -> list[str | None]:
    before = len(harness.closed)
    harness.loop.relieve(time.monotonic_ns() // 1_000_000 + int(after_s * 1000))
    harness.turn()
    return harness.closed[before:]


def test_client_that_reads_nothing_gives_its_file_to_others(harness):
    deaf, deaf_too, good = (harness.connect() for _ in range(3))
    ask(harness, deaf, 0, 0)
    ask(harness, deaf_too, 1, 0)
    ask(harness, good, 0, BATCHES)
    assert len(good.recv(1 << 20)) < 1000, "an answer without data"

    [reason] = relieve(harness, 0.6)
    assert "reads too slowly" in reason
    ask(harness, good, 0, BATCHES)
    assert len(good.recv(1 << 20)) > BATCH_BYTES
    assert relieve(harness, 1) == []


def test_client_that_reads_nothing_stays_while_nobody_needs_its_file(harness):
    deaf, deaf_too = harness.connect(), harness.connect()
    ask(harness, deaf, 0, 0)
    ask(harness, deaf_too, 1, 0)
    assert relieve(harness, 30) == []


def test_client_that_lacks_files_because_of_its_own_is_not_closed(harness):
    """A reader of more partitions than there are descriptors gets the others next time."""
    greedy, deaf = harness.connect(), harness.connect()
    ask(harness, deaf, 0, BATCHES)
    greedy.send(fetch((0, 0), (1, 0)))
    harness.turn()
    assert relieve(harness, 1) == []


def test_client_whose_response_has_just_begun_keeps_its_files(harness):
    reads, reads_too, late = (harness.connect() for _ in range(3))
    ask(harness, reads, 0, 0)
    ask(harness, reads_too, 1, 0)
    ask(harness, late, 0, BATCHES)
    assert relieve(harness, 0.1) == []
