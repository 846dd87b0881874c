"""The controller process: owns the metadata store, decides about topics and configs, publishes.

When it is restarted, the other processes keep their image until the new controller has loaded and
sends them its own.
"""

from __future__ import annotations

import logging
import os
import time
from typing import Any

from kbroker._ext.partition_table import PartitionTable, region_size
from kbroker.adopt.errors import Refusal
from kbroker.config.loader import BrokerConfig
from kbroker.controller import persistence
from kbroker.controller.completion import WrongCluster
from kbroker.controller.config_admin import ConfigAdmin
from kbroker.controller.events import EventQueue
from kbroker.controller.membership import NotElected, Registration
from kbroker.controller.state import ClusterState
from kbroker.controller.stored_offsets import StoredOffsets
from kbroker.controller.topic_admin import TopicAdmin
from kbroker.errors import EXIT_CANNOT_START
from kbroker.hosting.publisher import Publisher
from kbroker.hosting.slots import JOURNAL_NAME, NoFreeSlot, SlotAssignments
from kbroker.ipc import calls
from kbroker.ipc.process_table import Address, ProcessKind
from kbroker.metastore.settled import SettledStore
from kbroker.metastore.store import StoreFailed
from kbroker.metastore.store_files import COPY_NAME, FILE_NAME
from kbroker.workers.base import Worker, raise_failure
from kbroker.workers.store_start import Office, has_all_directories, open_store

logger = logging.getLogger(__name__)

START_FAILURES = (StoreFailed, WrongCluster, NotElected, NoFreeSlot, Refusal, OSError)


class ControllerWorker(Worker):
    """The shell around ``kbroker.controller``."""

    kind = ProcessKind.CONTROLLER

    def setup(self) -> None:
        started_ns = time.monotonic_ns()
        context = self.context
        state = ClusterState(context.broker_id, context.cluster_id)
        try:
            slots = self._slot_assignments()
            endpoints = advertised_endpoints(self.config, self._bound_ports())
            self.store = open_store(context)
            me = Registration(context.broker_id, endpoints, self.config["broker.rack"])
            store = Office(state, slots, me, self.rpc.sleep).enter(self.store)
        except START_FAILURES as error:
            logger.error("the controller cannot start: %s", error)
            raise SystemExit(EXIT_CANNOT_START) from error
        except (ValueError, KeyError, TypeError) as error:
            # What the store holds is not what was written: its pages have no checksum.
            logger.error(
                "the controller cannot start: the metadata store %s is damaged (%s); restore it, "
                "or move it and %s away to adopt the topics on disk without their settings",
                FILE_NAME,
                error,
                COPY_NAME,
            )
            raise SystemExit(EXIT_CANNOT_START) from error
        self.state, self.slots = state, slots
        self.events = EventQueue()
        # What any broker changes in the store, whoever is the controller.
        self.own_events, self.own_store = EventQueue(), SettledStore(self.store)
        self.publisher = Publisher(self.rpc, self.processes, state)
        self.config_admin = ConfigAdmin(
            self.events, store, state, self.publisher, self.config, context.runtime_dir
        )
        self.topic_admin = TopicAdmin(
            self.rpc,
            self.events,
            store,
            state,
            slots,
            self.publisher,
            lambda name: self.config_admin.config[name],
            self.config_admin.validate_topic,
            lambda: self.config_admin.config.is_cordoned,
            lambda: has_all_directories(context),
        )
        self._serve()
        self._take_over()
        self.topic_admin.resume_deletions()
        self.ready()
        took_ms = (time.monotonic_ns() - started_ns) / 1e6
        logger.info("controller epoch %d: %d topics loaded in %.1f ms",
                    state.controller_epoch, len(state.topics()), took_ms)  # fmt: skip

    def _serve(self) -> None:
        serve, topics, configs = self.rpc.serve, self.topic_admin, self.config_admin
        serve(calls.HELLO, self.hello)
        serve(calls.CREATE_TOPICS, topics.create_topics)
        serve(calls.DELETE_TOPICS, topics.delete_topics)
        serve(calls.CREATE_PARTITIONS, topics.create_partitions)
        serve(calls.ALTER_CONFIGS, configs.alter_configs)
        serve(calls.INCREMENTAL_ALTER_CONFIGS, configs.incremental_alter_configs)
        serve(calls.ALLOCATE_PRODUCER_IDS, self.allocate_producer_ids)
        stored_offsets = StoredOffsets(self.own_events, self.own_store)
        serve(calls.COMMIT_STORED_OFFSETS, stored_offsets.commit)
        serve(calls.FETCH_STORED_OFFSETS, stored_offsets.fetch)

    def tick(self, now: int) -> None:
        self._take_over()
        self.store.settle(now)

    def _take_over(self) -> None:
        """Publish to the processes that an earlier controller process served."""
        if self.context.incarnation > 1:
            self.publisher.take_over()

    def hello(self, sender: Address, _: calls.Nothing) -> calls.ImageDocument:
        """A process asks for the image, and for all changes from now on."""
        self.publisher.subscribe(sender)
        return self.state.snapshot(for_io_worker=sender.kind == ProcessKind.IO_WORKER)

    async def allocate_producer_ids(
        self, sender: Address, _: calls.Nothing
    ) -> calls.ProducerIdBlock:
        """Producer ids that nobody else has."""
        broker_id = self.state.broker_id
        first = await self.own_events.put(
            lambda: persistence.allocate_producer_ids(self.own_store, broker_id)
        )
        return calls.ProducerIdBlock(first, persistence.PRODUCER_ID_BLOCK_SIZE)

    def on_reload(self) -> None:
        """SIGHUP: read the file again and publish what has changed."""
        if self.context.config_path is None:
            logger.warning(
                "the broker was started without a configuration file, so there is nothing to reload"
            )
            return
        self.config_admin.reload(self.context.config_path, self.context.overrides).then(
            raise_failure
        )

    def shutdown(self) -> None:
        self.slots.close()
        self.store.close().then(raise_failure)

    def _slot_assignments(self) -> SlotAssignments:
        region, context = self.context.partition_table, self.context
        slot_bytes = region_size(1) - region_size(0)
        capacity = (len(region) - region_size(0)) // slot_bytes
        journal = os.path.join(context.runtime_dir, JOURNAL_NAME)
        if context.incarnation > 1 and not os.path.exists(journal):
            table = PartitionTable(region, capacity)
            if any(table.count_by_log_dir(len(self.config.log_dirs))):
                # Slots given anew would have two io workers write to one log.
                raise FileNotFoundError(f"{journal} was removed while the broker was running")
        return SlotAssignments(context.runtime_dir, capacity, self.config["num.io.threads"])

    def _bound_ports(self) -> dict[str, int]:
        return {
            listener.name: socket.getsockname()[1] for listener, socket in self.context.listeners
        }


def advertised_endpoints(config: BrokerConfig, bound_ports: dict[str, int]) -> list[list[Any]]:
    """What clients are told, as in the cluster image; an empty host: the address they reached."""
    advertised = [
        [listener.name, listener.host, listener.port, listener.security_protocol]
        for listener in config.advertised_listeners
    ]
    return advertised or [
        [listener.name, "", bound_ports.get(listener.name, listener.port),
         listener.security_protocol]
        for listener in config.listeners
    ]  # fmt: skip
