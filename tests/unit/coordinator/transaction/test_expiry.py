"""Timeouts of transactions, and unused transactional ids."""

from __future__ import annotations

import logging
from typing import Any

import pytest
from support.coordinators.transaction_host import FIRST_ID, ID, TransactionHost, host_with_topics

from kbroker.coordinator.transaction.state import CLIENT_EPOCH_MAX, TransactionStatus
from kbroker.errors import ErrorCode, WireError
from kbroker.metrics.catalog import TRANSACTIONS_TIMED_OUT

pytestmark = pytest.mark.unit

INTERVAL_MS = 10_000
HOUR_MS = 3_600_000
WEEK_MS = 7 * 24 * HOUR_MS


# Weeks pass in some tests: not in steps of ten seconds.
SELDOM = {"transaction_abort_timed_out_transaction_cleanup_interval_ms": str(HOUR_MS)}


@pytest.fixture
def host() -> TransactionHost:
    return host_with_topics()


@pytest.fixture
def unhurried() -> TransactionHost:
    """A host that looks for timed out transactions once an hour."""
    return host_with_topics(**SELDOM)


def begin(host: TransactionHost, timeout_ms: int = 15_000) -> tuple[int, int]:
    response = host.init(transaction_timeout_ms=timeout_ms)
    producer = response.producer_id, response.producer_epoch
    assert host.add(producer, 0) == [0]
    return producer


def test_transaction_past_its_timeout_is_aborted(
    host: TransactionHost, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO)
    producer = begin(host)
    host.advance(INTERVAL_MS)
    assert host.txn.state == TransactionStatus.ONGOING
    host.advance(INTERVAL_MS)
    assert host.txn.state == TransactionStatus.COMPLETE_ABORT
    assert host.markers == [(0, FIRST_ID, 1, False, 0, 2)]
    assert host.counted[TRANSACTIONS_TIMED_OUT.name] == 1
    assert "longer than its timeout of 15000 ms" in caplog.text
    assert host.add(producer, 1) == [ErrorCode.PRODUCER_FENCED]


def test_transaction_of_a_two_phase_commit_is_not_aborted_by_time() -> None:
    host = host_with_topics(transaction_two_phase_commit_enable="true", **SELDOM)
    response = host.init(version=6, enable2_pc=True, transaction_timeout_ms=1)
    producer = response.producer_id, response.producer_epoch
    assert host.add(producer, 0) == [0]
    host.reload()
    host.advance(5 * WEEK_MS)
    assert host.txn.state == TransactionStatus.ONGOING
    assert host.end(producer, True).error_code == 0
    assert host.txn.state == TransactionStatus.COMPLETE_COMMIT


@pytest.mark.parametrize(("version", "code"), [(1, 47), (4, 90), (5, 48)])
def test_commit_after_the_timeout_is_rejected(
    host: TransactionHost, version: int, code: int
) -> None:
    producer = begin(host)
    host.advance(2 * INTERVAL_MS)
    assert host.end(producer, True, version).error_code == code


def test_abort_after_the_timeout_lets_the_producer_continue(host: TransactionHost) -> None:
    """In the second protocol it gets the epoch that the abort bumped."""
    producer = begin(host)
    host.advance(2 * INTERVAL_MS)
    response = host.end(producer, False)
    assert (response.error_code, response.producer_epoch) == (0, 1)


def test_each_partition_does_not_start_the_time_again(host: TransactionHost) -> None:
    producer = begin(host)
    host.advance(9_000)
    host.add(producer, 1)
    host.advance(11_000)
    assert host.txn.state == TransactionStatus.COMPLETE_ABORT


def test_next_transaction_has_its_own_time(host: TransactionHost) -> None:
    producer = begin(host)
    host.advance(9_000)
    host.end(producer)
    host.add((producer[0], 1), 0)
    host.advance(11_000)
    assert host.txn.state == TransactionStatus.ONGOING
    host.advance(INTERVAL_MS)
    assert host.txn.state == TransactionStatus.COMPLETE_ABORT


def test_time_continues_over_a_reload(host: TransactionHost) -> None:
    begin(host)
    host.advance(9_000)
    host.reload()
    host.advance(INTERVAL_MS)
    assert host.txn.state == TransactionStatus.COMPLETE_ABORT


def test_clock_that_jumps_aborts_nothing(host: TransactionHost) -> None:
    begin(host)
    host.clock.jump(HOUR_MS)
    host.advance(INTERVAL_MS)
    assert host.txn.state == TransactionStatus.ONGOING


def test_clock_set_back_before_a_load_gives_no_more_than_the_timeout(
    host: TransactionHost,
) -> None:
    begin(host)
    host.clock.jump(-HOUR_MS)
    host.reload()
    host.advance(2 * INTERVAL_MS)
    assert host.txn.state == TransactionStatus.COMPLETE_ABORT


