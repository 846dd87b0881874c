"""Recovers several logs at once: ``num.recovery.threads.per.data.dir``.

io workers recover side by side anyway, each its own logs. Where the setting allows more logs of one
data directory than there are io workers, each worker has threads for the rest, and one thread for
each further directory, because it may be another disk.

A thread loads the files of one log at a time and touches nothing else. Where the log is, what it
starts with and what follows from it is decided in the worker's own thread, log by log, as without
threads. The gain is reading from several places at once; the walk over what was read holds the GIL.

Threads live only within ``loading``: none is left when the worker continues.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from typing import NamedTuple

from kbroker._ext.shared.partition_table import LEADER
from kbroker.storage.checkpoint import TopicPartition
from kbroker.storage.dirs.creation_note import NO_CREATION
from kbroker.storage.dirs.log_dir import LocalLogDir
from kbroker.storage.dirs.ownership import DirOwner
from kbroker.storage.log.log_host import LogIdentity
from kbroker.storage.repair.recovery import LoadedLog, LoadOptions, load_log
from kbroker.storage.topic_settings import TopicConfig


class OpenRequest(NamedTuple):
    """A partition whose log will be opened.

    role, leader_epoch, partition_epoch: of this broker's replica, as in its slot. is_alone: no
    other replica is in sync, so everything in its log is committed. is_new: it was never opened
    before; otherwise, it is not created while a directory is offline that may hold it. has_leader:
    another broker leads, which has what is damaged here. creation: of its topic, where topics have
    no ids.
    """

    topic: str
    topic_id: bytes
    partition: int
    slot: int
    slot_incarnation: int
    leader_epoch: int
    topic_config: TopicConfig
    is_new: bool = True
    role: int = LEADER
    partition_epoch: int = 0
    is_alone: bool = True
    has_leader: bool = False
    creation: bytes = NO_CREATION

    @property
    def key(self) -> TopicPartition:
        return self.topic, self.partition

    @property
    def owner(self) -> DirOwner:
        return DirOwner(self.topic_id, self.creation)

    @property
    def leads_in(self) -> int | None:
        """The leader epoch if this broker leads the partition, else None."""
        return self.leader_epoch if self.role == LEADER else None


class PlacedLog:
    """A log that is about to be loaded. created: it is new, so it is empty."""

    __slots__ = ("_ahead", "created", "identity", "log_dir", "options", "request")

    def __init__(
        self,
        request: OpenRequest,
        log_dir: LocalLogDir,
        identity: LogIdentity,
        created: bool,
        options: LoadOptions,
    ) -> None:
        self.request = request
        self.log_dir = log_dir
        self.identity = identity
        self.created = created
        self.options = options
        self._ahead: Future[LoadedLog] | None = None

    @property
    def needs_recovery(self) -> bool:
        return not (self.options.clean or self.created)

    def load(self) -> LoadedLog:
        """The log that a thread has loaded or is loading; without one, load it now. Raises
        DamagedLogError, OSError.
        """
        return self._load() if self._ahead is None else self._ahead.result()

    def load_in(self, pool: ThreadPoolExecutor) -> None:
        self._ahead = pool.submit(self._load)

    def _load(self) -> LoadedLog:
        loaded = load_log(self.identity.path, self.options)
        if self.options.progress is not None:
            self.options.progress()
        return loaded


def threads_per_dir(configured: int, worker_count: int) -> int:
    """The number of threads of each io worker, so that together they match the setting, or one
    each.
    """
    return -(-configured // worker_count)


@contextmanager
def loading(logs: Sequence[PlacedLog], threads: int) -> Iterator[None]:
    """Load the logs, ``threads`` of each directory at a time; ``load`` of each waits for it."""
    by_dir: dict[str, list[PlacedLog]] = {}
    for placed in logs:
        by_dir.setdefault(placed.log_dir.path, []).append(placed)
    with ExitStack() as stack:
        for waiting in by_dir.values():
            pool = ThreadPoolExecutor(min(threads, len(waiting)), "kb-recovery")
            stack.enter_context(pool)
            for placed in waiting:
                placed.load_in(pool)
        yield
