"""Batches that wait in the io worker for the transaction coordinator (KIP-890)."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from support.network.net_loop_harness import DESCRIPTOR, ENVELOPE, NETWORK
from support.storage.io_loop_bench import MSG_PRODUCE, Bench
from support.storage.log_store import batch, end_transaction, sent

pytestmark = pytest.mark.unit

NO_ID = b""

REQUEST_TIMED_OUT = 7
LOAD_IN_PROGRESS = 14
COORDINATOR_NOT_AVAILABLE = 15
NOT_COORDINATOR = 16
NOT_ENOUGH_REPLICAS = 19
CLUSTER_AUTHORIZATION_FAILED = 31
INVALID_REQUEST = 42
OUT_OF_ORDER = 45
INVALID_PRODUCER_EPOCH = 47
INVALID_TXN_STATE = 48
CONCURRENT_TRANSACTIONS = 51
TRANSACTIONAL_ID_AUTHORIZATION_FAILED = 53
PRODUCER_FENCED = 90
TRANSACTION_ABORTABLE = 120


@pytest.fixture
def bench(tmp_path: Path) -> Iterator[Bench]:
    made = Bench(tmp_path)
    yield made
    made.store.stop(clean=False)


def test_first_batch_of_a_transaction_waits_for_the_coordinator(bench):
    bench.produce(1, sent(7, 0, epoch=2))

    assert bench.results() == []
    assert bench.asked == [(0, 7, 2, "tx", 11, bench.asked[0][5])]
    assert not bench.loop.has_news
    bench.answer()
    assert bench.loop.has_news, "the answer may come behind the end of a turn"
    assert bench.results() == [(1, 0, 0)]
    bench.produce(2, sent(7, 1, epoch=2))
    assert bench.results() == [(2, 0, 1)], "the transaction is open"
    assert len(bench.asked) == 1


def test_batches_behind_it_keep_their_order_and_other_producers_do_not_wait(bench):
    for number in range(3):
        bench.produce(number, sent(7, number))
    bench.produce(9, batch(producer_id=8, producer_epoch=0, base_sequence=0))
    assert bench.results() == [(9, 0, 0)]
    assert (len(bench.asked), bench.loop.verification.held_count) == (1, 3)

    bench.answer()

    assert bench.results() == [(0, 0, 1), (1, 0, 2), (2, 0, 3)]
    assert bench.loop.verification.held_count == 0


def test_transactions_of_two_producers_are_asked_for_one_by_one(bench):
    bench.produce(1, sent(7, 0), transactional_id=b"a")
    bench.produce(2, sent(8, 0), transactional_id=b"b", version=12)

    assert [(asked[1], asked[3], asked[4]) for asked in bench.asked] == [(7, "a", 11), (8, "b", 12)]
    bench.answer(number=1)
    bench.answer(number=0)
    assert bench.results() == [(2, 0, 0), (1, 0, 1)]


def test_response_may_come_at_once(bench):
    bench.loop.verification.set_verifier(lambda *question: bench.loop.verified(question[5], 0))

    bench.produce(1, sent(7, 0))

    assert bench.results() == [(1, 0, 0)]


def test_marker_in_between_makes_the_response_void_and_it_is_asked_for_again(bench):
    bench.produce(1, sent(7, 0))
    end_transaction(bench.log, 7, commit=False)
    bench.answer()
    assert (bench.results(), len(bench.asked)) == ([], 2)

    bench.answer(INVALID_TXN_STATE)

    assert bench.results() == [(1, INVALID_TXN_STATE, -1)]
    assert bench.log.last_stable_offset == bench.log.log_end_offset


def test_marker_of_the_transaction_before_does_not_end_the_one_that_waits(bench):
    """A producer begins its next transaction while the markers of the last are still being
    written.
    """
    for number in range(3):
        bench.produce(number, sent(7, number), version=12)
    end_transaction(bench.log, 7, commit=False)
    bench.answer()
    assert (bench.results(), len(bench.asked), bench.loop.verification.held_count) == ([], 2, 3)

    bench.answer()

    assert bench.results() == [(0, 0, 1), (1, 0, 2), (2, 0, 3)]


@pytest.mark.parametrize("before", [1, 2])
def test_marker_between_the_batches_of_the_next_transaction_keeps_their_order(bench, before):
    """Batches after the marker must not be appended before those before it."""
    for number in range(3):
        if number == before:
            end_transaction(bench.log, 7, commit=False)
        bench.produce(number, sent(7, number), version=12)
    bench.answer()
    assert (bench.results(), len(bench.asked), bench.loop.verification.held_count) == ([], 2, 3)

    bench.answer()

    assert bench.results() == [(0, 0, 1), (1, 0, 2), (2, 0, 3)]


def test_rejection_is_for_all_that_wait_and_the_next_asks_again(bench):
    bench.produce(1, sent(7, 0))
    bench.produce(2, sent(7, 1))
    bench.answer(CONCURRENT_TRANSACTIONS)
    assert bench.results() == [(1, NOT_ENOUGH_REPLICAS, -1), (2, NOT_ENOUGH_REPLICAS, -1)]

    bench.produce(3, sent(7, 1))
    bench.answer()
    assert bench.results() == [(3, NOT_ENOUGH_REPLICAS, -1)], "the first one must come first"
    bench.produce(4, sent(7, 0))
    bench.answer()
    assert bench.results() == [(4, 0, 0)]


@pytest.mark.parametrize(
    ("version", "code", "told"),
    [
        (10, TRANSACTION_ABORTABLE, INVALID_TXN_STATE),
        (11, TRANSACTION_ABORTABLE, TRANSACTION_ABORTABLE),
        (11, CONCURRENT_TRANSACTIONS, NOT_ENOUGH_REPLICAS),
        (12, CONCURRENT_TRANSACTIONS, CONCURRENT_TRANSACTIONS),
        (12, PRODUCER_FENCED, INVALID_PRODUCER_EPOCH),
        (9, INVALID_TXN_STATE, INVALID_TXN_STATE),
        (12, REQUEST_TIMED_OUT, NOT_ENOUGH_REPLICAS),
        (12, CLUSTER_AUTHORIZATION_FAILED, INVALID_TXN_STATE),
        (12, TRANSACTIONAL_ID_AUTHORIZATION_FAILED, TRANSACTIONAL_ID_AUTHORIZATION_FAILED),
    ],
)
def test_rejection_is_told_as_the_version_knows_it(bench, version, code, told):
    bench.loop.verification.patience_ms = 0
    bench.produce(1, sent(7, 0), version=version)
    bench.answer(code)

    assert bench.results() == [(1, told, -1)]


@pytest.mark.parametrize("code", [NOT_COORDINATOR, LOAD_IN_PROGRESS, COORDINATOR_NOT_AVAILABLE])
def test_coordinator_that_is_being_started_is_asked_again(bench, code):
    """A producer with this error would have to send everything that waits here again."""
    bench.produce(1, sent(7, 0))
    bench.produce(2, sent(7, 1))
    bench.answer(code)
    assert (bench.results(), len(bench.asked)) == ([], 1)
    assert bench.loop.verification.next_ask_ms is not None

    bench.loop.ask_again(1_000)
    assert (bench.asked[0], bench.loop.verification.next_ask_ms) == (bench.asked[1], None)
    bench.answer()

    assert bench.results() == [(1, 0, 0), (2, 0, 1)]


def test_nobody_waits_any_more_so_nobody_is_asked_again(bench):
    bench.produce(1, sent(7, 0))
    bench.answer(NOT_COORDINATOR)
    bench.loop.expire_held(2_000)
    assert bench.results() == [(1, NOT_ENOUGH_REPLICAS, -1)]

    bench.loop.ask_again(1_000)

    assert len(bench.asked) == 1
    bench.produce(2, sent(7, 0))
    bench.answer()
    assert bench.results() == [(2, 0, 0)]


def test_batch_of_a_later_epoch_asks_for_itself(bench):
    bench.produce(1, sent(7, 0))
    bench.produce(2, sent(7, 0, epoch=1))
    assert len(bench.asked) == 1

    bench.answer(INVALID_TXN_STATE)
    assert bench.results() == [(1, INVALID_TXN_STATE, -1)]
    assert [asked[2] for asked in bench.asked] == [0, 1]
    bench.answer()
    assert bench.results() == [(2, 0, 0)]


def test_batch_of_a_fenced_epoch_is_rejected_without_asking(bench):
    end_transaction(bench.log, 7, commit=False, epoch=5)
    bench.produce(1, sent(7, 0, epoch=4))

    assert bench.results() == [(1, INVALID_PRODUCER_EPOCH, -1)]
    assert bench.asked == []


@pytest.mark.parametrize(
    ("transactional_id", "code"),
    [(NO_ID, TRANSACTIONAL_ID_AUTHORIZATION_FAILED), (b"\xff\xfe", INVALID_REQUEST)],
)
def test_request_without_a_usable_transactional_id_is_rejected(bench, transactional_id, code):
    bench.produce(1, sent(7, 0), transactional_id=transactional_id)

    assert bench.results() == [(1, code, -1)]
    assert bench.asked == []


def test_batch_too_short_for_a_header_is_rejected_as_ever(bench):
    bench.produce(1, sent(7, 0)[:40])

    ((number, code, _),) = bench.results()
    assert (number, bench.asked) == (1, []) and code != 0


def test_waiting_ends_after_the_timeout_of_the_request(bench, monkeypatch):
    bench.produce(1, sent(7, 0), timeout_ms=0)
    bench.produce(2, sent(7, 1), timeout_ms=50_000)
    bench.loop.expire_held(2_000)
    assert bench.results() == [(1, NOT_ENOUGH_REPLICAS, -1)]

    bench.answer()

    assert bench.results() == [(2, OUT_OF_ORDER, -1)], "it may not pass the one before it"


def test_dead_network_process_takes_its_batches_along(bench):
    bench.produce(1, sent(7, 0), network=0)
    bench.produce(2, sent(8, 0), network=1)
    bench.arenas[0][:] = bytes(1 << 20)
    bench.cells[0] = 4

    bench.answer(number=0)
    bench.answer(number=1)

    assert bench.results(0) == []
    assert bench.results(1) == [(2, 0, 0)]
    assert (bench.log.log_end_offset, bench.loop.verification.held_count) == (1, 0)


def test_partition_that_went_away_meanwhile_rejects(bench):
    bench.produce(1, sent(7, 0))
    bench.loop.remove(0)
    bench.answer()

    ((number, code, _),) = bench.results()
    assert (number, code) == (1, 6)


def test_verification_switched_off_asks_only_who_adds_the_partition(bench):
    bench.loop.verification.set_verifier(lambda *question: bench.asked.append(question), False)
    bench.produce(1, sent(7, 0), version=11)
    assert bench.results() == [(1, 0, 0)]

    bench.produce(2, sent(8, 0), version=12)
    assert bench.results() == []
    assert len(bench.asked) == 1


def test_without_a_verifier_nobody_is_asked(bench):
    bench.loop.verification.set_verifier(None)
    bench.produce(1, sent(7, 0), version=12)

    assert bench.results() == [(1, 0, 0)]


def test_verifier_that_fails_rejects_and_continues(bench, caplog):
    def fail(*question: object) -> None:
        raise RuntimeError("no")

    bench.loop.verification.set_verifier(fail)
    bench.produce(1, sent(7, 0))

    assert bench.results() == [(1, -1, -1)]
    assert "RuntimeError" in caplog.text
    assert bench.loop.verification.held_count == 0


def test_response_to_nothing_is_ignored(bench):
    bench.loop.verified(99, 0)
    bench.produce(1, sent(7, 0))
    bench.answer()
    bench.answer()

    assert bench.results() == [(1, 0, 0)]


def test_descriptor_whose_transactional_id_lies_outside_the_arena_is_an_error(bench):
    data = sent(7, 0)
    bench.arenas[0][: len(data)] = data
    row = DESCRIPTOR.pack(1, 0, 0, 1, 1000, 0, len(data), -1, 11, 8, 2)
    bench.ends[0][1].send(ENVELOPE.pack(MSG_PRODUCE, NETWORK, 0, 3, 5, 1) + row)

    with pytest.raises(ValueError, match="transactional id"):
        bench.loop.read_lane(bench.lanes[0])
