"""Commits that take the short way must mean what they mean to the general codec and its handler.

Random requests, some of them damaged: the same records, the same bytes of the answer, the same
refusals. And the batch of an operation against the builder of batches. A failure prints its seed.
"""

from __future__ import annotations

import os
from random import Random
from typing import Any

import pytest

from kbroker._ext.offset_requests import parse_commit
from kbroker._ext.plain_batch import build_batch
from kbroker.coordinator.machine import Call, Operation
from kbroker.errors import ErrorCode
from kbroker.protocol import codec
from kbroker.protocol.api import ApiKey
from kbroker.protocol.codec import DecodeError
from kbroker.protocol.messages.offset_commit import OffsetCommitRequest
from kbroker.record.builder import BatchBuilder
from tests.doubles.offsets_host import FakeGroup, OffsetsHost

pytestmark = pytest.mark.property

GROUPS = ["g", "", "größe", "living", "fenced", "x" * 200]
TOPICS = ["t", "u", "nobody", "", "thëme", "y" * 140]
METADATA = [None, "", "m", "ä" * 10, "ä" * 11, "z" * 10, "z" * 11]


def seeded() -> Random:
    seed = int(os.environ.get("KBROKER_SEED", "0")) or Random().randrange(1 << 32)
    print(f"KBROKER_SEED={seed}")
    return Random(seed)


def random_request(random: Random, version: int) -> OffsetCommitRequest:
    return OffsetCommitRequest(
        group_id=random.choice(GROUPS),
        generation_id_or_member_epoch=random.choice([-1, 0, 7]) if version >= 1 else -1,
        member_id=random.choice(["", "m", "mitglied-ä"]) if version >= 1 else "",
        group_instance_id=random.choice([None, "", "i"]) if version >= 7 else None,
        retention_time_ms=random.choice([-1, -1, -1, 5]) if 2 <= version <= 4 else -1,
        topics=[
            OffsetCommitRequest.OffsetCommitRequestTopic(
                name=random.choice(TOPICS) if version < 10 else "",
                topic_id=random.choice([b"t", b"?"]).ljust(16, b"-")
                if version >= 10
                else bytes(16),
                partitions=[
                    OffsetCommitRequest.OffsetCommitRequestPartition(
                        partition_index=random.choice([0, 1, 3, 4, -1, 2**31 - 1]),
                        committed_offset=random.choice([0, 5, -1, 2**63 - 1, -(2**63)]),
                        committed_leader_epoch=random.choice([-1, 4]) if version >= 6 else -1,
                        committed_metadata=random.choice(METADATA),
                    )
                    for _ in range(random.choice([0, 1, 1, 2, 130]))
                ],
            )
            for _ in range(random.choice([0, 1, 1, 2, 4]))
        ],
    )


def make_host() -> OffsetsHost:
    host = OffsetsHost(offset_metadata_max_bytes="10", message_max_bytes="60000")
    host.put_group(FakeGroup("living"))
    host.put_group(FakeGroup("fenced", refuse=ErrorCode.FENCED_INSTANCE_ID))
    return host


def served(host: OffsetsHost, version: int, request: Any) -> tuple[bytes, list[Any]]:
    """The body of the answer, and the records."""
    op = Operation()
    handler = host.machine.handlers[ApiKey.OFFSET_COMMIT]
    answer = handler(op, Call(ApiKey.OFFSET_COMMIT, version, request))
    return answer if type(answer) is bytes else codec.encode(answer, version), op.records


@pytest.mark.parametrize("version", range(11))
def test_both_ways_answer_and_write_the_same(version: int) -> None:
    random, host = seeded(), make_host()
    taken = checked = 0
    for _ in range(150):
        body = codec.encode(random_request(random, version), version)
        parsed = parse_commit(body, version)
        decoded = codec.decode_exact(OffsetCommitRequest, version, body)
        if parsed is None:
            assert not 2 <= version <= 9 or decoded.retention_time_ms != -1
            continue
        taken += 1
        assert served(host, version, parsed) == served(host, version, decoded)
        group = host.machine.groups.get(parsed.group_id)
        if group is not None:
            assert group.checked[-2] == group.checked[-1]
            assert group.committed[-2] == group.committed[-1]
            checked += bool(group.committed[-1])
    assert (taken > 0) == (checked > 0) == (2 <= version <= 9)


@pytest.mark.parametrize("version", [2, 5, 6, 7, 8, 9])
def test_damaged_request_is_left_to_the_codec(version: int) -> None:
    random, host = seeded(), make_host()
    for _ in range(40):
        body = codec.encode(random_request(random, version), version)
        body = body if len(body) < 400 else body[:400]
        for _ in range(60):
            damaged = bytearray(body[: random.randrange(len(body) + 1)])
            for _ in range(random.randrange(3)):
                if damaged:
                    damaged[random.randrange(len(damaged))] = random.choice(
                        [0, 1, 0x7F, 0x80, 0xFF]
                    )
            parsed = parse_commit(bytes(damaged), version)
            try:
                decoded, _ = codec.decode(OffsetCommitRequest, version, bytes(damaged))
            except DecodeError:
                assert parsed is None, bytes(damaged)
                continue
            if parsed is not None:
                assert served(host, version, parsed) == served(host, version, decoded)


def test_batch_of_an_operation_is_what_the_builder_makes() -> None:
    random = seeded()
    for _ in range(200):
        records = [
            (
                random.randbytes(random.choice([0, 1, 63, 64, 300])),
                random.choice([None, b"", random.randbytes(random.choice([1, 64, 9000]))]),
            )
            for _ in range(random.choice([1, 2, 70]))
        ]
        producer = random.choice([(-1, -1), (2**40, 7)])
        builder = BatchBuilder(
            producer_id=producer[0], producer_epoch=producer[1], transactional=producer[0] >= 0
        )
        for key, value in records:
            builder.append(value, key, 1234)

        assert build_batch(records, 1234, *producer) == builder.build()


def test_batch_without_records_or_with_wrong_ones_is_refused() -> None:
    with pytest.raises(ValueError, match="at least one record"):
        build_batch([], 1)
    with pytest.raises(TypeError):
        build_batch([(None, b"")], 1)  # type: ignore[list-item]
    with pytest.raises(TypeError):
        build_batch([("key", b"")], 1)  # type: ignore[list-item]
