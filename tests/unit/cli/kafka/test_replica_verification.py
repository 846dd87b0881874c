"""``kafka-replica-verification``: what is said of replicas that differ."""

from __future__ import annotations

import pytest

from kbroker.cli.kafka import replica_verification
from kbroker.cli.kafka.replica_verification import _Verifying
from kbroker.cli.kafka.running import ToolFailed
from kbroker.client.admin.replica_reads import BatchSum, ReplicaData, batch_sums
from kbroker.record.builder import BatchBuilder

pytestmark = pytest.mark.unit

KEY = ("t", 0)


@pytest.fixture
def verifying(monkeypatch) -> _Verifying:
    """Of one partition, read from offset 0 on."""
    found = _Verifying.__new__(_Verifying)
    found._replicas, found._next, found._cluster = {KEY: [1, 2]}, {KEY: 0}, None
    found._fetch_bytes = 100
    return found


def replica(high_watermark: int, *batches: tuple[int, int]) -> ReplicaData:
    return ReplicaData(high_watermark, [BatchSum(*row) for row in batches])


def test_equal_batches_are_passed_as_far_as_they_are_committed(verifying, monkeypatch, capsys):
    rows = {1: replica(8, (2, 7), (5, 8), (9, 9)), 2: replica(6, (2, 7), (5, 8), (9, 9))}
    monkeypatch.setattr(
        "kbroker.client.admin.replica_reads.read_replicas", lambda *given: {KEY: rows}
    )

    worst = verifying.round()

    assert worst == (2, KEY, 6)
    assert capsys.readouterr().out == ""


def test_another_checksum_is_said_and_passed(verifying, capsys):
    verifying._compare(KEY, {1: replica(9, (2, 7), (5, 8)), 2: replica(9, (2, 6))})

    assert capsys.readouterr().out.partition(": ")[2] == (
        "partition t-0 has unmatched checksum at offset 2; replica 1's checksum 7; replica 2's "
        "checksum 6\n"
    )
    assert verifying._next[KEY] == 3


def test_another_offset_ends_it(verifying, capsys):
    with pytest.raises(ToolFailed):
        verifying._compare(KEY, {1: replica(9, (2, 7)), 2: replica(9, (3, 7))})

    assert "replica 1's offset 2 doesn't match replica 2's offset 3" in capsys.readouterr().out


def test_batches_of_a_response_have_offsets_and_checksums():
    data = b""
    for base in (0, 2):
        builder = BatchBuilder(0, base_offset=base)
        for _ in range(2):
            builder.append(timestamp=1, key=None, value=b"v")
        data += bytes(builder.build())

    found = list(batch_sums(data + data[:30], 2))

    assert [row.last_offset for row in found] == [3]
    assert found[0].checksum == int.from_bytes(data[len(data) // 2 :][17:21], "big")


def test_lines_begin_with_the_time(capsys):
    replica_verification._say("x")

    assert capsys.readouterr().out[4::3][:2] == "--"
