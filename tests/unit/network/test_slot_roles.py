"""Partitions with a local log that this broker does not lead: clients look for the leader."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from support.storage.fetch_log import FetchBench
from support.storage.io_loop_bench import NETWORKS, Bench
from support.storage.log_store import LogStore, append, batch, sent

from kbroker._ext.shared.partition_table import FOLLOWER, LEADER, NO_ROLE

pytestmark = pytest.mark.unit

NOT_LEADER, FENCED_LEADER_EPOCH, UNKNOWN_LEADER_EPOCH = 6, 74, 75
OTHERS = [FOLLOWER, NO_ROLE]


@pytest.fixture
def bench(tmp_path: Path) -> Iterator[Bench]:
    made = Bench(tmp_path)
    yield made
    made.store.stop(clean=False)


@pytest.fixture
def fetches(tmp_path: Path) -> FetchBench:
    return FetchBench(tmp_path)


def test_role_in_a_slot_is_that_of_the_present_incarnation(bench: Bench) -> None:
    table = bench.store.table
    table.set_role(0, FOLLOWER, 3, 0)
    slot = table.read(0)
    assert slot is not None

    roles = [table.role(0, slot["slot_incarnation"] + n) for n in (0, 1)]

    assert roles == [FOLLOWER, None]


# ---- producers, over a lane --------------------------------------------------------------------


@pytest.mark.parametrize("role", OTHERS)
def test_produce_to_a_log_that_is_not_led_gets_not_leader(bench, role):
    bench.store.table.set_role(0, role, 0, 0)

    bench.produce(1, batch())
    bench.produce_together([batch(), batch()])

    assert bench.results() == [(1, NOT_LEADER, -1), (0, NOT_LEADER, -1), (1, NOT_LEADER, -1)]
    assert bench.log.log_end_offset == 0


def test_produce_is_taken_once_the_log_is_led(bench):
    bench.store.table.set_role(0, FOLLOWER, 3, 0)
    bench.produce(1, batch())
    bench.log.take_role(LEADER, 4, 7)
    bench.produce(2, batch())

    assert bench.results() == [(1, NOT_LEADER, -1), (2, 0, 0)]
    slot = bench.store.slot()
    assert (slot["role"], slot["leader_epoch"], slot["partition_epoch"]) == (LEADER, 4, 7)


def test_transaction_that_was_held_when_the_lead_was_lost_gets_not_leader(bench):
    bench.produce(1, sent(7, 0))
    bench.log.take_role(FOLLOWER, 1, 0)

    bench.answer()

    assert bench.results() == [(1, NOT_LEADER, -1)]


# ---- consumers ---------------------------------------------------------------------------------


@pytest.mark.parametrize("role", OTHERS)
def test_fetch_from_a_log_that_is_not_led_gets_not_leader(fetches, role):
    """Later versions read from followers, too."""
    fetches.log().append_many(2)
    fetches.table.set_role(0, role, 0, 0)

    answer = fetches.only(fetches.fetch({("t", 0): 0}, 10))

    assert (answer.error_code, answer.high_watermark, bytes(answer.records or b"")) == (
        NOT_LEADER,
        -1,
        b"",
    )


def test_fetch_that_waits_when_the_lead_is_lost_gets_not_leader(fetches):
    fetches.log().append_many(2)
    assert fetches.start({("t", 0): 2}, 10, max_wait_ms=500) is None

    fetches.table.set_role(0, FOLLOWER, 1, 0)
    fetches.engine.wake_slot(0, fetches.now_ms)

    (answer,) = fetches.completed(10).values()
    assert fetches.only(answer).error_code == NOT_LEADER


def test_fetch_of_an_older_epoch_that_waits_when_the_lead_is_lost_gets_fenced(fetches):
    """As in Kafka, where the epoch counts before the role: the consumer asks who leads now."""
    fetches.log().append_many(2)
    assert fetches.start({("t", 0): 2}, max_wait_ms=500, leader_epoch=0) is None

    fetches.table.set_role(0, FOLLOWER, 1, 0)
    fetches.engine.wake_slot(0, fetches.now_ms)

    (answer,) = fetches.completed().values()
    assert fetches.only(answer).error_code == FENCED_LEADER_EPOCH


@pytest.mark.parametrize(
    ("epoch", "code"), [(2, FENCED_LEADER_EPOCH), (3, NOT_LEADER), (4, UNKNOWN_LEADER_EPOCH)]
)
def test_fetch_from_a_follower_by_an_old_client_compares_epochs_first(fetches, epoch, code):
    fetches.log().append_many(2)
    fetches.table.set_role(0, FOLLOWER, 3, 0)

    answer = fetches.fetch({("t", 0): 0}, 10, leader_epoch=epoch)

    assert fetches.only(answer).error_code == code


def test_fetch_knows_the_epoch_that_the_slot_has(fetches):
    fetches.log().append_many(2)
    fetches.table.set_role(0, LEADER, 3, 0)

    answer = fetches.fetch({("t", 0): 0}, leader_epoch=4)

    assert fetches.only(answer).error_code == UNKNOWN_LEADER_EPOCH


# ---- who is woken ------------------------------------------------------------------------------


def test_append_wakes_followers_and_the_high_watermark_consumers(bench):
    table, log = bench.store.table, bench.log
    log.set_high_watermark(0)
    table.wait(0, 0)
    table.wait(0, 1, written=True)
    bench.produce(1, batch())
    assert woken(bench) == [1]

    log.set_high_watermark(1)
    bench.loop.touch(log.appender)
    assert woken(bench) == [0]


def test_append_to_the_only_replica_wakes_both(bench):
    bench.store.table.wait(0, 0)
    bench.store.table.wait(0, 1, written=True)
    bench.produce(1, batch())

    assert woken(bench) == [0, 1]


def woken(bench: Bench) -> list[int]:
    """The network processes that a turn sends a wake-up."""
    bench.loop.end_turn()
    return [network for network in range(NETWORKS) if bench.wakes(network)]


# ---- opening -----------------------------------------------------------------------------------


def test_log_of_a_follower_is_opened_without_beginning_an_epoch(tmp_path):
    store = LogStore(tmp_path)
    append(store.open(leader_epoch=2), batch())
    store.stop(clean=True)
    store.start(clean=True)

    log = store.open(leader_epoch=1, role=FOLLOWER, partition_epoch=5)

    assert log.epochs.entries == [(2, 0)], "what it has of a later epoch is for the leader to say"
    slot = store.slot()
    assert (slot["role"], slot["leader_epoch"], slot["partition_epoch"]) == (FOLLOWER, 1, 5)
    store.stop(clean=False)
