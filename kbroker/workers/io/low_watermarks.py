"""Waits for the followers of partitions that are led here to delete records.

A leader that has deleted records tells its followers in the responses to their fetches; they
confirm it in their next fetch. The low watermark of a partition is the lowest log start offset of
its live replicas: everything below is deleted on all of them. This is the second half of a
DeleteRecords (``partition_calls`` has the first), and there is one only if a follower is behind.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

from kbroker.errors import ErrorCode, WireError
from kbroker.ipc import calls
from kbroker.ipc.calls import AwaitedDeletion, Failure, LowWatermark, Questions, Results
from kbroker.ipc.pending import Pending
from kbroker.types import Offset
from kbroker.workers.base import now_ms

if TYPE_CHECKING:
    from collections.abc import Sequence

    from kbroker._ext.io.io_loop import IoLoop
    from kbroker.cluster.image import ClusterImage
    from kbroker.ipc.process_table import Address
    from kbroker.ipc.rpc import Rpc
    from kbroker.storage.log.partition_log import PartitionLog


class LowWatermarksProcess(Protocol):
    """What this needs of the io worker."""

    rpc: Rpc
    image: ClusterImage

    def led_log(self, slot: int) -> PartitionLog | None:
        """The log of a partition, if it is open and led here."""


class Wait:
    """For the low watermark to reach ``offset``."""

    __slots__ = ("offset", "pending")

    def __init__(self, offset: int) -> None:
        self.offset = offset
        self.pending: Pending[LowWatermark] = Pending()


class LowWatermarks:
    """Made by the io worker, after its loop."""

    def __init__(self, process: LowWatermarksProcess, loop: IoLoop) -> None:
        self._process = process
        self._loop = loop
        self._waits: dict[int, list[Wait]] = {}
        process.rpc.serve(calls.AWAIT_DELETION, self.serve)

    async def serve(
        self, sender: Address, questions: Questions[AwaitedDeletion]
    ) -> Results[LowWatermark]:
        """The low watermarks of these partitions, of one request, once they are high enough."""
        waits = [Wait(one.offset) for one in questions.asked]
        for one, wait in zip(questions.asked, waits, strict=True):
            self._waits.setdefault(one.slot, []).append(wait)
        for slot in dict.fromkeys(one.slot for one in questions.asked):
            self.check(slot)
        until_ms = max((one.until_ms for one in questions.asked), default=0)
        if not all(wait.pending.done for wait in waits):
            timer = self._process.rpc.sleep(max(0, until_ms - now_ms()))
            timer.then(lambda _: self._expire(questions.asked, waits))
        results = Results[LowWatermark]([], [])
        for number, wait in enumerate(waits):
            try:
                results.results.append(await wait.pending)
            except WireError as error:
                results.results.append(None)
                results.failures.append(Failure(number, int(error.code), None))
        return results

    def _expire(self, asked: Sequence[AwaitedDeletion], waits: Sequence[Wait]) -> None:
        for one, wait in zip(asked, waits, strict=True):
            if not wait.pending.done:
                self._remove(one.slot, [wait])
                wait.pending.resolve(error=WireError(ErrorCode.REQUEST_TIMED_OUT))

    def _remove(self, slot: int, waits: Sequence[Wait]) -> None:
        left = [wait for wait in self._waits[slot] if wait not in waits]
        if left:
            self._waits[slot] = left
        else:
            del self._waits[slot]

    def end_turn(self) -> None:
        """Look at the partitions of which followers have said that their logs start elsewhere."""
        moved = self._loop.starts_moved
        if moved:
            slots = self._waits.keys() & moved
            moved.clear()
            for slot in slots:
                self.check(slot)

    def on_brokers(self) -> None:
        """Other brokers live: a dead one is not waited for."""
        for slot in list(self._waits):
            self.check(slot)

    def check(self, slot: int) -> None:
        """The low watermark of a partition may have changed, or this broker leads it no more."""
        waits = self._waits.get(slot)
        if waits is None:
            return
        log = self._process.led_log(slot)
        if log is None:
            self.fail(slot, ErrorCode.NOT_LEADER_OR_FOLLOWER)
            return
        reached = low_watermark(log, self._process.image)
        ended = [wait for wait in waits if wait.offset <= reached]
        if ended:
            self._remove(slot, ended)
        for wait in ended:
            wait.pending.resolve(LowWatermark(reached))

    def fail(self, slot: int, error: ErrorCode) -> None:
        """This broker cannot tell any more: it does not lead the partition, or its log is gone."""
        for wait in self._waits.pop(slot, ()):
            wait.pending.resolve(error=WireError(error))


def low_watermark(log: PartitionLog, image: ClusterImage) -> Offset:
    """The lowest log start offset of a led partition's live replicas; -1 if one is unknown."""
    replicas = log.appender.replicas
    if replicas is None:
        return log.log_start_offset
    return Offset(replicas.low_watermark(log.log_start_offset, image.brokers))
