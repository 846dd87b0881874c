"""The coordinators of an io worker, with a network process played by the test."""

from __future__ import annotations

import mmap
import socket
from collections import deque
from pathlib import Path
from typing import Any

from support.network.network_process import FakeRpc, topic_document
from support.storage.log_store import LogStore

from kbroker._ext.io.io_loop import IoLoop
from kbroker._ext.shared.lane import Lane
from kbroker.cluster.image import ClusterImage
from kbroker.config.loader import BrokerConfig
from kbroker.coordinator.partitioner import OFFSETS_TOPIC, TRANSACTIONS_TOPIC
from kbroker.coordinator.shard import Shard
from kbroker.ipc.lane_calls import MSG_REQUEST, Assembler, LaneRequest, pack, request_parts, unpack
from kbroker.ipc.process_table import Address, ProcessKind
from kbroker.ipc.rpc import Pending
from kbroker.protocol import codec
from kbroker.protocol.messages.offset_commit import OffsetCommitRequest
from kbroker.security.principal import ANONYMOUS
from kbroker.storage.log.partition_log import PartitionLog
from kbroker.workers.io.coordinators import Coordinators

ENVELOPE_BYTES = 16
ME = Address(ProcessKind.IO_WORKER, 0)


class Loop:
    """The part of ``IoLoop`` used by coordinators."""

    def __init__(self) -> None:
        self.on_request: Any = None
        self.touched: list[Any] = []
        self.known: dict[int, Any] = {}  # appenders that were touched, by slot
        self.verdicts: list[tuple[int, int]] = []
        self.turns = 0
        self.commit_path: Any = None

    def touch(self, appender: Any) -> None:
        self.touched.append(appender)
        self.known[appender.slot] = appender

    def end_turn(self) -> bool:
        self.turns += 1
        while self.touched:
            touched, self.touched = self.touched, []
            for appender in touched:
                appender.publish_now()
            for appender in touched:
                appender.committed.advance(appender.high_watermark_offset)
        return bool(self.commit_path.end_turn())

    def expire_waiting(self, now_ms: int) -> None:
        for appender in self.known.values():
            appender.committed.expire(now_ms)

    def verified(self, token: int, code: int) -> None:
        self.verdicts.append((token, code))


