"""A log as the state machines of ``replication`` see it, and what those who run them need of their
io worker. Whatever changes the log is published at the end of the turn.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Protocol

from kbroker.replication.fetched_run import Appended, append_fetched
from kbroker.types import Offset

if TYPE_CHECKING:
    from kbroker._ext.io.io_loop import IoLoop
    from kbroker.clock import Clock
    from kbroker.cluster.image import ClusterImage
    from kbroker.config.loader import BrokerConfig
    from kbroker.storage.log.partition_log import PartitionLog
    from kbroker.storage.segments.leader_epochs import LeaderEpochs


class ReplicatingProcess(Protocol):
    """The io worker."""

    image: ClusterImage
    clock: Clock

    @property
    def config(self) -> BrokerConfig: ...

    def add_reader(self, fd: int, callback: Callable[[], None]) -> None: ...
    def remove_reader(self, fd: int) -> None: ...
    def watch_writable(self, fd: int, wanted: bool) -> None: ...

    def on_storage_failure(self, slot: int) -> None:
        """A write failed: the log directory goes offline."""


class ReplicaLog:
    """``replication.following.FollowedLog`` and ``replication.tail_repair.RepairedLog``. Changes
    raise OSError and StorageError.
    """

    def __init__(self, log: PartitionLog, loop: IoLoop, clock: Clock) -> None:
        self._log = log
        self._loop = loop
        self._clock = clock

    @property
    def epochs(self) -> LeaderEpochs:
        return self._log.epochs

    @property
    def log_start_offset(self) -> Offset:
        return self._log.log_start_offset

    @property
    def log_end_offset(self) -> Offset:
        return self._log.log_end_offset

    @property
    def high_watermark(self) -> Offset:
        return self._log.high_watermark

    def truncate_to(self, offset: Offset) -> Offset:
        end = self._log.truncate_to(offset, self._clock.now_ms())
        self._loop.touch(self._log.appender)
        return end

    def restart_at(self, offset: Offset) -> None:
        self._log.restart_at(offset, self._clock.now_ms())
        self._loop.touch(self._log.appender)

    def append(self, records: bytes | memoryview, epoch_max: int) -> Appended:
        outcome = append_fetched(self._log, records, epoch_max, self._clock.now_ms())
        self._loop.touch(self._log.appender)
        return outcome

    def last_batch(self) -> tuple[Offset, bytes]:
        try:
            return self._log.segments.last_batch()
        except (OSError, ValueError) as error:
            raise self._log.fail(error) from error
