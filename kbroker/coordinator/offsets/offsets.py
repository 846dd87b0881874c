"""Committed offsets of the groups of one partition of ``__consumer_offsets``.

The store and the bulk replay are in ``_ext.offset_store`` and ``_ext.offset_records``; the modules
beside this one serve the requests and write the tombstones.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from kbroker._ext.coordinator import offset_records
from kbroker._ext.coordinator.offset_store import OffsetStore
from kbroker.coordinator.group.machine import GroupMachine, Part
from kbroker.coordinator.machine import CoordinatorOperation
from kbroker.coordinator.offsets.commits import Commits
from kbroker.coordinator.offsets.deletion import OffsetDeletion
from kbroker.coordinator.offsets.expiry import OffsetExpiry
from kbroker.coordinator.offsets.fetches import Fetches
from kbroker.coordinator.offsets.verification import Verification
from kbroker.coordinator.records.offsets_topic import (
    LegacyOffsetCommitKey,
    LegacyOffsetCommitValue,
    OffsetCommitKey,
    OffsetCommitValue,
)
from kbroker.metrics.catalog import OFFSETS
from kbroker.protocol.api import ApiKey
from kbroker.protocol.primitives import NO_UUID
from kbroker.types import Offset

if TYPE_CHECKING:
    from kbroker.cluster.changes import ImageChanges


class Offsets(Part):
    """The part of a group machine that owns the offsets; ``machine.offsets``.

    store: what is committed, and what open transactions hold back.
    """

    def __init__(self, machine: GroupMachine) -> None:
        super().__init__(machine)
        machine.offsets = self
        self.store = OffsetStore()
        self._counted = 0
        self.deletion = OffsetDeletion(self)
        self.expiry = OffsetExpiry(self)
        commits = Commits(self)
        fetches = Fetches(self)
        self.fetch = fetches.fetch
        self.handlers = {
            ApiKey.OFFSET_COMMIT: commits.handle,
            ApiKey.OFFSET_FETCH: fetches.handle,
            ApiKey.OFFSET_DELETE: self.deletion.handle,
        }
        self.verification = Verification(self, commits)
        self.tasks = {ApiKey.TXN_OFFSET_COMMIT: self.verification.handle}
        self.replayers = {
            bytes: self.replay_encoded,
            OffsetCommitKey: self.replay,
            LegacyOffsetCommitKey: self.replay,
        }

    @property
    def log_end(self) -> Offset:
        """After the last record of this part that was replayed."""
        return Offset(self.store.log_end)

    # -- what other parts ask --------------------------------------------------------------------

    def group_ids(self) -> list[str]:
        """Every group with an offset, including offsets of open transactions."""
        return self.store.group_ids()

    def has_group(self, group_id: str) -> bool:
        """Whether ``group_ids`` has it."""
        return self.store.has_group(group_id)

    def delete_group(self, op: CoordinatorOperation, group_id: str) -> None:
        """Append tombstones for all of a group's offsets; those that do not fit follow later."""
        self.deletion.delete_group(op, group_id)

    # -- Part ------------------------------------------------------------------------------------

    def replay_encoded(
        self, offset: Offset, producer_id: int, key: bytes, value: bytes | None
    ) -> None:
        """Apply a record that this part has appended."""
        offset_records.replay_record(self.store, offset, producer_id, key, value)
        self.store.log_end = offset + 1
        if len(self.store) != self._counted:
            self.count()

    def replay(
        self,
        offset: Offset,
        producer_id: int,
        key: OffsetCommitKey | LegacyOffsetCommitKey,
        value: OffsetCommitValue | LegacyOffsetCommitValue | None,
    ) -> None:
        """Apply a decoded record."""
        self.store.log_end = offset + 1
        if value is None:
            self.store.delete(key.group, key.topic, key.partition)
        else:
            newer = value if isinstance(value, OffsetCommitValue) else None
            self.store.put_commit(
                key.group,
                key.topic,
                key.partition,
                value.offset,
                -1 if newer is None else newer.leader_epoch,
                value.metadata,
                value.commit_timestamp,
                -1 if newer is None else newer.expire_timestamp,
                NO_UUID if newer is None else newer.topic_id,
                offset,
                producer_id,
            )
        self.count()

    def replay_chunk(self, data: bytes, position: int) -> tuple[int, int, int]:
        taken = offset_records.replay_chunk(self.store, data, position)
        if taken[1]:
            self.store.log_end = taken[2]
            self.count()
        return taken

    def replay_marker(self, offset: Offset, producer_id: int, epoch: int, commit: bool) -> None:
        self.store.log_end = offset + 1
        self.verification.on_marker(producer_id)
        if self.store.end_transaction(producer_id, commit):
            self.count()

    def loaded(self, op: CoordinatorOperation) -> None:
        self.expiry.start()

    def on_image(self, op: CoordinatorOperation, changes: ImageChanges) -> None:
        gone = [topic.name for topic in changes.deleted()]
        if gone and len(self.store) + self.store.pending_count:
            self.deletion.delete_topics(op, gone)

    def close(self, error: Exception) -> None:
        self.host.count(OFFSETS, -self._counted)
        self._counted = 0
        self.verification.close(error)

    def count(self) -> None:
        """Follow the store in the metric; each partition of the topic adds its share."""
        now = len(self.store)
        if now != self._counted:
            self.host.count(OFFSETS, now - self._counted)
            self._counted = now
