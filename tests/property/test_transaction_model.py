"""Random producers of one transactional id on partitions modelled by lists.

Producers of both protocols start, write, commit, abort, and are replaced while they still send;
requests come late and twice; the log rejects records, holds them back, or loses what was not yet
committed; markers fail, are written and not acknowledged, or wait; the coordinator is loaded again.

What must hold: no record raises a decision twice or lowers an epoch; who was replaced changes
nothing; once all is well again every transaction ends within its timeout, in all its partitions the
same way, and as its producer was told.
"""

from __future__ import annotations

import random
from collections.abc import Iterator
from typing import Any

import pytest
from support.coordinators.transaction_host import ID, TransactionHost

from kbroker.coordinator.transaction.state import (
    CLIENT_EPOCH_MAX,
    OPEN,
    PREPARED,
    TransactionStatus,
)
from kbroker.errors import ErrorCode, WireError
from kbroker.ipc.calls import WRITE_MARKERS, CallOperation, WriteMarkers
from kbroker.ipc.rpc import Pending

pytestmark = pytest.mark.property

PARTITIONS = 4
TIMEOUT_MS, INTERVAL_MS = 5_000, 500
INTERVAL = "transaction.abort.timed.out.transaction.cleanup.interval.ms"
STEPS = 150
REPLACED = (ErrorCode.PRODUCER_FENCED, ErrorCode.INVALID_PRODUCER_ID_MAPPING)


class DataPartition:
    """Writes (producer id, label) and markers (producer id, commit), in order."""

    def __init__(self) -> None:
        self.entries: list[tuple[int, Any]] = []
        self.epochs: dict[int, int] = {}

    def write(self, producer: tuple[int, int], label: str) -> bool:
        if producer[1] < self.epochs.get(producer[0], -1):
            return False
        self.epochs[producer[0]] = producer[1]
        self.entries.append((producer[0], label))
        return True

    def end(self, producer: tuple[int, int], commit: bool) -> int:
        if producer[1] < self.epochs.get(producer[0], -1):
            return int(ErrorCode.INVALID_PRODUCER_EPOCH)
        self.epochs[producer[0]] = producer[1]
        self.entries.append((producer[0], commit))
        return 0

    def outcomes(self) -> Iterator[tuple[str, bool | None]]:
        """Each write with its outcome, None if it has none yet."""
        for at, (producer_id, what) in enumerate(self.entries):
            if isinstance(what, str):
                ends = (e for p, e in self.entries[at:] if p == producer_id and e in (True, False))
                yield what, next(ends, None)


class Producer:
    """A process that uses the transactional id; it never changes its mind about an end."""

    def __init__(self, number: int, protocol: int) -> None:
        self.number = number
        self.protocol = protocol
        self.identity: tuple[int, int] | None = None
        self.transactions = 0
        self.ending: bool | None = None
        self.has_begun = False

    @property
    def label(self) -> str:
        return f"{self.number}.{self.transactions}"

    def next(self) -> None:
        self.transactions += 1
        self.ending, self.has_begun = None, False


