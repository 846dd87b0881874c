"""Batches that an idempotent producer has sent behind one that was refused do not overtake it."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from support.network.net_loop_harness import (
    TOPIC_ID,
    Harness,
    answers,
    partitions_of,
    produce,
    received,
)
from support.storage.io_loop_bench import Bench
from support.storage.log_store import batch, sent

from kbroker._ext.log.refused_batches import RefusedBatches
from kbroker._ext.shared.partition_table import FOLLOWER, LEADER
from kbroker.errors import ErrorCode

pytestmark = pytest.mark.unit

NOT_LEADER = int(ErrorCode.NOT_LEADER_OR_FOLLOWER)
NOT_ENOUGH = int(ErrorCode.NOT_ENOUGH_REPLICAS)
OUT_OF_ORDER = int(ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER)
UNKNOWN = int(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION)
LAST_SEQUENCE = 2**31 - 1


def numbered(sequence: int, producer: int = 7, epoch: int = 0, count: int = 1) -> bytes:
    return batch(count, producer_id=producer, producer_epoch=epoch, base_sequence=sequence)


@pytest.fixture
def bench(tmp_path: Path) -> Iterator[Bench]:
    made = Bench(tmp_path)
    yield made
    made.store.stop(clean=False)


def follow(bench: Bench, epoch: int) -> None:
    bench.log.take_role(FOLLOWER, epoch, 0)
    bench.loop.end_turn()


def lead(bench: Bench, epoch: int) -> None:
    bench.log.take_role(LEADER, epoch, 0)
    bench.loop.end_turn()


def test_batch_behind_one_that_came_before_this_broker_led_is_sent_on(bench: Bench) -> None:
    """With OUT_OF_ORDER_SEQUENCE_NUMBER, librdkafka begins an epoch and repeats what it has."""
    bench.produce(1, numbered(0))
    follow(bench, 1)
    bench.produce(2, numbered(1))
    lead(bench, 2)
    bench.produce(3, numbered(2))
    bench.produce(4, numbered(3))
    assert sorted(bench.results()) == [
        (1, 0, 0),
        (2, NOT_LEADER, -1),
        (3, NOT_LEADER, -1),
        (4, NOT_LEADER, -1),
    ]

    for number in (1, 2, 3):
        bench.produce(10 + number, numbered(number))

    assert sorted(bench.results()) == [(11, 0, 1), (12, 0, 2), (13, 0, 3)]


def test_log_that_does_not_know_the_producer_waits_for_its_first_batch(bench: Bench) -> None:
    """Any number would do for the log: the first batch would be missing, or come later."""
    follow(bench, 1)
    bench.produce(1, numbered(0))
    lead(bench, 2)
    bench.produce(2, numbered(1))
    assert sorted(bench.results()) == [(1, NOT_LEADER, -1), (2, NOT_LEADER, -1)]

    bench.produce(3, numbered(0))
    bench.produce(4, numbered(1))

    assert sorted(bench.results()) == [(3, 0, 0), (4, 0, 1)]


def test_producer_whose_batch_another_leader_has_taken_continues(bench: Bench) -> None:
    """It was refused here, appended elsewhere and replicated; now this broker leads."""
    bench.produce(1, numbered(0))
    follow(bench, 1)
    bench.produce(2, numbered(1))
    assert sorted(bench.results()) == [(1, 0, 0), (2, NOT_LEADER, -1)]
    lead(bench, 2)  # as if of another broker: the log has both by now
    bench.produce(3, numbered(1))
    follow(bench, 3)
    bench.produce(4, numbered(1))
    lead(bench, 4)

    bench.produce(5, numbered(2))

    assert sorted(bench.results()) == [(3, 0, 1), (4, NOT_LEADER, -1), (5, 0, 2)]


def test_other_producers_epochs_and_batches_without_numbers_are_not_concerned(
    bench: Bench,
) -> None:
    bench.produce(1, numbered(0))
    bench.produce(2, numbered(0, producer=8))
    follow(bench, 1)
    bench.produce(3, numbered(1))
    lead(bench, 2)
    bench.results()

    bench.produce(4, numbered(1, producer=8))
    bench.produce(5, batch())
    bench.produce(6, numbered(0, epoch=1))
    bench.produce(7, numbered(1, epoch=1))

    assert [code for _, code, _ in sorted(bench.results())] == [0, 0, 0, 0]


def test_too_few_replicas_do_not_change_the_order(bench: Bench) -> None:
    committed = bench.log.appender.committed
    bench.produce(1, numbered(0))
    committed.is_under_min_isr = True
    bench.produce(2, numbered(1))
    committed.is_under_min_isr = False
    bench.produce(3, numbered(2))
    assert sorted(bench.results()) == [(1, 0, 0), (2, NOT_ENOUGH, -1), (3, NOT_ENOUGH, -1)]

    bench.produce(4, numbered(1))
    bench.produce(5, numbered(2))

    assert sorted(bench.results()) == [(4, 0, 1), (5, 0, 2)]


def test_transactional_batches_keep_their_order_too(bench: Bench) -> None:
    bench.loop.verification.set_verifier(None)
    bench.produce(1, sent(7, 0))
    follow(bench, 1)
    bench.produce(2, sent(7, 1))
    lead(bench, 2)
    bench.produce(3, sent(7, 2))
    bench.produce(4, sent(7, 1))
    bench.produce(5, sent(7, 2))

    codes = [code for _, code, _ in sorted(bench.results())]

    assert codes == [0, NOT_LEADER, NOT_LEADER, 0, 0]


def test_gap_without_a_refusal_is_out_of_order(bench: Bench) -> None:
    bench.produce(1, numbered(0))
    bench.produce(2, numbered(5))
    assert sorted(bench.results()) == [(1, 0, 0), (2, OUT_OF_ORDER, -1)]


def test_batch_too_bad_to_be_taken_is_not_waited_for(bench: Bench) -> None:
    """Its producer does not send it again as it is."""
    bench.produce(1, numbered(0))
    damaged = bytearray(numbered(1))
    damaged[-1] ^= 1
    bench.produce(2, bytes(damaged))
    bench.produce(3, numbered(2))
    assert sorted(bench.results())[2] == (3, OUT_OF_ORDER, -1)


# -- what is remembered --------------------------------------------------------------------------


def test_later_batches_have_the_error_of_the_first_until_it_is_too_long_ago() -> None:
    kept, short = RefusedBatches(60_000), RefusedBatches(0)
    for found in (kept, short):
        found.refused(0, numbered(5), NOT_LEADER)
        found.refused(0, numbered(6), NOT_ENOUGH)

    assert [kept.error_for(0, numbered(n)) for n in (4, 5, 6, 7)] == [0, 0, NOT_LEADER, NOT_LEADER]
    assert kept.error_for(1, numbered(6)) == 0, "another partition"
    assert (short.error_for(0, numbered(6)), short.count) == (0, 0)


def test_sequence_numbers_wrap() -> None:
    found = RefusedBatches(60_000)
    found.refused(0, numbered(LAST_SEQUENCE), NOT_LEADER)
    assert found.error_for(0, numbered(0)) == NOT_LEADER
    assert found.error_for(0, numbered(LAST_SEQUENCE - 1)) == 0


def test_earlier_batch_that_is_refused_is_the_one_to_wait_for() -> None:
    found = RefusedBatches(60_000)
    found.refused(0, numbered(5), NOT_LEADER)
    found.refused(0, numbered(3), NOT_LEADER)
    assert found.error_for(0, numbered(4)) == NOT_LEADER


def test_memory_is_bounded() -> None:
    found = RefusedBatches(60_000)
    for producer in range(10_005):
        found.refused(0, numbered(0, producer=producer), NOT_LEADER)
    assert found.count == 10_000
    assert found.error_for(0, numbered(1, producer=0)) == 0, "the oldest are forgotten"
    assert found.error_for(0, numbered(1, producer=10_004)) == NOT_LEADER


@pytest.mark.parametrize("data", [b"", b"x" * 60, bytes(61), b"\xff" * 61])
def test_bytes_that_are_no_batch_are_not_remembered(data: bytes) -> None:
    found = RefusedBatches(60_000)
    found.refused(0, data, NOT_LEADER)
    assert (found.count, found.error_for(0, data)) == (0, 0)


# -- network processes: no io worker has the partition ------------------------------------------


def codes(harness: Harness, client: Any, version: int) -> list[int]:
    harness.turn()
    found = [partitions_of(response) for _, response in answers(received(client), version)]
    return [partition.error_code for partitions in found for partition in partitions]


@pytest.mark.parametrize("version", [9, 13])
def test_batch_behind_one_for_a_replica_that_was_not_here_yet_waits_for_it(version: int) -> None:
    harness = Harness()
    client = harness.connect()
    harness.fetch.put_topic("t", TOPIC_ID, [-1, 1], [7, 8])
    client.send(produce(version, records={0: numbered(0)}))
    assert codes(harness, client, version) == [NOT_LEADER]
    harness.fetch.put_topic("t", TOPIC_ID, [0, 1], [7, 8])

    client.send(produce(version, records={0: numbered(1)}))
    assert (codes(harness, client, version), harness.descriptors()) == ([NOT_LEADER], [])

    client.send(produce(version, records={0: numbered(0)}))
    client.send(produce(version, records={0: numbered(1)}))
    harness.turn()
    assert len(harness.descriptors()) == 2


def test_first_batch_for_a_topic_that_is_not_known_yet_is_not_overtaken() -> None:
    harness = Harness()
    client = harness.connect()
    client.send(produce(9, topic="new", records={0: numbered(0)}))
    assert codes(harness, client, 9) == [UNKNOWN]
    harness.fetch.put_topic("new", b"n" * 16, [2], [9])

    client.send(produce(9, topic="new", records={0: numbered(1)}))

    assert (codes(harness, client, 9), harness.descriptors()) == ([UNKNOWN], [])


def test_name_that_no_topic_can_have_is_not_remembered() -> None:
    """BOUND: a client may send 32 kB of name in each request."""
    harness = Harness()
    client = harness.connect()
    client.send(produce(9, topic="n" * 250, records={0: numbered(0)}))
    assert codes(harness, client, 9) == [UNKNOWN]
    client.send(produce(9, topic="n" * 250, records={0: numbered(1)}))
    assert codes(harness, client, 9) == [UNKNOWN]
    harness.fetch.put_topic("n" * 250, b"n" * 16, [2], [9])
    client.send(produce(9, topic="n" * 250, records={0: numbered(1)}))
    harness.turn()
    assert len(harness.descriptors()) == 1
