"""Commits on the fast path through an io worker must have the same effect as on the slow path.

Two io workers with the same clock are sent the same random requests, some of them damaged: the same
answers, the same bytes in the log, the same offsets in memory. A failure prints its seed.
"""

from __future__ import annotations

from pathlib import Path
from random import Random
from typing import Any

import pytest
from support.coordinators.coordinators_bench import Bench, ShortBench
from support.coordinators.offsets_host import FakeGroup
from support.network.network_process import topic_document
from support.running.seeds import seeded

from kbroker.config.loader import BrokerConfig
from kbroker.errors import ErrorCode
from kbroker.protocol import codec
from kbroker.protocol.api import ApiKey
from kbroker.protocol.messages.offset_commit import OffsetCommitRequest

pytestmark = pytest.mark.property

GROUPS = ["g", "h", "", "größe", "living", "fenced", "x" * 200]
TOPICS = ["t", "t", "t", "u", "u", "nobody", "", "y" * 140]
# Those of `make`, and one that no topic has.
IDS = {"t": b"t" * 16, "u": b"u" * 16, "nobody": b"n" * 16, "": bytes(16), "y" * 140: b"y" * 16}
METADATA = [None, "", "", "m", "ä", "z" * 10, "z" * 11]


def named(version: int, name: str) -> dict[str, Any]:
    return {"topic_id": IDS[name]} if version >= 10 else {"name": name}


def random_request(random: Random, version: int) -> OffsetCommitRequest:
    return OffsetCommitRequest(
        group_id=random.choice(GROUPS),
        generation_id_or_member_epoch=random.choice([-1, -1, -1, 0, 7]) if version >= 1 else -1,
        member_id=random.choice(["", "", "m", "mitglied-ä"]) if version >= 1 else "",
        group_instance_id=random.choice([None, None, "", "i"]) if version >= 7 else None,
        retention_time_ms=random.choice([-1, -1, -1, 5]) if 2 <= version <= 4 else -1,
        topics=[
            OffsetCommitRequest.OffsetCommitRequestTopic(
                **named(version, random.choice(TOPICS)),
                partitions=[
                    OffsetCommitRequest.OffsetCommitRequestPartition(
                        partition_index=random.choice([0, 0, 0, 1, 1, 2, 2, -1, 2**31 - 1]),
                        committed_offset=random.choice([0, 5, -1, 2**63 - 1, -(2**63)]),
                        committed_leader_epoch=random.choice([-1, 4]) if version >= 6 else -1,
                        committed_metadata=random.choice(METADATA),
                    )
                    for _ in range(random.choice([0, 1, 1, 1, 1, 2, 30, 130]))
                ],
            )
            for _ in range(random.choice([0, 1, 1, 1, 1, 2, 4, 20]))
        ],
    )


def make(bench: Bench) -> Bench:
    bench.config = BrokerConfig({"offset.metadata.max.bytes": "10"})
    bench.apply(
        {
            "t": topic_document(IDS["t"], [2, 3, 4]),
            "u": topic_document(IDS["u"], [5, 6]),
            "y" * 140: topic_document(IDS["y" * 140], [7]),
        }
    )
    machine: Any = bench.shard.machine
    machine.groups["living"] = FakeGroup("living")
    machine.groups["fenced"] = FakeGroup("fenced", reject=ErrorCode.FENCED_INSTANCE_ID)
    return bench


@pytest.fixture
def benches(tmp_path: Path) -> tuple[ShortBench, Bench]:
    short, long = ShortBench(tmp_path / "short"), Bench(tmp_path / "long")
    make(short), make(long)
    return short, long


def same(short: Bench, long: Bench) -> None:
    """End the turn of both and compare everything."""
    short.end_turn()
    long.end_turn()
    assert sorted(short.responses()) == sorted(long.responses())
    stores = [bench.shard.machine.offsets.store for bench in (short, long)]  # type: ignore[attr-defined]
    for group in GROUPS:
        of = [sorted(store.of_group(group), key=lambda found: found[:2]) for store in stores]
        assert of[0] == of[1]
        for topic, partition, _ in of[0]:
            stamps = [store.timestamps(group, topic, partition) for store in stores]
            assert stamps[0] == stamps[1]
    assert stores[0].log_end == stores[1].log_end


def same_logs(short: Bench, long: Bench) -> None:
    written = []
    for bench in (short, long):
        (path,) = bench.store.path(topic="__consumer_offsets").glob("*.log")
        written.append(path.read_bytes())
    assert written[0] == written[1]
    assert written[0]


@pytest.mark.parametrize("version", range(1, 11))
def test_both_paths_respond_and_write_the_same(
    benches: tuple[ShortBench, Bench], version: int
) -> None:
    random, (short, long) = seeded(version), benches
    asked = 0
    for _ in range(60):
        for _ in range(random.randrange(1, 6)):
            body = codec.encode(random_request(random, version), version)
            for bench in (short, long):
                bench.ask_body(ApiKey.OFFSET_COMMIT, version, body)
            asked += 1
        if random.random() < 0.2:
            for bench in (short, long):
                bench.clock.advance(10)
        same(short, long)
    # Whatever the random requests were, this one takes the fast path if there is one.
    partition = OffsetCommitRequest.OffsetCommitRequestPartition(
        partition_index=0, committed_offset=5, committed_metadata=""
    )
    topic = OffsetCommitRequest.OffsetCommitRequestTopic(
        **named(version, "t"), partitions=[partition] * 150
    )
    plain = OffsetCommitRequest(group_id="plain", topics=[topic])
    left = short.left
    for bench in (short, long):
        bench.ask_body(ApiKey.OFFSET_COMMIT, version, codec.encode(plain, version))
    same(short, long)
    same_logs(short, long)
    assert short.coordinators.commit_path.commits == asked + 1 - short.left
    assert (short.left == left) == (version >= 2)


@pytest.mark.parametrize("version", range(2, 11))
def test_damaged_request_has_the_same_effect_on_both_paths(
    benches: tuple[ShortBench, Bench], version: int
) -> None:
    random, (short, long) = seeded(version), benches
    asked = 0
    for _ in range(40):
        body = codec.encode(random_request(random, version), version)[:400]
        for _ in range(20):
            damaged = bytearray(body[: random.choice([len(body), random.randrange(len(body) + 1)])])
            for _ in range(random.randrange(3)):
                if damaged:
                    at = random.randrange(len(damaged))
                    damaged[at] = random.choice([0, 1, 0x7F, 0x80, 0xFF])
            damaged += random.choice([b"", b"", b"more"])
            for bench in (short, long):
                bench.ask_body(ApiKey.OFFSET_COMMIT, version, bytes(damaged))
            asked += 1
        same(short, long)
    assert short.left > 0


def test_damaged_message_has_the_same_effect_on_both_paths(
    benches: tuple[ShortBench, Bench],
) -> None:
    random, (short, long) = seeded(), benches
    messages: list[bytes] = []
    long.send = messages.append  # type: ignore[method-assign]
    long.ask(random_request(Random(1), 8), 8)
    del long.send
    for _ in range(500):
        damaged = bytearray(messages[0] + messages[0])
        damaged[random.randrange(36)] = random.choice([0, 1, 0x7F, 0x80, 0xFF])
        outcomes = []
        for bench in (short, long):
            try:
                bench.send(bytes(damaged))
                outcomes.append("taken")
            except Exception as error:
                outcomes.append(type(error).__name__)
        assert outcomes[0] == outcomes[1], bytes(damaged)
        same(short, long)
