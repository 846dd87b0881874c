"""Replicas of a running broker that other brokers have now, and of which no StopReplica has come.

A controller writes into the store that a replica is removed, and then tells its broker. If it dies
in between, no later controller knows of the replica, Kafka's neither; nor does Kafka's if the
broker had no session when it was to be told. Such a replica would stay open until the next start
(``strays``): its slot, its files and, for its leader, a follower that is refused again and again.

A replica is forgotten if, for WAIT_MS, the metadata has given its partition to others, in a later
leader epoch than that of its role here; or if the metadata does not have the partition, and there
has been a later controller than the one that has assigned the role. The store has the last word.
As at a start, the log is renamed, never deleted. If the partition is assigned to this broker again
meanwhile, it is copied from its leader: a replica that was removed is not in sync.
"""

from __future__ import annotations

import logging
from collections.abc import Collection, Iterator
from itertools import islice

from kbroker.cluster.control_requests import PartitionKey
from kbroker.controller.election.membership import check_cluster
from kbroker.controller.store.topic_nodes import DAMAGED
from kbroker.hosting.hosting import Hosting
from kbroker.hosting.replicas import HostedReplica
from kbroker.ipc.pending import Pending, run
from kbroker.logcontext import Whole
from kbroker.metastore import paths
from kbroker.metastore.settled import Fenced, SettledStore
from kbroker.metastore.store import StoreError, StoreFailed, WrongCluster
from kbroker.workers.controller.strays import NotSure, not_assigned

logger = logging.getLogger(__name__)

# StopReplica follows the metadata at once; it waits for an io worker that is being restarted.
WAIT_MS = 30_000
# Replicas looked at in one tick.
STEP = 100
_SHOWN_MAX = 10
FAILURES = (NotSure, StoreError, StoreFailed, WrongCluster, Fenced)


class ForgottenReplicas:
    """Of one broker."""

    def __init__(
        self, broker_id: int, hosting: Hosting, store: SettledStore, cluster_id: str
    ) -> None:
        self._broker_id = broker_id
        self._hosting = hosting
        self._store = store
        self._cluster_id = cluster_id
        self._walk: Iterator[PartitionKey] = iter(())
        self._walked_for: tuple[int, ...] | None = None  # ``_changes`` when the last walk began
        # Since when they have looked forgotten. BOUND: by the replicas of this broker.
        self._since: dict[PartitionKey, int] = {}
        self._is_looking = False

    def tick(self, now_ms: int) -> None:
        """Look at some replicas, and ask the store about those that have waited long enough. If
        nothing has changed since all were looked at, none is.
        """
        some = list(islice(self._walk, STEP))
        if len(some) < STEP and self._walked_for != (changes := self._changes()):
            self._walked_for = changes
            self._walk = iter([replica.told.key for replica in self._hosting.replicas])
        for key in some:
            if self._forgotten(key) is None:
                self._since.pop(key, None)
            else:
                self._since.setdefault(key, now_ms)
        due = [key for key, since in self._since.items() if now_ms - since >= WAIT_MS]
        if due and not self._is_looking:
            self._is_looking = True
            for key in due:
                del self._since[key]  # if it stays, it is asked about again
            run(self._look(due)).then(self._looked)

    def _changes(self) -> tuple[int, ...]:
        hosting = self._hosting
        return hosting.replicas.changes, hosting.image.version, hosting.controller_epoch

    def _forgotten(self, key: PartitionKey) -> HostedReplica | None:
        """The replica, if it seems to be forgotten."""
        replica = self._hosting.replicas.replica(key)
        if replica is None:
            return None
        if self._hosting.is_deleting(key):
            self._walked_for = None  # if that fails, nothing else changes
            return None
        topic = self._hosting.metadata.topic(key[0])
        known = None if topic is None else topic.partitions.get(key[1])
        if known is None:
            is_forgotten = replica.told.controller_epoch < self._hosting.controller_epoch
        else:
            is_forgotten = (
                self._broker_id not in known.replicas
                and known.leader_epoch > replica.told.leader_epoch
            )
        return replica if is_forgotten else None

    async def _look(self, keys: Collection[PartitionKey]) -> None:
        before = {key: self._forgotten(key) for key in keys}
        if not any(before.values()):
            return
        try:
            await check_cluster(self._store, self._cluster_id)
        except DAMAGED as error:
            raise NotSure(f"{paths.CLUSTER_ID} cannot be read: {error!r}") from error
        asked = [key for key, replica in before.items() if replica is not None]
        strays = await not_assigned(self._store, self._broker_id, asked)
        # It may have been given a role meanwhile, or deleted.
        moved = {
            key: replica
            for key in sorted(strays)
            if (replica := self._forgotten(key)) is not None and replica == before[key]
        }
        if not moved:
            return
        shown = ", ".join(f"{topic}-{number}" for topic, number in list(moved)[:_SHOWN_MAX])
        more = f" and {len(moved) - _SHOWN_MAX:,} more" if len(moved) > _SHOWN_MAX else ""
        text = "other brokers have %s%s now, and no controller has said so; setting the logs aside"
        logger.warning(text, Whole(shown), more)
        await self._hosting.set_aside(moved)

    def _looked(self, outcome: Pending[None]) -> None:
        self._is_looking = False
        self._walked_for = None
        if outcome.error is None:
            return
        if not isinstance(outcome.error, FAILURES):
            raise outcome.error
        logger.info("cannot ask which replicas are assigned to this broker: %s", outcome.error)
