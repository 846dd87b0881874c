"""Loading transactions in bulk has the same result as replaying each record."""

from __future__ import annotations

import os
import random
import struct
from types import SimpleNamespace
from typing import Any

import pytest
from support.coordinators.transaction_host import TransactionHost, host_with_topics

from kbroker._ext.record.keyed_records import latest_records
from kbroker._ext.record.plain_batch import build_batch
from kbroker.coordinator.records.transaction_topic import RECORDS, TransactionLogKey
from kbroker.coordinator.transaction import state
from kbroker.coordinator.transaction.machine import TransactionMachine
from kbroker.coordinator.transaction.rules import judge_init
from kbroker.coordinator.transaction.state import Transaction, TransactionStatus
from kbroker.errors import ErrorCode
from kbroker.record import compression
from kbroker.record.builder import BatchBuilder

pytestmark = pytest.mark.unit

SEED = int(os.environ.get("KBROKER_TEST_SEED", "20261121"))
Row = tuple[bytes, bytes | None]


def log_of(rows: list[Row], rng: random.Random) -> bytes:
    """The rows as a log of batches of up to five records."""
    data = bytearray()
    offset = 0
    while offset < len(rows):
        count = rng.randint(1, 5)
        batch = bytearray(build_batch(rows[offset : offset + count], 5))
        struct.pack_into(">q", batch, 0, offset)
        data += batch
        offset += len(rows[offset : offset + count])
    return bytes(data)


def history(rng: random.Random, steps: int) -> list[Row]:
    """Records of a few transactional ids, as written by a coordinator."""
    known: dict[str, Transaction] = {}
    rows = []
    for step in range(steps):
        name = f"tx-{rng.randrange(4)}"
        txn = known.get(name)
        value: Any
        if txn is None:
            txn = known[name] = Transaction(name)
            value = state.initialized(txn, step, 0, 1000, step)
        elif txn.state in state.PREPARED:
            value = state.completed(txn, step)
        elif txn.state == TransactionStatus.ONGOING and rng.random() < 0.5:
            commit, version = rng.random() < 0.7, rng.choice((state.VERSION_1, state.VERSION_2))
            value = state.prepared(txn, commit, version, -1, step)
        elif txn.state != TransactionStatus.ONGOING and rng.random() < 0.1:
            value = None
        elif txn.state != TransactionStatus.ONGOING and rng.random() < 0.2:
            value = state.initialized(txn, txn.producer_id, txn.epoch + 1, 1000, step)
        else:
            where = [("t", rng.randrange(100))]
            value = state.with_partitions(txn, where, state.VERSION_2, step)
        if value is None:
            del known[name]
        else:
            txn.apply(value)
        rows.append(RECORDS.encode(TransactionLogKey(transactional_id=name), value))
    return rows


def seen(machine: TransactionMachine) -> Any:
    """The complete state of a loaded machine."""
    fields = set(Transaction.__slots__) - {"last_epoch", "deadline_ms"}
    transactions = {
        name: {field: getattr(txn, field) for field in fields}
        for name, txn in machine.transactions.items()
    }
    return transactions, {name: txn.deadline_ms for name, txn in machine.ongoing.items()}


def fresh() -> TransactionMachine:
    host: TransactionHost = host_with_topics()
    machine = TransactionMachine(host.machine.host, None, None)  # type: ignore[arg-type]
    assert not machine.is_loaded
    return machine


@pytest.mark.parametrize("number", range(30))
def test_bulk_load_comes_to_the_same_as_each_record(number: int) -> None:
    rng = random.Random(SEED + number)
    rows = history(rng, rng.randint(1, 120))
    one_by_one, bulk = fresh(), fresh()
    for offset, row in enumerate(rows):
        one_by_one.replay(offset, -1, *RECORDS.decode(*row))

    cut = rng.randrange(len(rows))
    for part in (rows[:cut], rows[cut:]):
        data = log_of(part, rng)
        position, taken, _ = bulk.replay_chunk(data, 0)
        assert (position, taken) == (len(data), len(part))

    assert seen(bulk) == seen(one_by_one), SEED + number