def test_timeout_at_the_last_epoch_brings_a_new_producer_id(host: TransactionHost) -> None:
    host.init(transaction_timeout_ms=15_000)
    producer = host.set_epoch(CLIENT_EPOCH_MAX)
    host.add(producer, 0)
    host.advance(2 * INTERVAL_MS)
    assert (host.txn.producer_id, host.txn.epoch) == (FIRST_ID + 1, 0)
    assert host.txn.state == TransactionStatus.COMPLETE_ABORT


def test_abort_that_cannot_be_written_comes_again(host: TransactionHost) -> None:
    begin(host)
    host.fail_with = WireError(ErrorCode.COORDINATOR_NOT_AVAILABLE)
    host.advance(3 * INTERVAL_MS)
    host.fail_with = None
    host.advance(INTERVAL_MS)
    assert host.txn.state == TransactionStatus.COMPLETE_ABORT


def test_interval_is_taken_from_the_settings() -> None:
    name = "transaction.abort.timed.out.transaction.cleanup.interval.ms"
    host = host_with_topics(**{name: "500"})
    begin(host, 1_000)
    host.advance(999)
    assert host.txn.state == TransactionStatus.ONGOING
    host.advance(501)
    assert host.txn.state == TransactionStatus.COMPLETE_ABORT


# -- ids that nobody uses --


def test_unused_id_is_forgotten(
    unhurried: TransactionHost, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO)
    unhurried.producer()
    unhurried.advance(WEEK_MS - HOUR_MS)
    assert ID in unhurried.machine.transactions
    unhurried.advance(2 * HOUR_MS)
    assert not unhurried.machine.transactions
    assert "1 transactional ids expired unused: tx" in caplog.text
    unhurried.reload()
    assert not unhurried.machine.transactions


@pytest.mark.parametrize("commit", [True, False])
def test_complete_transaction_does_not_keep_its_id(
    unhurried: TransactionHost, commit: bool
) -> None:
    unhurried.end(begin(unhurried), commit)
    unhurried.advance(WEEK_MS + HOUR_MS)
    assert not unhurried.machine.transactions


def test_prepared_transaction_keeps_its_id(host: TransactionHost) -> None:
    host.marker_code = int(ErrorCode.NOT_LEADER_OR_FOLLOWER)
    host.end(begin(host))
    host.clock.jump(WEEK_MS)
    host.advance(HOUR_MS)
    assert host.txn.state == TransactionStatus.PREPARE_COMMIT


def test_used_id_is_kept(unhurried: TransactionHost) -> None:
    unhurried.producer()
    unhurried.advance(WEEK_MS - HOUR_MS)
    unhurried.producer()
    unhurried.advance(WEEK_MS - HOUR_MS)
    assert unhurried.txn.epoch == 1


def test_expired_producer_has_to_start_again(unhurried: TransactionHost) -> None:
    producer = unhurried.producer()
    unhurried.advance(WEEK_MS + HOUR_MS)
    assert unhurried.add(producer, 0) == [ErrorCode.INVALID_PRODUCER_ID_MAPPING]
    response = unhurried.init(producer_id=producer[0], producer_epoch=producer[1])
    assert (response.producer_id, response.producer_epoch) == (FIRST_ID + 1, 0)


def test_many_ids_expire_in_batches(unhurried: TransactionHost) -> None:
    for number in range(1_200):
        unhurried.producer(name=f"id-{number}")
    unhurried.written.clear()
    unhurried.advance(WEEK_MS + HOUR_MS)
    assert [len(batch) for batch in unhurried.written] == [500, 500, 200]
    assert not unhurried.machine.transactions


def test_long_ids_expire_in_batches_that_fit(unhurried: TransactionHost) -> None:
    for number in range(9):
        unhurried.producer(name="i" * 30_000 + str(number))
    unhurried.written.clear()
    unhurried.advance(WEEK_MS + HOUR_MS)
    assert [len(batch) for batch in unhurried.written] == [4, 4, 1]
    assert not unhurried.machine.transactions


def test_settings_as_of_now_count(host: TransactionHost) -> None:
    host.producer()
    host.configure(**{"transactional.id.expiration.ms": "1000"})
    host.advance(HOUR_MS)
    assert not host.machine.transactions


def test_reload_starts_the_timers_again(host: TransactionHost) -> None:
    values: dict[str, Any] = {"transaction_timeout_ms": 1_000}
    host.producer(**values)
    host.reload()
    assert "abort" in host.timers
    assert "expire" in host.timers


@pytest.mark.parametrize("jump", [520 * WEEK_MS, 2 * HOUR_MS])
def test_clock_that_jumps_forgets_no_id(host: TransactionHost, jump: int) -> None:
    host.end(begin(host))
    host.clock.jump(jump)
    host.advance(HOUR_MS)
    host.clock.jump(-jump)
    host.advance(2 * HOUR_MS)
    assert host.machine.transactions
