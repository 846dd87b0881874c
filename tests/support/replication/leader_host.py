"""An io worker that leads partition 0 of topic ``t`` with followers, in the test's own process.

The test is the network process on the other side of its lane, and the controller.
"""

from __future__ import annotations

import mmap
import socket
import time
from pathlib import Path
from typing import Any

from support.network.net_loop_harness import DESCRIPTOR, ENVELOPE, IO_WORKER, NETWORK, RESULT
from support.network.network_process import topic_document
from support.replication.follower_entries import ATTACHED, PROGRESS, entry
from support.storage.log_store import LogStore, batch

from kbroker._ext.io.io_loop import IoLoop
from kbroker._ext.shared import lane_layout, session_times
from kbroker._ext.shared.lane import Lane
from kbroker._ext.shared.session_times import SessionTimes
from kbroker.cluster.image import ClusterImage
from kbroker.config.loader import BrokerConfig
from kbroker.ipc import calls
from kbroker.ipc.calls import IsrResult, WantedIsr
from kbroker.ipc.pending import Pending
from kbroker.storage.log.partition_log import PartitionLog
from kbroker.workers.io.hosted import HostedPartitions
from kbroker.workers.io.in_sync import InSync
from kbroker.workers.io.low_watermarks import LowWatermarks
from kbroker.workers.io.partition_calls import PartitionCalls

ME = 0
MSG_PRODUCE, MSG_PRODUCE_RESULT = 3, 4
ARENA_BYTES = 1 << 20


class Asked:
    """A call of ALTER_ISR that is not answered yet."""

    def __init__(self, wanted: list[WantedIsr]) -> None:
        self.wanted = wanted
        self.pending: Pending[list[IsrResult]] = Pending()