def test_epoch_before_a_raised_one_is_forgotten_by_a_load() -> None:
    """As in Kafka: a producer that did not receive it is fenced after a restart."""
    txn = Transaction("tx")
    txn.apply(state.initialized(txn, 7, 3, 1000, 0))
    rows = []
    for step in range(60):
        if txn.state == TransactionStatus.ONGOING:
            value = state.prepared(txn, True, state.VERSION_2, -1, step)
        elif txn.state in state.PREPARED:
            value = state.completed(txn, step)
        else:
            value = state.with_partitions(txn, [("t", 0)], state.VERSION_2, step)
        txn.apply(value)
        rows.append(RECORDS.encode(TransactionLogKey(transactional_id="tx"), value))
    machine = fresh()

    machine.replay_chunk(log_of(rows, random.Random(1)), 0)

    machine.loaded(SimpleNamespace(touch=lambda: None))  # type: ignore[arg-type]
    loaded = machine.transactions["tx"]
    assert (txn.epoch, txn.last_epoch) == (23, 22)
    assert (loaded.epoch, loaded.last_epoch) == (23, state.NO_EPOCH)
    assert judge_init(txn, 7, 22) == ErrorCode.NONE
    assert judge_init(loaded, 7, 22) == ErrorCode.PRODUCER_FENCED


def test_chunk_with_a_damaged_record_is_left_to_the_loader() -> None:
    rows = history(random.Random(1), 10)
    rows.append((rows[-1][0], b"\0"))
    data = log_of(rows, random.Random(1))
    machine = fresh()

    assert machine.replay_chunk(data, 0) == (0, 0, -1)
    assert machine.replay_chunk(data, 0) == (0, 0, -1)
    assert not machine.transactions
    position, taken, _ = machine.replay_chunk(log_of(rows[:-1], random.Random(1)), 0)
    assert position and taken == len(rows) - 1


class TestLatestRecords:
    def test_last_records_of_each_key_are_found_in_order(self) -> None:
        rows = [(b"a", b"0"), (b"b", None), (b"a", b"2"), (b"a", None), (b"c", b"")]
        data = log_of(rows, random.Random(1))

        found = latest_records(data, 0, 2)

        assert found == (
            len(data),
            5,
            5,
            {b"a": [(2, b"2"), (3, None)], b"b": [(1, None)], b"c": [(4, b"")]},
        )

    def test_every_truncation_ends_before_the_batch_that_is_cut(self) -> None:
        first, second = build_batch([(b"a", b"1")], 5), build_batch([(b"b", b"2")], 5)
        data = first + second
        for size in range(len(data)):
            position, taken, _, found = latest_records(data[:size], 0, 3)
            whole = size >= len(first)
            assert (position, taken) == ((len(first), 1) if whole else (0, 0))
            assert set(found) == ({b"a"} if whole else set())

    def test_every_flipped_byte_of_a_checked_part_ends_it(self) -> None:
        data = build_batch([(b"key", b"value")], 5)
        for at in range(17, len(data)):
            broken = bytearray(data)
            broken[at] ^= 0x10
            assert latest_records(bytes(broken), 0, 3)[:2] == (0, 0), at

    @pytest.mark.parametrize("kind", ["compressed", "no key"])
    def test_batch_for_somebody_else_ends_it(self, kind: str) -> None:
        builder = BatchBuilder(compression.GZIP if kind == "compressed" else compression.NONE)
        builder.append(b"value", None if kind == "no key" else b"key", 5)
        data = build_batch([(b"a", b"1")], 5)

        position, taken, next_offset, _ = latest_records(data + builder.build(), 0, 3)

        assert (position, taken, next_offset) == (len(data), 1, 1)

    @pytest.mark.parametrize(("position", "keep", "error"), [(-1, 1, IndexError),
                                                              (4, 1, IndexError),
                                                              (0, 0, ValueError)])  # fmt: skip
    def test_bad_arguments_are_rejected(self, position: int, keep: int, error: Any) -> None:
        with pytest.raises(error):
            latest_records(b"abc", position, keep)
