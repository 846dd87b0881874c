"""What this broker says to the controller, whichever broker that is: the in-sync replicas of what
it leads, replicas that are offline, and that it will stop.
"""

from __future__ import annotations

from typing import Protocol

from kbroker._ext.shared.partition_table import PartitionTable
from kbroker.cluster.control_requests import LiveBroker, PartitionKey
from kbroker.config.loader import BrokerConfig
from kbroker.controller.election.membership import present_controller
from kbroker.controller.store import persistence
from kbroker.hosting.hosting import Hosting
from kbroker.hosting.isr_changes import Controllers, IsrChanges
from kbroker.hosting.isr_reports import IsrReports
from kbroker.hosting.journal import Journal, Remembered
from kbroker.hosting.offline_replicas import OfflineReplicas
from kbroker.ipc.pending import Pending, run
from kbroker.metastore.settled import SettledStore
from kbroker.peers.controller_link import ControllerLink
from kbroker.peers.endpoints import listener_for_control
from kbroker.peers.link import LinkFailed
from kbroker.peers.links import Links
from kbroker.peers.versions import sent_version
from kbroker.protocol.api import ApiKey
from kbroker.workers.base import ProcessContext, now_ms
from kbroker.workers.controller.active_controllers import ActiveControllers
from kbroker.workers.controller.candidacy import Candidacy
from kbroker.workers.controller.controller_server import ControllerServer
from kbroker.workers.controller.leaving import Leaving
from kbroker.workers.controller.stored_isr import StoredIsr


class ChannelProcess(Protocol):
    """The controller process."""

    context: ProcessContext
    config: BrokerConfig
    hosting: Hosting
    journal: Journal | None
    links: Links
    candidacy: Candidacy
    own_store: SettledStore
    controller_server: ControllerServer

    def sleep(self, delay_ms: int) -> Pending[None]: ...


class ControllerChannel:
    """Made by the controller process, which it is a part of."""

    def __init__(self, process: ChannelProcess) -> None:
        self._process = process
        self._me = process.context.broker_id
        self._replicas = process.hosting.replicas
        self._store = process.own_store
        self._shutdown_link, self._isr_link = self._link(), self._link()
        self._isr_reports = IsrReports(self._report_isr, now_ms)
        stored = StoredIsr(self._me, self._replicas, self._store, self._isr_reports)
        self.isr_changes = IsrChanges(
            self._me,
            process.hosting,
            stored if self._writes_isr else self._controllers(),
            process.sleep,
            process.journal,
            stored if self._store.is_shared and not self._writes_isr else None,
        )
        self._offline: OfflineReplicas | None = None
        if self._store.is_shared:
            self._offline = self._make_offline()
            process.hosting.ask_of_offline(self._offline)

    def _link(self) -> ControllerLink:
        process = self._process
        return ControllerLink(
            self._me,
            process.controller_server.respond,
            self._find,
            process.links.link(),
            listener_for_control(process.config),
            process.config.protocol_version,
        )

    async def _find(self) -> tuple[int, LiveBroker] | None:
        """The controller. Without ZooKeeper nobody can say, and nobody would decide anything."""
        if not self._process.candidacy.is_connected:
            raise LinkFailed("ZooKeeper, which knows the controller, cannot be reached")
        return await present_controller(self._store)

    @property
    def _writes_isr(self) -> bool:
        """Whether leaders write their in-sync replicas themselves, as before AlterIsr."""
        version = sent_version(ApiKey.ALTER_PARTITION, self._process.config.protocol_version)
        return self._store.is_shared and version is None

    def _controllers(self) -> Controllers:
        """The way to have in-sync replicas changed by the controller."""
        return ActiveControllers(self._isr_link, self._process.hosting, self._me, self._store)

    def _report_isr(self, keys: list[PartitionKey]) -> Pending[None]:
        return run(persistence.report_isr_changes(self._store, keys))

    def _make_offline(self) -> OfflineReplicas:
        context, config = self._process.context, self._process.config
        table = PartitionTable(context.partition_table, config["partition.table.slots"])
        return OfflineReplicas(
            self._replicas,
            table,
            memoryview(context.failed_log_dirs)[: len(config.log_dirs)],
            lambda: run(persistence.report_log_dir_failure(self._store, self._me)),
        )

    def go_on_from(self, remembered: Remembered) -> None:
        """Ask for what the last incarnation has not had a response to, as far as is known."""
        self.isr_changes.ask_again(remembered.asked.values())
        # It may have changed states and not reported them.
        self._isr_reports.note(
            replica.told.key
            for replica in self._replicas
            if self._writes_isr and replica.told.leader == self._me
        )

    def leave(self) -> Pending[bool]:
        """Controlled shutdown; resolves when it has ended, whether others lead or not."""
        process = self._process
        process.hosting.is_leaving = True
        leaving = Leaving(
            self._me,
            self._shutdown_link.ask,
            self._may_move,
            process.config,
            process.sleep,
            now_ms,
        )
        return run(leaving.hand_over(lambda: process.hosting.broker_epoch))

    def _may_move(self, key: PartitionKey) -> bool:
        """By the metadata, in which brokers that shut down are offline, too."""
        topic = self._process.hosting.metadata.topic(key[0])
        known = None if topic is None else topic.partitions.get(key[1])
        if known is None:
            return True
        others = set(known.replicas) - {self._me}
        return not others <= set(known.offline_replicas)

    def tick(self, now: int) -> None:
        """Called now and again."""
        controller_id = self._process.hosting.metadata.controller_id
        for link in (self._shutdown_link, self._isr_link):
            link.tick(now, controller_id)
        self._isr_reports.tick()
        if self._offline is not None:
            self._offline.tick()