class LeaderHost:
    """isr, replicas: what the first role says. Broker ME leads in leader epoch 1."""

    def __init__(
        self,
        path: Path,
        *,
        isr: list[int],
        replicas: list[int],
        store: LogStore | None = None,
        asked_before: list[WantedIsr] | None = None,
        opening: bool = False,
        **config: str,
    ) -> None:
        self.store = store or LogStore(path)
        named = {name.replace("_", "."): value for name, value in config.items()}
        self.config = BrokerConfig(named)
        self.rpc: Any = self
        self.calls: list[Asked] = []
        self.sleeping: list[Pending[None]] = []
        self.image = ClusterImage()
        self.clock = self.store.clock
        self.cells = memoryview(mmap.mmap(-1, 4096)).cast("q")
        self.cells[0] = 3
        ours, self.network = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self.network.setblocking(False)
        self._ours = ours
        self.lane = Lane(ours.fileno(), (IO_WORKER, 0, 5), 0, self.cells, 0)
        self.arena = mmap.mmap(-1, ARENA_BYTES)
        self._used = 0
        self.loop = IoLoop(self.store.table, [self.arena], [self.lane], self.on_storage_failure)
        self.loop.set_opening(opening)
        self.loop.shows_followers = bool(self.config["replica.selector.class"])
        self.hosted = HostedPartitions(
            self, self.store.manager, self.loop, broker_id=ME, worker_index=0, worker_count=1
        )
        self.served: dict[str, Any] = {}
        self.low_watermarks = LowWatermarks(self, self.loop)
        self.partition_calls = PartitionCalls(self, self.store.manager)
        # As the network process writes them.
        self.times = SessionTimes(mmap.mmap(-1, session_times.region_size(1)), 0)
        self.in_sync = InSync(self, self.loop, self.times, broker_id=ME)
        self.in_sync.take_asked_before(asked_before or [])
        self.document = topic_document(b"t" * 16, [0], leader=ME, leader_epoch=1)
        self.live = [ME, *replicas]
        self.tell(isr=isr, replicas=replicas, is_new=True)

    # -- the io worker --

    def lead_lost(self, slot: int) -> None:
        """Nothing else serves it."""

    def role_changed(self, slot: int, partition: Any, log: Any) -> None:
        self.in_sync.take_role(slot, partition, log)
        if log is not None:
            self.low_watermarks.check(slot)

    def show_in_sync(self, slot: int, log: PartitionLog, partition: Any) -> None:
        self.hosted.show_in_sync(slot, log, partition)

    def led_log(self, slot: int) -> PartitionLog | None:
        return self.hosted.led_log(slot)

    def held_log(self, slot: int) -> PartitionLog | None:
        return self.hosted.held_log(slot)

    def wake(self, slot: int) -> None:
        self.loop.wake(slot)

    def on_storage_failure(self, slot: int) -> None:
        raise AssertionError(f"slot {slot} has failed")

    def call(self, to: Any, operation: Any, request: Any) -> Pending[list[IsrResult]]:
        assert operation is calls.ALTER_ISR
        self.calls.append(Asked(request.wanted))
        return self.calls[-1].pending

    def serve(self, operation: Any, function: Any) -> None:
        self.served[operation.name] = function

    def sleep(self, delay_ms: int) -> Pending[None]:
        self.sleeping.append(Pending())
        return self.sleeping[-1]

    def turn(self) -> None:
        self.loop.end_turn()
        self.in_sync.end_turn()
        self.low_watermarks.end_turn()
        self.loop.end_turn()

    # -- the controller --

    def tell(self, **fields: Any) -> None:
        """Change the partition, or the brokers that live, in the image."""
        (partition,) = self.document["partitions"]
        self.document["partitions"] = [partition._replace(**{"is_new": False, **fields})]
        brokers: dict[str, Any] = {
            str(number): {"endpoints": [["PLAINTEXT", "h", 9092, "PLAINTEXT"]], "rack": None}
            for number in self.live
        }
        brokers |= {str(gone): None for gone in self.image.brokers if gone not in self.live}
        changes = self.image.apply(
            {
                "version": self.image.version + 1,
                "topics": {"t": self.document},
                "brokers": brokers,
            }
        )
        self.hosted.take(changes, is_snapshot=False)
        outcome = self.hosted.open(changes).done
        assert outcome.done and outcome.error is None
        self.turn()

    def asked(self) -> Asked:
        """The only call that is not answered."""
        self.turn()
        (one,) = [call for call in self.calls if not call.pending.done]
        return one

    def wanted(self) -> list[int]:
        """The ISR that the controller is asked for now."""
        (wanted,) = self.asked().wanted
        return wanted.isr

    @property
    def is_asking(self) -> bool:
        self.turn()
        return any(not call.pending.done for call in self.calls)

    # -- clients and followers --

    @property
    def log(self) -> PartitionLog:
        found = self.store.manager.log(0)
        assert found is not None
        return found

    def produce(self, number: int, *, acks: int = -1) -> None:
        """Append one record with a produce request of that number."""
        data = batch()
        self.arena[self._used : self._used + len(data)] = data
        row = DESCRIPTOR.pack(number, 0, 0, 1, 1000, self._used, len(data), acks, 11, 0, 0)
        self._used += len(data)
        self.network.send(ENVELOPE.pack(MSG_PRODUCE, NETWORK, 0, self.cells[0], 5, 1) + row)
        self.loop.read_lane(self.lane)
        self.turn()

    def append(self, count: int) -> None:
        for _ in range(count):
            self.produce(0, acks=1)
        self.results()

    def results(self) -> list[tuple[int, int]]:
        """(number, error code) of the produce requests that are answered now."""
        self.turn()
        found = []
        while True:
            try:
                data = self.network.recv(1 << 20)
            except BlockingIOError:
                return found
            kind, *_, count = ENVELOPE.unpack_from(data)
            for i in range(count if kind == MSG_PRODUCE_RESULT else 0):
                row = RESULT.unpack_from(data, ENVELOPE.size + i * RESULT.size)
                found.append((row[0], row[2]))

    def fetch(self, replica: int, offset: int, *, leader_epoch: int = 1, **more: Any) -> None:
        """The replica fetches from there, over a session without a cell."""
        said = entry(
            replica,
            offset,
            seen=self.log.log_end_offset,
            at_ms=time.monotonic_ns() // 1_000_000,
            leader_epoch=leader_epoch,
            flags=ATTACHED | PROGRESS,
            **more,
        )
        header = ENVELOPE.pack(lane_layout.FOLLOWER, NETWORK, 0, self.cells[0], 5, 1)
        self.network.send(header + said)
        self.loop.read_lane(self.lane)
        self.turn()

    @property
    def high_watermark(self) -> tuple[int, int, int]:
        """As it is published: offset, segment, position."""
        self.turn()
        found: tuple[int, int, int] = self.store.slot()["high_watermark"]
        return found

    def close(self) -> None:
        self.store.stop(clean=False)
        self.network.close()
        self._ours.close()