class Bench:
    """An io worker with both internal topics, and a network process played by the test."""

    worker_count = 1
    has_joined = True
    broker_id = 0
    address = ME

    def __init__(self, path: Path) -> None:
        ours, self.network = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self._ours = ours
        for end in (ours, self.network):
            end.setblocking(False)
        self.cells = memoryview(mmap.mmap(-1, 4096)).cast("q")
        self.cells[0] = 5
        self.lane = Lane(ours.fileno(), (3, 0, 1), 0, self.cells, 0)
        self.store = LogStore(path)
        self.logs = self.store.manager
        self.clock = self.store.clock
        self.config = BrokerConfig({})
        self.loop: Any = self.make_loop()
        self.rpc: Any = FakeRpc()
        self.rpc.serve = lambda *_: None
        self.rpc.sleep = lambda delay_ms: Pending()
        self.image = ClusterImage()
        self.coordinators = self.make_coordinators()
        self.assembler = Assembler()
        self.tokens = 0
        self.quota = (0, 0.0)
        self.principal = ANONYMOUS
        for slot, topic in enumerate((OFFSETS_TOPIC, TRANSACTIONS_TOPIC)):
            self.log(
                self.store.open(
                    topic=topic,
                    slot=slot,
                    topic_id=bytes([slot + 1]) * 16,
                    cleanup_policy=("compact",),
                )
            )
        self.apply(
            {
                OFFSETS_TOPIC: topic_document(b"\1" * 16, [0], internal=True),
                TRANSACTIONS_TOPIC: topic_document(b"\2" * 16, [1], internal=True),
                "t": topic_document(b"t" * 16, [2]),
            }
        )

    def make_loop(self) -> Any:
        return Loop()

    def make_coordinators(self) -> Coordinators:
        return Coordinators(self, self.logs, self.loop, [self.lane])

    def close(self) -> None:
        self.logs.close(clean=False)
        for end in (self._ours, self.network):
            end.close()

    def log(self, opened: PartitionLog) -> None:
        """A log is there."""

    @property
    def shard(self) -> Shard:
        """The shard of the groups."""
        return self.coordinators._shards[0]

    def on_storage_failure(self, slot: int) -> None:
        for gone in self.logs.fail_directory_of(slot):
            self.coordinators.close(gone)

    def led_log(self, slot: int) -> PartitionLog | None:
        return self.logs.log(slot)

    def write_markers(self, markers: Any) -> Any:
        raise AssertionError(markers)

    def count_own(self, slot: int, records: int, size: int) -> None: ...

    def count(self, metric: Any, amount: int) -> None:
        """Ignores counts."""

    def apply(self, topics: dict[str, Any]) -> None:
        delta = {"version": self.image.version + 1, "topics": topics}
        self.coordinators.on_image(self.image.apply(delta))

    def ask(self, request: Any, version: int, slot: int = 0, incarnation: int = 1) -> int:
        """Send a request; returns its token."""
        body = codec.encode(request, version)
        return self.ask_body(request.API_KEY, version, body, slot, incarnation)

    def ask_body(
        self, api_key: int, version: int, body: bytes, slot: int = 0, incarnation: int = 1
    ) -> int:
        self.tokens += 1
        sent = LaneRequest(
            *(self.tokens, slot, incarnation, api_key, version, "c", "::1", self.principal, body),
            quota=self.quota,
        )
        outbox = deque(request_parts(sent))
        message, count = pack(outbox)
        assert count == len(outbox)
        self.send(message)
        return self.tokens

    def send(self, message: bytes) -> None:
        self.loop.on_request(0, message)

    def end_turn(self) -> None:
        self.coordinators.run_timers()
        self.loop.end_turn()
        self.coordinators.end_turn()
        self.loop.expire_waiting(self.clock.monotonic_ms())

    def responses(self) -> list[Any]:
        found = []
        while True:
            try:
                data = self.network.recv(1 << 20)
            except BlockingIOError:
                return found
            for part in unpack(data[ENVELOPE_BYTES:]):
                answer = self.assembler.response(part)
                if answer is not None:
                    found.append(answer)


class ShortBench(Bench):
    """Requests take the fast path if possible. left: the number that did not."""

    left = 0

    def send(self, message: bytes) -> None:
        for rest in self.coordinators.commit_path.take_message(0, message, self.clock.now_ms()):
            self.left += 1
            self.loop.on_request(0, rest)
        for slot in (0, 1):
            appender = self.logs.appender(slot)
            if appender is not None and appender.dirty:
                self.loop.touch(appender)


class LoopBench(Bench):
    """With the loop of an io worker: requests arrive over the lane."""

    def make_loop(self) -> IoLoop:
        self.its_cells = memoryview(mmap.mmap(-1, 4096)).cast("q")
        self.its_cells[0] = 1
        self.its_lane = Lane(self.network.fileno(), (2, 0, 5), 0, self.its_cells, 0)
        arenas = [mmap.mmap(-1, 4096)]
        return IoLoop(self.store.table, arenas, [self.lane], self.on_storage_failure)

    def make_coordinators(self) -> Coordinators:
        return Coordinators(self, self.logs, self.loop, [self.lane])

    def log(self, opened: PartitionLog) -> None:
        self.loop.put(opened.appender)

    def send(self, message: bytes) -> None:
        assert self.its_lane.send_message(MSG_REQUEST, message)

    def read(self) -> None:
        self.loop.read_lane(self.lane)


def commit(group: str = "g", offset: int = 5) -> OffsetCommitRequest:
    cls = OffsetCommitRequest
    partition = cls.OffsetCommitRequestPartition(
        partition_index=0, committed_offset=offset, committed_metadata=""
    )
    return cls(
        group_id=group,
        topics=[cls.OffsetCommitRequestTopic(name="t", partitions=[partition])],
    )
