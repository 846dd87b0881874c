"""In-sync replicas without AlterIsr: a leader writes the state of its partition itself.

So it is below ``inter.broker.protocol.version`` 2.7-IV2. The write is conditional on the version of
the state that the leader knows, and on nothing else, as in Kafka: a controller that elects another
leader writes the state, too.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence

from kbroker.cluster.control_requests import PartitionKey
from kbroker.controller.store.topic_nodes import DAMAGED
from kbroker.errors import ErrorCode
from kbroker.hosting.isr_reports import IsrReports
from kbroker.hosting.replicas import HostedReplicas
from kbroker.ipc.calls import IsrResult, IsrState, WantedIsr
from kbroker.ipc.pending import Pending, run
from kbroker.metastore import paths
from kbroker.metastore.settled import Fenced, SettledStore
from kbroker.metastore.store import BadVersion, NoNode, StoreFailed
from kbroker.workers.controller.active_controllers import read_isr, store_unavailable

logger = logging.getLogger(__name__)

DEPOSED = IsrResult(ErrorCode.FENCED_LEADER_EPOCH)


class StoredIsr:
    """The changes of one broker, as ``hosting.isr_changes.Controllers``."""

    def __init__(
        self, broker_id: int, replicas: HostedReplicas, store: SettledStore, reports: IsrReports
    ) -> None:
        self._broker_id = broker_id
        self._replicas = replicas
        self._store = store
        self._reports = reports

    def alter_isr(self, wanted: Sequence[WantedIsr]) -> Pending[list[IsrResult]]:
        """A response to each, in order; WireError if it is unknown whether anything changed."""
        return run(self._alter_isr(wanted))

    async def _alter_isr(self, wanted: Sequence[WantedIsr]) -> list[IsrResult]:
        outcomes = [run(self._write(one)) for one in wanted]  # all are under way at once
        try:
            results = [await outcome for outcome in outcomes]
        except (StoreFailed, Fenced) as error:
            raise store_unavailable(error) from error
        finally:
            written = zip(wanted, outcomes, strict=True)
            self._reports.note(one.key for one, ended in written if ended.value and ended.value[1])
        return results

    async def _write(self, one: WantedIsr) -> IsrResult:
        replica = self._replicas.replica(one.key)
        if replica is None:
            return DEPOSED
        state = replica.told
        if (state.leader, state.leader_epoch) != (self._broker_id, one.leader_epoch):
            return DEPOSED
        # The epoch of the controller that made this broker the leader: only a later one may
        # overwrite it, and Kafka's controllers compare it.
        says = (self._broker_id, one.leader_epoch, one.isr, state.controller_epoch)
        path, version = paths.partition_state(*one.key), one.partition_epoch + 1
        try:
            document = paths.encode_partition_state(*says)
            await self._store.multi().set(path, document, one.partition_epoch).commit()
        except NoNode:
            return IsrResult(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION)
        except BadVersion:
            try:
                node = await self._store.get(path)
            except NoNode:
                return IsrResult(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION)
            try:
                is_ours = paths.is_partition_state(node.data, *says)
            except DAMAGED as error:
                logger.error("ignoring the state %s: %r", path, error)
                is_ours = False
            if not is_ours:
                return IsrResult(ErrorCode.INVALID_UPDATE_VERSION)
            version = node.stat.version  # a retry: the response to the first request was lost
        return IsrResult(
            ErrorCode.NONE, IsrState(self._broker_id, one.leader_epoch, one.isr, version)
        )

    def read_isr(self, keys: Sequence[PartitionKey]) -> Pending[list[IsrState | None]]:
        """What the metadata store has of each; WireError if it cannot be read."""
        return run(read_isr(self._store, keys))
