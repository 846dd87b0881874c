"""What the controller process serves to the other processes of its broker."""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import TYPE_CHECKING

from kbroker.controller.access.scram_users import ScramUsers
from kbroker.controller.configs.stored_configs import ConfiguredHosting
from kbroker.controller.store.stored_offsets import StoredOffsets
from kbroker.hosting.control_server import ControlServer
from kbroker.hosting.image import HostImage
from kbroker.hosting.publisher import gets_topics
from kbroker.ipc import calls
from kbroker.ipc.documents import Encoded, encode
from kbroker.ipc.process_table import Address, ProcessKind
from kbroker.ipc.rpc import Rpc
from kbroker.protocol.api import ApiKey
from kbroker.security.principal import by
from kbroker.workers.controller.controller_server import SERVED
from kbroker.workers.controller.credentials import Credentials

if TYPE_CHECKING:
    from kbroker.workers.controller.process import ControllerWorker

logger = logging.getLogger(__name__)

# How long a snapshot is kept for the next process that asks.
SNAPSHOT_KEPT_MS = 1_000


class Serving:
    """Made by the controller process, after everything that serves something."""

    def __init__(self, process: ControllerWorker, wall_ms: Callable[[], int]) -> None:
        self._process = process
        hosting = ConfiguredHosting(
            process.hosting, process.stored_configs, process.creations, process.rpc.sleep
        )
        self._control = ControlServer(hosting, process.context.cluster_id, process.rpc.sleep)
        self._snapshots = Snapshots(process.hosting.image, process.rpc)
        self._serve_elected()
        self._serve_any()
        users = ScramUsers(process.stored_configs, process.entities)
        self.credentials = Credentials(
            process, users, lambda: process.candidacy.background is not None, wall_ms
        )

    def _serve_elected(self) -> None:
        """What only the controller of the cluster does."""
        serve, served = self._process.rpc.serve, self._process.candidacy.served
        serve(calls.CREATE_TOPICS, self._process.topics.create)
        serve(calls.DELETE_TOPICS, served(lambda elected: elected.topics.delete_topics))
        serve(calls.CREATE_PARTITIONS, served(lambda elected: elected.topics.create_partitions))
        serve(calls.ELECT_LEADERS, served(lambda elected: elected.replicas.elect_leaders))
        serve(
            calls.ALTER_REASSIGNMENTS, served(lambda elected: elected.replicas.alter_reassignments)
        )
        serve(calls.LIST_REASSIGNMENTS, served(lambda elected: elected.replicas.list_reassignments))
        serve(calls.LIST_WAITING, served(lambda elected: elected.replicas.list_waiting))
        serve(calls.UPDATE_FEATURES, served(lambda elected: elected.background.features.serve))

    def _serve_any(self) -> None:
        """What every broker does, whichever is the controller."""
        process, serve = self._process, self._process.rpc.serve
        serve(calls.HELLO, self._hello)
        serve(calls.ALTER_CONFIGS, process.configs.alter_configs)
        serve(calls.INCREMENTAL_ALTER_CONFIGS, process.configs.incremental_alter_configs)
        serve(calls.ALTER_LOG_LEVELS, self._alter_log_levels)
        serve(calls.ALTER_QUOTAS, process.entities.alter_quotas)
        if process.acls is not None:
            serve(calls.CREATE_ACLS, process.acls.create)
            serve(calls.DELETE_ACLS, process.acls.delete)
        serve(calls.ALLOCATE_PRODUCER_IDS, self._allocate_producer_ids)
        stored_offsets = StoredOffsets(process.own_events, process.own_store)
        serve(calls.COMMIT_STORED_OFFSETS, stored_offsets.commit)
        serve(calls.FETCH_STORED_OFFSETS, stored_offsets.fetch)
        serve(calls.CONTROL_REQUEST, self._control_request)
        serve(calls.ALTER_ISR, process.channel.isr_changes.serve_alter)
        serve(calls.PENDING_ISR, process.channel.isr_changes.serve_pending)

    async def _hello(self, sender: Address, _: calls.Nothing) -> Encoded:
        """Return the image to a process, as far as it has a use for it, and send it all changes
        from now on.
        """
        process = self._process
        await process.gate.passed()
        process.publisher.subscribe(sender)
        return self._snapshots.of(sender)

    async def _control_request(
        self, sender: Address, asked: calls.ControlMessage
    ) -> calls.ControlReply:
        """Serve a request from another broker: from its controller, or to this one."""
        process = self._process
        if process.remembered is not None:
            await process.gate.passed()  # processes must have the image before changes of it
        if asked.api_key == ApiKey.PEER_STATUS:
            return process.failover.serve(asked)
        server = process.controller_server if asked.api_key in SERVED else self._control
        reply = await server.serve(sender, asked)
        process.control_request_served()
        return reply

    async def _allocate_producer_ids(
        self, sender: Address, _: calls.Nothing
    ) -> calls.ProducerIdBlock:
        """Allocate producer ids."""
        return await self._process.producer_ids.take()

    def _alter_log_levels(self, sender: Address, asked: calls.AlterLogLevels) -> None:
        """Set levels of loggers in all processes."""
        for name, level in asked.levels:
            logger.info("level of logger %s: %s%s", name, level or "as before", by(asked.asked_by))
        self._process.log_levels.change(asked.levels)


class Snapshots:
    """Whole images as JSON. All processes of a broker ask for one when it starts, and with 15,500
    partitions it takes a processor for 0.3 s: io workers share one, and the others share another.
    """

    def __init__(self, image: HostImage, rpc: Rpc) -> None:
        self._image = image
        self._rpc = rpc
        self._kept: dict[bool, tuple[int, Encoded]] = {}  # with its version

    def of(self, address: Address) -> Encoded:
        """The present image, as this process gets it."""
        if not gets_topics(address):
            return Encoded(encode(self._image.snapshot(for_io_worker=False, with_topics=False)))
        for_io_worker = address.kind == ProcessKind.IO_WORKER
        version, snapshot = self._kept.get(for_io_worker, (None, Encoded()))
        if version != self._image.version:
            snapshot = Encoded(encode(self._image.snapshot(for_io_worker)))
            if not self._kept:
                self._rpc.sleep(SNAPSHOT_KEPT_MS).then(lambda _: self._kept.clear())
            self._kept[for_io_worker] = self._image.version, snapshot
        return snapshot
