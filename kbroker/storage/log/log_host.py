"""A log's identity, and its needs from the manager that holds it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

from kbroker.errors import ShortageError
from kbroker.storage.dirs.ownership import DirOwner
from kbroker.types import Offset

if TYPE_CHECKING:
    from kbroker.storage.log.partition_log import PartitionLog


class LogHost(Protocol):
    """What a log needs from its manager."""

    def on_first_unflushed(self, log: PartitionLog) -> None:
        """Something was appended since the last flush."""

    def on_sealed(self, log: PartitionLog) -> None:
        """A segment was sealed but is not synced yet."""

    def on_shortage(self, error: ShortageError) -> None:
        """Called when a file could not be opened and a request is rejected; the host logs it."""

    def on_full_disk(self, log_dir: str, text: str, code: int) -> None:
        """Called when the disk is full and an append is rejected; the host logs it. code: errno."""

    def sync_everything(self, log: PartitionLog) -> bool:
        """``LocalLogDir.sync_everything`` of the log's directory. Raises OSError."""

    def on_start_offset(self, log: PartitionLog) -> None:
        """The log start offset was raised and should be checkpointed soon."""

    def on_epoch(self, log: PartitionLog) -> None:
        """A leader epoch has begun and should be written soon."""

    def before_cut(self, log: PartitionLog, end: Offset) -> None:
        """Finish flushes under way; write a recovery point that is lowered to ``end`` to disk.

        Raises OSError.
        """

    def before_gap(self, log: PartitionLog) -> None:
        """Write to disk that offsets of the log may be missing. Raises OSError."""

    def delete_later(self, paths: list[str], delay_ms: int) -> None:
        """Unlink files after ``delay_ms``."""


class LogIdentity:
    """A log's replica, and its place. path: the partition's directory in log_dir."""

    __slots__ = ("log_dir", "owner", "partition", "path", "slot", "topic")

    def __init__(
        self, topic: str, owner: DirOwner, partition: int, slot: int, log_dir: str, path: str
    ) -> None:
        self.topic = topic
        self.owner = owner
        self.partition = partition
        self.slot = slot
        self.log_dir = log_dir
        self.path = path
