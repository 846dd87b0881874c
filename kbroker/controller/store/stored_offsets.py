"""Offsets kept in the metadata store, for OffsetCommit and OffsetFetch version 0.

COMPAT: the nodes are the ones that consumers of Kafka 0.8 write themselves, so a group may use both
ways, and may move from ZooKeeper to the broker.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence

from kbroker.controller.election.events import EventQueue
from kbroker.controller.store.persistence import ATTEMPTS
from kbroker.errors import ErrorCode, WireError
from kbroker.ipc.calls import CommitStoredOffsets, FetchStoredOffsets, StoredOffset
from kbroker.ipc.process_table import Address
from kbroker.metastore import paths
from kbroker.metastore.settled import SettledStore
from kbroker.metastore.store import BadVersion, NodeExists, NoNode, StoreFailed, parent_of

logger = logging.getLogger(__name__)

# BOUND: as for topic names; node paths in ZooKeeper must stay short.
GROUP_ID_MAX = 249


class StoredOffsets:
    """Each operation is one transaction; they run in the order of the calls."""

    def __init__(self, events: EventQueue, store: SettledStore) -> None:
        """events: a queue for changes that do not need the elected controller."""
        self._events = events
        self._store = store

    async def commit(self, sender: Address, asked: CommitStoredOffsets) -> None:
        """Store the offsets.

        Raises INVALID_GROUP_ID if the group id cannot be a node name, else UNKNOWN_SERVER_ERROR.
        """
        check_group_id(asked.group)
        await self._events.put(lambda: self._commit(asked))

    async def _commit(self, asked: CommitStoredOffsets) -> None:
        for attempt in range(ATTEMPTS):
            try:
                await self._write(asked.group, asked.offsets)
                return
            except (NodeExists, NoNode, BadVersion):
                if attempt == ATTEMPTS - 1:
                    raise WireError(ErrorCode.UNKNOWN_SERVER_ERROR) from None
            except StoreFailed as error:
                raise _failed(error) from error

    async def fetch(self, sender: Address, asked: FetchStoredOffsets) -> list[int | None]:
        """The offset of each partition, None if there is none."""
        check_group_id(asked.group)
        try:
            return [
                await self._read(paths.consumer_offset(asked.group, *place))
                for place in asked.partitions
            ]
        except StoreFailed as error:
            raise _failed(error) from error

    async def _read(self, path: str) -> int | None:
        try:
            return int((await self._store.get(path)).data)
        except NoNode:
            return None
        except ValueError:  # not written by a broker
            logger.warning("%s does not contain an offset", path)
            return None

    async def _write(self, group: str, offsets: Sequence[StoredOffset]) -> None:
        transaction = self._store.multi()
        there: set[str] = set()
        latest = {
            paths.consumer_offset(group, topic, partition): offset
            for topic, partition, offset in offsets
        }

        async def ensure(path: str) -> None:
            if path in there:
                return
            there.add(path)
            if await self._store.exists(path) is None:
                await ensure(parent_of(path))
                transaction.create(path)

        for path, offset in latest.items():
            stat = await self._store.exists(path)
            if stat is None:
                await ensure(parent_of(path))
                transaction.create(path, b"%d" % offset)
            else:
                transaction.set(path, b"%d" % offset, stat.version)
        await transaction.commit()


def check_group_id(group: str) -> None:
    """Raises INVALID_GROUP_ID unless the group id can be a node name, in ZooKeeper too."""
    if (
        not 0 < len(group) <= GROUP_ID_MAX
        or group in (".", "..")
        or not group.isprintable()
        or "/" in group
    ):
        raise WireError(ErrorCode.INVALID_GROUP_ID)


def _failed(error: StoreFailed) -> WireError:
    logger.error("the metadata store failed: %s", error)
    return WireError(ErrorCode.UNKNOWN_SERVER_ERROR, f"The metadata store failed: {error}")
