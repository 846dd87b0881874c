"""A shard of ``__transaction_state`` in memory, with io workers that write its markers."""

from __future__ import annotations

import heapq
from collections.abc import Callable
from itertools import count
from typing import Any

from support.coordinators.coordinator_host import CoordinatorHost, value_of
from support.network.network_process import FakeRpc

from kbroker.coordinator.partitioner import OFFSETS_TOPIC, TRANSACTIONS_TOPIC
from kbroker.coordinator.producer_ids import ProducerIds
from kbroker.coordinator.transaction.machine import TransactionMachine
from kbroker.coordinator.transaction.markers import MarkerWriter, over
from kbroker.coordinator.transaction.state import Transaction
from kbroker.errors import WireError
from kbroker.ipc.process_table import Address, ProcessKind
from kbroker.ipc.rpc import Pending
from kbroker.protocol.messages.add_offsets_to_txn import AddOffsetsToTxnRequest
from kbroker.protocol.messages.add_partitions_to_txn import AddPartitionsToTxnRequest
from kbroker.protocol.messages.end_txn import EndTxnRequest
from kbroker.protocol.messages.init_producer_id import InitProducerIdRequest

IO_WORKERS = 2
FIRST_ID = 1000
ID = "tx"


class SleepingRpc(FakeRpc):
    """An rpc that also sleeps, on the host's clock."""

    def __init__(self, now_ms: Callable[[], int]) -> None:
        super().__init__()
        self._now_ms = now_ms
        self._order = count()
        self.sleepers: list[tuple[int, int, Pending]] = []

    def sleep(self, delay_ms: int) -> Pending:
        pending = Pending()
        heapq.heappush(self.sleepers, (self._now_ms() + delay_ms, next(self._order), pending))
        return pending

    def wake(self) -> None:
        """End the sleeps that are due."""
        while self.sleepers and self.sleepers[0][0] <= self._now_ms():
            heapq.heappop(self.sleepers)[2].resolve()


class TransactionHost(CoordinatorHost):
    """Completes every marker with ``marker_code``, or as ``on_markers`` says.

    markers: each that was written without an error: (slot, producer id, epoch, commit, coordinator
    epoch, transaction version).
    """

    def __init__(self, **settings: str) -> None:
        self.markers: list[tuple[Any, ...]] = []
        self.marker_code: int | WireError = 0
        self.on_markers: Callable[[Address, list[list[Any]]], list[int]] = self._take_markers
        self.producer_ids: ProducerIds | None = None
        super().__init__(self._machine, topic=TRANSACTIONS_TOPIC, **settings)

    def _machine(self, host: Any) -> TransactionMachine:
        if self.producer_ids is None:
            self.rpc = SleepingRpc(self.now_ms)
            blocks = iter(range(FIRST_ID, 1 << 62, 10))
            self.rpc.responses = {
                "allocate_producer_ids": lambda to: {"first": next(blocks), "count": 10},
                "write_markers": lambda to, markers: self.on_markers(to, markers),
            }
            self.producer_ids = ProducerIds(self.rpc)
        writer = MarkerWriter(over(self.rpc), lambda: self.image, self.io_worker)
        return TransactionMachine(host, self.producer_ids, writer)

    def _take_markers(self, to: Address, markers: list[list[Any]]) -> list[int]:
        if isinstance(self.marker_code, WireError):
            raise self.marker_code
        if not self.marker_code:
            self.markers += [tuple(marker) for marker in markers]
        return [self.marker_code] * len(markers)

    def io_worker(self, slot: int) -> Address:
        return Address(ProcessKind.IO_WORKER, slot % IO_WORKERS)

    def advance(self, delay_ms: int) -> None:
        end = self.now_ms() + delay_ms
        while self.rpc.sleepers and self.rpc.sleepers[0][0] <= end:
            super().advance(max(self.rpc.sleepers[0][0] - self.now_ms(), 0))
            self.rpc.wake()
        super().advance(end - self.now_ms())

    @property
    def txn(self) -> Transaction:
        """The state of the default transactional id of tests, or of another."""
        return self.machine.transactions[ID]

    # -- requests, with everything defaulted -------------------------------------------------

    def send_init(self, name: str = ID, version: int = 5, **values: Any) -> Pending:
        values = {"transaction_timeout_ms": 60_000, **values}
        return self.send(InitProducerIdRequest(transactional_id=name, **values), version)

    def init(self, name: str = ID, version: int = 5, **values: Any) -> Any:
        return value_of(self.send_init(name, version, **values))

    def send_add(
        self, producer: tuple[int, int], *partitions: int, topic: str = "t", version: int = 3
    ) -> Pending:
        topics = [AddPartitionsToTxnRequest.AddPartitionsToTxnTopic(name=topic)]
        topics[0].partitions = list(partitions)
        request = AddPartitionsToTxnRequest(
            v3_and_below_transactional_id=ID,
            v3_and_below_producer_id=producer[0],
            v3_and_below_producer_epoch=producer[1],
            v3_and_below_topics=topics,
        )
        return self.send(request, version)

    def add(self, producer: tuple[int, int], *partitions: int, **options: Any) -> list[int]:
        """The error code of each partition."""
        response = value_of(self.send_add(producer, *partitions, **options))
        return [
            result.partition_error_code
            for topic in response.results_by_topic_v3_and_below
            for result in topic.results_by_partition
        ]

    def send_add_offsets(self, producer: tuple[int, int], group: str, version: int = 3) -> Pending:
        request = AddOffsetsToTxnRequest(
            transactional_id=ID,
            producer_id=producer[0],
            producer_epoch=producer[1],
            group_id=group,
        )
        return self.send(request, version)

    def add_offsets(self, producer: tuple[int, int], group: str, version: int = 3) -> int:
        code: int = value_of(self.send_add_offsets(producer, group, version)).error_code
        return code

    def send_end(
        self, producer: tuple[int, int], commit: bool = True, version: int = 5, name: str = ID
    ) -> Pending:
        request = EndTxnRequest(
            transactional_id=name,
            producer_id=producer[0],
            producer_epoch=producer[1],
            committed=commit,
        )
        return self.send(request, version)

    def end(self, producer: tuple[int, int], commit: bool = True, version: int = 5) -> Any:
        return value_of(self.send_end(producer, commit, version))

    def send_verify(
        self, producer: tuple[int, int], partition: int, add: bool, name: str = ID
    ) -> Pending:
        return self.execute(self.machine.verify, name, *producer, "t", partition, add)

    def verify(self, producer: tuple[int, int], partition: int = 0, add: bool = False) -> int:
        return value_of(self.send_verify(producer, partition, add))

    def producer(self, **values: Any) -> tuple[int, int]:
        """Start a producer: its id and epoch."""
        response = self.init(**values)
        assert response.error_code == 0
        return response.producer_id, response.producer_epoch

    def set_epoch(self, epoch: int) -> tuple[int, int]:
        """Use up epochs, as if the producer's epoch had been bumped that often."""
        from kbroker.coordinator.records.transaction_topic import TransactionLogKey
        from kbroker.coordinator.transaction import state

        txn = self.txn
        value = state.value_of(txn, txn.state, self.wall_ms())
        value.producer_epoch = epoch
        self.append(TransactionLogKey(transactional_id=ID), value)
        return txn.producer_id, epoch


def host_with_topics(**settings: str) -> TransactionHost:
    """Topic ``t`` with four partitions (slots 0 to 3), and the offsets topic."""
    host = TransactionHost(**settings)
    host.add_topic("t", 4)
    host.add_topic(OFFSETS_TOPIC, 5)
    return host
