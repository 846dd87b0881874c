"""Producer ids of a broker, also while its metadata store is unavailable."""

from __future__ import annotations

from itertools import pairwise
from typing import Any

import pytest
from support.controller.controlled import Controlled

from kbroker.controller.store import persistence
from kbroker.controller.store.producer_ids import FETCHED_AT, PART_SIZE, WAIT_MS, ProducerIdBlocks
from kbroker.errors import ErrorCode, WireError
from kbroker.ipc.pending import Pending, run
from kbroker.metastore import paths
from kbroker.metastore.store import BadVersion, StoreOperation

pytestmark = pytest.mark.unit

BLOCK = 1000
AWAY = WireError(ErrorCode.REQUEST_TIMED_OUT, "away")


class Store:
    """Allocates blocks of ids, at once or when ``answer`` is called."""

    def __init__(self, *, is_shared: bool = True) -> None:
        self.next = 0
        self.is_connected = self.answers = True
        self.asked: list[Pending[int]] = []
        self.sleeps: list[tuple[int, Pending[None]]] = []
        self.blocks = ProducerIdBlocks(
            self.allocate, self.check_connected, self.sleep, is_shared=is_shared
        )

    def allocate(self) -> Pending[int]:
        pending: Pending[int] = Pending()
        self.asked.append(pending)
        if self.answers:
            self.answer()
        return pending

    def answer(self, error: Exception | None = None) -> None:
        self.asked.pop(0).resolve(self.next, error)
        self.next += BLOCK

    def check_connected(self) -> None:
        if not self.is_connected:
            raise AWAY

    def sleep(self, delay_ms: int) -> Pending[None]:
        pending: Pending[None] = Pending()
        self.sleeps.append((delay_ms, pending))
        return pending

    def take(self) -> Pending[Any]:
        return run(self.blocks.take())

    def first(self) -> int:
        outcome = self.take()
        assert outcome.done and outcome.error is None, outcome.error
        first: int = outcome.value.first
        return first


def test_processes_get_parts_of_a_block() -> None:
    store = Store()
    firsts = [store.first() for _ in range(12)]
    assert firsts == [number * PART_SIZE for number in range(12)]


def test_store_of_one_broker_gives_whole_blocks_and_none_ahead() -> None:
    store = Store(is_shared=False)
    store.blocks.fetch_ahead()
    assert store.next == 0
    assert [store.take().value.count for _ in range(2)] == [BLOCK, BLOCK]
    assert store.next == 2 * BLOCK


def test_next_block_is_fetched_before_the_present_one_is_used_up() -> None:
    store = Store()
    store.blocks.fetch_ahead()
    assert store.blocks.left == BLOCK
    while store.next == BLOCK:
        store.first()
    assert store.blocks.left == BLOCK + FETCHED_AT


def test_ids_are_left_for_an_outage_that_begins_at_any_time() -> None:
    store = Store()
    store.blocks.fetch_ahead()
    store.answers = store.is_connected = False
    assert [store.first() for _ in range(BLOCK // PART_SIZE)] == list(range(0, BLOCK, PART_SIZE))
    assert len(store.asked) == 1  # however many have asked
    assert store.take().error is AWAY
    store.answer()
    store.is_connected = True
    assert store.first() == BLOCK


def test_response_does_not_wait_for_a_store_that_does_not_respond() -> None:
    store = Store()
    store.answers = False
    waiting = [store.take() for _ in range(2)]
    assert not waiting[0].done
    for delay_ms, pending in store.sleeps:
        assert delay_ms == WAIT_MS
        pending.resolve()
    codes = [outcome.error.code for outcome in waiting]  # type: ignore[union-attr]
    assert codes == [ErrorCode.REQUEST_TIMED_OUT] * 2
    store.answer()
    assert store.first() == 0


def test_all_that_wait_get_ids_of_one_block() -> None:
    store = Store()
    store.answers = False
    waiting = [store.take() for _ in range(3)]
    store.answer()
    assert [outcome.value.first for outcome in waiting] == [0, PART_SIZE, 2 * PART_SIZE]


def test_failure_of_the_store_is_an_error_for_those_who_wait_and_tried_again() -> None:
    store = Store()
    store.answers = False
    waiting = store.take()
    store.answer(BadVersion("/latest_producer_id_block"))
    assert isinstance(waiting.error, WireError)
    store.answers = True
    assert store.take().error is None


def test_block_that_cannot_be_read_is_followed_by_ids_that_nobody_has() -> None:
    """Two producers with one id would take each other's records for their own."""
    cluster = Controlled()
    cluster.register(0)
    cluster.start()
    first_ids = []
    for damage in (b"", b"", b"{", b"", b'{"block_end":"all"}', b""):
        if damage:
            cluster.apply(StoreOperation("set", paths.PRODUCER_ID_BLOCK, damage))
        first_ids.append(cluster.run(persistence.allocate_producer_ids(cluster.store, 0)).value)

    assert first_ids[:2] == [0, 1000]
    blocks = [range(first, first + 1000) for first in first_ids]
    assert all(a.stop <= b.start for a, b in pairwise(blocks))