class Run:
    def __init__(self, seed: int) -> None:
        self.random = random.Random(seed)
        self.host = TransactionHost(**{INTERVAL: str(INTERVAL_MS)})
        self.host.on_markers = self.take_markers
        self.host.add_topic("t", PARTITIONS)
        self.data = [DataPartition() for _ in range(PARTITIONS)]
        self.producers: list[Producer] = []
        self.told: dict[str, bool] = {}
        self.late: list[tuple[Any, ...]] = []
        self.marker_mode = "good"
        self.held: list[tuple[Pending, Any, WriteMarkers]] = []
        self.is_held = False
        self.committed = 0
        self.steps = 0
        self._answer_now = self.host.rpc.call
        self.host.rpc.call = self.call

    # -- markers -----------------------------------------------------------------------------

    def call(self, to: Any, operation: CallOperation[Any, Any], request: Any) -> Pending:
        """Delayed calls complete in order, like those of one mailbox."""
        if operation is WRITE_MARKERS and self.is_held:
            self.held.append((Pending(), to, request))
            return self.held[-1][0]
        return self._answer_now(to, operation, request)

    def release(self) -> None:
        while self.held:
            pending, to, request = self.held.pop(0)
            outcome = self._answer_now(to, WRITE_MARKERS, request)
            pending.resolve(outcome.value, outcome.error)
        self.is_held = False

    def take_markers(self, to: Any, markers: list[list[Any]]) -> list[int]:
        if self.marker_mode == "lost":
            raise WireError(ErrorCode.COORDINATOR_NOT_AVAILABLE)
        codes = []
        for slot, producer_id, epoch, commit, *_ in markers:
            if self.marker_mode == "some" and self.random.random() < 0.5:
                codes.append(int(ErrorCode.NOT_LEADER_OR_FOLLOWER))
            else:
                codes.append(self.data[slot].end((producer_id, epoch), commit))
        if self.marker_mode == "unheard":
            raise WireError(ErrorCode.REQUEST_TIMED_OUT)
        return codes

    # -- requests ----------------------------------------------------------------------------

    @property
    def current(self) -> tuple[int, int]:
        txn = self.host.machine.transactions.get(ID)
        return txn.identity if txn is not None else (-1, -1)

    def ask(self, identity: tuple[int, int] | None, send: Any) -> Any:
        """The response; None if there was none. A replaced producer leaves no record."""
        before = len(self.host.log)
        is_stale = identity is not None and identity < self.current
        pending = send()
        assert not is_stale or len(self.host.log) == before, "a replaced producer wrote a record"
        for _ in range(6):
            if pending.done:
                break
            self.host.advance(20)
        if not pending.done or pending.error is not None:
            assert pending.error is None or isinstance(pending.error, WireError)
            return None
        return pending.value

    def start(self, producer: Producer) -> None:
        response = self.ask(None, lambda: self.host.send_init(transaction_timeout_ms=TIMEOUT_MS))
        if response is None or response.error_code:
            assert response is None or response.error_code == ErrorCode.CONCURRENT_TRANSACTIONS
            return
        producer.identity = response.producer_id, response.producer_epoch
        producer.next()

    def verify(self, identity: tuple[int, int], where: int, add: bool) -> int | None:
        return self.ask(identity, lambda: self.host.send_verify(identity, where, add))

    def write(self, producer: Producer) -> None:
        identity, where = producer.identity, self.random.randrange(PARTITIONS)
        assert identity is not None
        is_current = identity == self.current and not self.host.machine.ongoing
        if producer.protocol == 1:
            response = self.ask(identity, lambda: self.host.send_add(identity, where))
            if response is None:
                return
            topic = response.results_by_topic_v3_and_below[0]
            code = topic.results_by_partition[0].partition_error_code
        else:
            self.late.append(("verify", identity, where))
            code = 0
        if not code:
            code = self.verify(identity, where, producer.protocol == 2)
        assert not is_current or code not in REPLACED, "a producer nobody replaced is refused"
        if code == 0 and self.data[where].write(identity, producer.label):
            producer.has_begun = True
        elif code not in (None, 0, ErrorCode.CONCURRENT_TRANSACTIONS):
            assert code in (*REPLACED, ErrorCode.TRANSACTION_ABORTABLE)
            if code in REPLACED:
                producer.identity = None

    def end(self, producer: Producer) -> None:
        identity = producer.identity
        assert identity is not None
        if producer.ending is None:
            producer.ending = producer.has_begun and self.random.random() < 0.7
        commit, version = producer.ending, 4 if producer.protocol == 1 else 5
        if producer.protocol == 2:
            self.late.append(("end", identity, commit))
        response = self.ask(identity, lambda: self.host.send_end(identity, commit, version))
        if response is None or response.error_code == ErrorCode.CONCURRENT_TRANSACTIONS:
            return
        if response.error_code:
            assert response.error_code in (*REPLACED, ErrorCode.INVALID_TXN_STATE)
            producer.identity = None
            return
        self.told[producer.label] = commit
        if producer.protocol == 2:
            new = response.producer_id, response.producer_epoch
            assert identity < new <= self.current
            producer.identity = new
        producer.next()

    def repeat(self) -> None:
        """An old message arrives, perhaps again."""
        what, identity, argument = self.random.choice(self.late)
        is_stale = identity < self.current
        if what == "verify":
            code = self.verify(identity, argument, True)
            assert not is_stale or code != 0
        else:
            self.ask(identity, lambda: self.host.send_end(identity, argument, 5))

    # -- faults ------------------------------------------------------------------------------

    def crash(self) -> None:
        """The coordinator's process dies, and with it messages that it had sent and nobody had
        received.
        """
        self.held.clear()
        self.is_held = False
        host = self.host
        if host.is_holding and self.random.random() < 0.5:
            del host.log[self.committed :]
        host.is_holding = False
        host._waiting.clear()
        host.fail_with = None
        host.reload()

    def fault(self) -> None:
        host = self.host
        match self.random.randrange(9):
            case 0:
                self.crash()
            case 1:
                self.marker_mode = self.random.choice(["lost", "some", "unheard"])
            case 2:
                self.marker_mode = "good"
            case 3:
                self.is_held = True
            case 4:
                self.release()
            case 5:
                host.fail_with = WireError(ErrorCode.COORDINATOR_NOT_AVAILABLE)
            case 6:
                host.fail_with = None
            case 7:
                host.is_refusing = not host.is_refusing
            case 8 if not host.is_holding:
                self.committed = len(host.log)
                host.is_holding = True
            case _:
                host.commit()

    def heal(self) -> None:
        self.marker_mode = "good"
        self.host.is_refusing = False
        self.host.fail_with = None
        self.host.commit()
        self.release()

    # -- the run -----------------------------------------------------------------------------

    def step(self) -> None:
        self.steps += 1
        chance = self.random.random()
        alive = [producer for producer in self.producers if producer.identity is not None]
        if chance < 0.06 or not self.producers:
            self.producers.append(Producer(len(self.producers), self.random.choice([1, 2, 2])))
            self.start(self.producers[-1])
        elif chance < 0.12:
            self.start(self.random.choice(self.producers[-2:]))
        elif chance < 0.20:
            self.fault()
        elif chance < 0.26:
            self.heal()
        elif chance < 0.34 and self.late:
            self.repeat()
        elif chance < 0.40:
            self.host.advance(self.random.choice([1, 50, 1_000, TIMEOUT_MS]))
        elif alive:
            producer = self.random.choice(alive[-2:])
            if producer.ending is not None or self.random.random() < 0.4:
                self.end(producer)
            else:
                self.write(producer)

    def settle(self) -> None:
        """All faults end: every operation completes."""
        self.heal()
        self.host.advance(TIMEOUT_MS + 2 * INTERVAL_MS)
        found = [txn.state for txn in self.host.machine.transactions.values()]
        assert not [s for s in found if s in OPEN], "a transaction did not end within its timeout"

    def check(self) -> None:
        ends: dict[str, set[bool | None]] = {}
        for partition in self.data:
            for label, outcome in partition.outcomes():
                ends.setdefault(label, set()).add(outcome)
        for label, outcomes in ends.items():
            assert len(outcomes) == 1, f"transaction {label} ended as {outcomes}"
            assert None not in outcomes, f"transaction {label} hangs"
            assert label not in self.told or outcomes == {self.told[label]}, (
                f"{label} was told else"
            )

    def records(self) -> list[Any]:
        decode = self.host.machine.records.decode
        return [decode(entry.key, entry.value)[1] for entry in self.host.log]

    def check_records(self) -> None:
        decided: dict[tuple[int, int], int] = {}
        last = (-1, -1)
        for value in self.records():
            identity = value.producer_id, value.producer_epoch
            assert identity >= last, "an epoch went back"
            last = identity
            is_second = value.client_transaction_version >= 2
            if value.transaction_status in PREPARED and is_second:
                assert identity not in decided, f"{identity} is decided twice"
                decided[identity] = value.transaction_status

    def check_prefix(self, length: int) -> None:
        """A coordinator that loads only the first records completes their transactions."""
        host = TransactionHost(**{INTERVAL: str(INTERVAL_MS)})
        host.add_topic("t", PARTITIONS)
        host.log = list(self.host.log[:length])
        value = self.records()[length - 1]
        host.reload()
        host.advance(TIMEOUT_MS + 2 * INTERVAL_MS)
        state = host.txn.state
        assert state not in OPEN
        if value.transaction_status in PREPARED:
            is_commit = value.transaction_status == TransactionStatus.PREPARE_COMMIT
            assert state == (
                TransactionStatus.COMPLETE_COMMIT if is_commit else TransactionStatus.COMPLETE_ABORT
            )
            assert {marker[1:4] for marker in host.markers} <= {
                (value.producer_id, value.producer_epoch, is_commit)
            }


@pytest.mark.parametrize("seed", range(40))
def test_transactions_end_once_and_the_same_way_everywhere(seed: int) -> None:
    run = Run(seed)
    first = Producer(0, 2 - seed % 2)
    run.producers.append(first)
    run.start(first)
    if seed % 4 == 0:  # epochs are used up on the way
        first.identity = run.host.set_epoch(CLIENT_EPOCH_MAX - seed % 3)
    try:
        for _ in range(STEPS):
            run.step()
        run.settle()
        run.check()
        run.check_records()
        for length in sorted(run.random.sample(range(1, len(run.host.log) + 1), k=8)):
            run.check_prefix(length)
    except AssertionError as error:
        raise AssertionError(f"seed {seed}, {run.steps} steps: {error}") from error
    assert run.told, "nothing was ever told: the run shows nothing"
