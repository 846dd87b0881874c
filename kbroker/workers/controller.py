"""The controller process: metadata store, controller, and the replicas on this broker.

When it restarts, the other processes keep their image until the new controller process has loaded
its state and sends them a new one.
"""

from __future__ import annotations

import logging
import os
import select
import signal
import time
from collections.abc import Callable
from functools import partial

from kbroker._ext.shared.request_times import (
    ELECTION_ROW,
    TOTAL,
    ZOOKEEPER_ROW,
    RequestTimes,
)
from kbroker.adopt.errors import Refusal
from kbroker.cluster.features import ALL, NONE
from kbroker.cluster.topic_ids import TopicIds
from kbroker.controller import persistence
from kbroker.controller.active_controller import ActiveController
from kbroker.controller.config_admin import ConfigAdmin
from kbroker.controller.configs import ConfigsChanged
from kbroker.controller.creations import Creations, OwnHosting
from kbroker.controller.duties import Duties
from kbroker.controller.entity_admin import EntityAdmin
from kbroker.controller.events import EventQueue
from kbroker.controller.membership import AddressTaken, AlreadyRegistered, Registration
from kbroker.controller.mutation_quotas import MutationQuotas
from kbroker.controller.producer_ids import ProducerIdBlocks
from kbroker.controller.replica_admin import ReplicaAdmin
from kbroker.controller.scram_users import ScramUsers
from kbroker.controller.state import ClusterState
from kbroker.controller.stored_acls import Acls, BadAcls
from kbroker.controller.stored_configs import ConfiguredHosting, StoredConfigs
from kbroker.controller.stored_features import StoredFeatures, UnsupportedFeatures
from kbroker.controller.stored_offsets import StoredOffsets
from kbroker.controller.topic_admin import TopicAdmin
from kbroker.controller.topic_creation import TopicCreation, is_led
from kbroker.controller.topic_requests import TopicRequests
from kbroker.errors import EXIT_BAD_CONFIG, EXIT_CANNOT_START, EXIT_CRASH
from kbroker.handlers.support.sasl_listener import make_sasl
from kbroker.hosting.control_server import ELEMENTS_PARTITIONS, ControlServer
from kbroker.hosting.hosting import Hosting
from kbroker.hosting.journal import Journal, JournalFile, Remembered
from kbroker.hosting.publisher import Publisher
from kbroker.hosting.room import Room
from kbroker.hosting.slots import NoFreeSlot
from kbroker.ipc import calls
from kbroker.ipc.pending import Pending, run
from kbroker.ipc.process_table import HANDED_OVER, Address, ProcessKind
from kbroker.metastore.settled import SettledStore
from kbroker.metastore.store import StoreFailed, WrongCluster
from kbroker.metastore.store_files import COPY_NAME, FILE_NAME
from kbroker.peers.links import Links
from kbroker.protocol import codec
from kbroker.security.principal import by
from kbroker.storage.dirs import boots
from kbroker.workers.advertised import advertised_endpoints, registered_endpoints
from kbroker.workers.asking import Asking
from kbroker.workers.base import Worker, now_ms, raise_failure
from kbroker.workers.cluster_metrics import ClusterMetrics
from kbroker.workers.controller_server import SERVED, ControllerServer
from kbroker.workers.credentials import Credentials
from kbroker.workers.directory_check import check_directories
from kbroker.workers.forgotten import ForgottenReplicas
from kbroker.workers.leaving import CLOSE_MS
from kbroker.workers.office import InOffice, Office
from kbroker.workers.plugged import make_policies, uses_acls
from kbroker.workers.process_ends import await_end
from kbroker.workers.slot_assignments import slot_assignments
from kbroker.workers.store_start import has_all_directories, open_store
from kbroker.workers.strays import set_strays_aside

logger = logging.getLogger(__name__)

# After its first request to a new registration, a controller takes at most this long for the rest.
HEARING_MS = 500
# BOUND: seconds that this process outlives its supervisor.
ORPHAN_S = 10
CANNOT_JOIN = (WrongCluster, AddressTaken, AlreadyRegistered, UnsupportedFeatures)
START_FAILURES = (StoreFailed, WrongCluster, UnsupportedFeatures, NoFreeSlot, Refusal, OSError)
# The exceptions raised by malformed documents.
DAMAGED = (ValueError, KeyError, TypeError)


class ControllerWorker(Worker):
    """The shell around ``kbroker.controller`` and ``kbroker.hosting``."""

    kind = ProcessKind.CONTROLLER

    def setup(self) -> None:
        self._failure: BaseException | None = None
        # Whether there is an image to give to processes, and those that wait for it.
        self._is_told = False
        self._waiting_for_image: list[Pending[None]] = []
        self._awaits_controller = self._is_set_up = False
        # Whether this incarnation knows what controllers have told the last one.
        self._goes_on = False
        codec.allow_elements(ELEMENTS_PARTITIONS)
        context = self.context
        try:
            self.slots = slot_assignments(self.context)
            endpoints = advertised_endpoints(self.config, self._bound_ports())
            if self.config.uses_zookeeper:
                endpoints = registered_endpoints(self.config, endpoints)
            self.store = open_store(context, self._times_of(ZOOKEEPER_ROW))
        except (*START_FAILURES, *DAMAGED) as error:
            raise cannot_start(error) from error
        # Nodes that any broker may change, whichever is the controller.
        self.own_events, self.own_store = EventQueue(), SettledStore(self.store)
        found = self._make_hosting()
        self.publisher = Publisher(self.rpc, self.processes, self.hosting.image)
        self.hosting.publish_to(self.publisher)
        self.stored_configs = StoredConfigs(
            self.store, self.own_store, self.hosting, self.rpc.sleep, wall_ms
        )
        self.features = StoredFeatures(
            self.store, self.own_store, self.hosting, self.rpc.sleep, self.failed
        )
        me = Registration(
            context.broker_id,
            endpoints,
            self.config["broker.rack"],
            context.cluster_id if self.store.is_shared else "",
            self.config.protocol_version,
            resumes=self.hosting.broker_epoch,
            is_suspect=any(map(boots.has_suspects, self.config.log_dirs)),
            session_ms=self.config["zookeeper.session.timeout.ms"],
        )
        topic_ids = TopicIds("" if self.config.has_topic_ids else context.cluster_id)
        self._make_writers(topic_ids)
        security = context.peer_security.get(self.config.control_listener)
        taker = OwnHosting(self.hosting, self.creations)
        self.links = Links(context.broker_id, taker, self, self.config, now_ms, security)
        self.office = Office(
            self.store, me, self.hosting, self.links, self.stored_configs, self, topic_ids
        )
        self.office.counts.elected = self._times_of(ELECTION_ROW)
        self.controller_server = ControllerServer(
            lambda: self.office.duties, self.rpc.sleep, is_shared=self.store.is_shared
        )
        self.asking = Asking(self)
        self.isr_changes = self.asking.isr_changes
        self.forgotten = ForgottenReplicas(
            context.broker_id, self.hosting, self.own_store, context.cluster_id
        )
        if found is not None:
            self.asking.go_on_from(found)
        self._metrics = ClusterMetrics(self.open_counters(), self.office, self.store.is_shared)
        self._make_configs()
        self.stored_configs.changed = self._configs_changed
        self._serve()
        if self.store.fd is not None:
            self.add_reader(self.store.fd, self.store.drain)
        self.stored_configs.start().then(self._settings_read)
        self._is_set_up = True
        if self._failure is not None:
            raise cannot_start(self._failure) from self._failure

    def _make_hosting(self) -> Remembered | None:
        """As ``_make_journal``."""
        context, features = self.context, NONE if self.store.is_shared else ALL
        self.hosting = Hosting(context.broker_id, context.cluster_id, self.slots, features)
        self.creations = Creations(self.own_store, self.hosting, self.rpc.sleep)
        return self._make_journal()

    def _make_journal(self) -> Remembered | None:
        """Keep a journal where other brokers may be the controller; returns what the last
        incarnation has left in one.
        """
        self.journal: Journal | None = None
        if not self.store.is_shared:
            return None
        self.journal = Journal(JournalFile(self.context.runtime_dir), self.hosting)
        found = self.journal.restore(self.slots)
        if found is not None:
            self.hosting.restore(found)
            self.hosting.release_unused(self.slots.topics())
            self._goes_on = True
        self.hosting.note_in(self.journal)
        return found

    def _make_writers(self, topic_ids: TopicIds) -> None:
        """What writes into the store whoever is the controller."""
        self.creation = TopicCreation(
            self.context.broker_id,
            self.own_store,
            self.own_events,
            topic_ids,
            self.topic_requests,
            lambda: Room(self.slots, self.hosting.replicas),
            self.is_led,
            self.sleep,
        )
        self.producer_ids = ProducerIdBlocks(
            lambda: run(persistence.allocate_producer_ids(self.own_store, self.context.broker_id)),
            lambda: self.office.check_connected(),
            self.sleep,
            is_shared=self.store.is_shared,
        )
        self._make_rules()

    def _make_configs(self) -> None:
        self.configs = ConfigAdmin(
            self.stored_configs,
            self.hosting.metadata,
            self.context.broker_id,
            self.context.config,
            self.context.runtime_dir,
            self.context.tls,
            self.policies,
            make_sasl,
            self.context.peer_security,
            self.config,
        )
        self.entities = EntityAdmin(self.stored_configs)
        samples = self.config["controller.quota.window.num"]
        self.mutations = MutationQuotas(
            lambda: self.hosting.image.quotas,
            samples * self.config["controller.quota.window.size.seconds"],
            now_ms,
        )

    def serve_alter_log_levels(self, sender: Address, asked: calls.AlterLogLevels) -> None:
        """Set levels of loggers in all processes."""
        for name, level in asked.levels:
            logger.info("level of logger %s: %s%s", name, level or "as before", by(asked.asked_by))
        self.log_levels.change(asked.levels)

    def _make_rules(self) -> None:
        """What says who may do what, and what nobody may."""
        self.acls: Acls | None = None
        if uses_acls(self.config):
            self.acls = Acls(
                self.store, self.own_store, self.hosting, self.rpc.sleep, wall_ms,
                refuses_damage=self.context.incarnation == 1,
            )  # fmt: skip
        self.policies = make_policies(self.config, self.context.properties)

    def _configs_changed(self, changed: ConfigsChanged) -> None:
        self.configs.changed(changed)
        if self.office.present is not None:
            self.office.present.duties.configs_changed(changed)

    def _settings_read(self, outcome: Pending[None]) -> None:
        """Logs are opened with their settings: there is no office, and no image, before them."""
        if outcome.error is None:
            self.configs.refresh()
            self.configs.reencode().then(raise_failure)
        if outcome.error is not None:
            self.failed(outcome.error)
        elif self.acls is None:
            self.credentials.start().then(self._tokens_read)
        else:
            self.acls.start().then(self._acls_read)

    def _acls_read(self, outcome: Pending[None]) -> None:
        """Without them, nobody but super users would be allowed anything."""
        if outcome.error is not None:
            self.failed(outcome.error)
        else:
            self.credentials.start().then(self._tokens_read)

    def _tokens_read(self, outcome: Pending[None]) -> None:
        if outcome.error is not None:
            self.failed(outcome.error)
        else:
            self.features.start().then(self._features_read)

    def _features_read(self, outcome: Pending[None]) -> None:
        """A broker that does not support them does not register."""
        if outcome.error is not None:
            self.failed(outcome.error)
            return
        if self._goes_on:
            logger.info("continuing with what the previous controller process knew")
            self._told()
        run(self._check_directories()).then(self._directories_checked)

    async def _check_directories(self) -> None:
        """Before this broker can be elected for anything."""
        context = self.context
        if self.store.is_shared and await check_directories(
            self.own_store, context.broker_id, context.runtime_dir, context.clean_start
        ):
            self.office.note_suspect()

    def _directories_checked(self, outcome: Pending[None]) -> None:
        if outcome.error is not None:
            self.failed(outcome.error)
        else:
            self.office.start()

    def _serve(self) -> None:
        serve, served = self.rpc.serve, self.office.served
        serve(calls.HELLO, self.hello)
        self._create_topics = served(lambda office: office.topics.create_topics)
        serve(calls.CREATE_TOPICS, self.create_topics)
        serve(calls.DELETE_TOPICS, served(lambda office: office.topics.delete_topics))
        serve(calls.CREATE_PARTITIONS, served(lambda office: office.topics.create_partitions))
        serve(calls.ELECT_LEADERS, served(lambda office: office.replicas.elect_leaders))
        serve(calls.ALTER_REASSIGNMENTS, served(lambda office: office.replicas.alter_reassignments))
        serve(calls.LIST_REASSIGNMENTS, served(lambda office: office.replicas.list_reassignments))
        serve(calls.LIST_WAITING, served(lambda office: office.replicas.list_waiting))
        serve(calls.UPDATE_FEATURES, served(lambda office: office.duties.features.serve))
        serve(calls.ALTER_CONFIGS, self.configs.alter_configs)
        serve(calls.INCREMENTAL_ALTER_CONFIGS, self.configs.incremental_alter_configs)
        serve(calls.ALTER_LOG_LEVELS, self.serve_alter_log_levels)
        serve(calls.ALTER_QUOTAS, self.entities.alter_quotas)
        if self.acls is not None:
            serve(calls.CREATE_ACLS, self.acls.create)
            serve(calls.DELETE_ACLS, self.acls.delete)
        serve(calls.ALLOCATE_PRODUCER_IDS, self.allocate_producer_ids)
        users = ScramUsers(self.stored_configs, self.entities)
        self.credentials = Credentials(self, users, lambda: self.office.duties is not None, wall_ms)
        stored_offsets = StoredOffsets(self.own_events, self.own_store)
        serve(calls.COMMIT_STORED_OFFSETS, stored_offsets.commit)
        serve(calls.FETCH_STORED_OFFSETS, stored_offsets.fetch)
        hosting = ConfiguredHosting(
            self.hosting, self.stored_configs, self.creations, self.rpc.sleep
        )
        self._control = ControlServer(hosting, self.context.cluster_id, self.rpc.sleep)
        serve(calls.CONTROL_REQUEST, self._control_request)
        serve(calls.ALTER_ISR, self.isr_changes.serve_alter)
        serve(calls.PENDING_ISR, self.isr_changes.serve_pending)

    async def _control_request(
        self, sender: Address, asked: calls.ControlMessage
    ) -> calls.ControlReply:
        """Serve a request from another broker: from its controller, or to this one."""
        if self._goes_on:
            await self._image_there()  # the processes must have it before they get changes of it
        server = self.controller_server if asked.api_key in SERVED else self._control
        reply = await server.serve(sender, asked)
        self._listen()
        return reply

    # -- topics --

    async def create_topics(
        self, sender: Address, asked: calls.CreateTopics
    ) -> list[calls.TopicResult]:
        """Create topics if this broker is the controller; auto-creations are done by any broker."""
        if self.office.present is None and asked.auto:
            self.office.check_connected()
            return await self.creation.create(asked)
        return await self._create_topics(sender, asked)

    def topic_requests(self, state: ClusterState) -> TopicRequests:
        """The rules, with the configs of this broker."""
        configs = self.configs
        return TopicRequests(
            state,
            lambda name: configs.config[name],
            configs.validate_topic,
            lambda: configs.config.is_cordoned,
            is_shared=self.store.is_shared,
            policies=self.policies,
        )

    def is_led(self, topic: str) -> bool:
        """Whether this broker knows a leader for each partition."""
        known = self.hosting.metadata.topic(topic)
        return known is not None and is_led(known.partitions.values())

    # -- the office --------------------------------------------------------------------------

    def sleep(self, delay_ms: int) -> Pending[None]:
        return self.rpc.sleep(delay_ms)

    def put_in_office(self, controller: ActiveController) -> InOffice:
        context, state = self.context, controller.state
        for topic in state.topics():
            hosted = enumerate(partition.replicas for partition in topic.partitions)
            here = [number for number, replicas in hosted if state.broker_id in replicas]
            self.slots.assign(topic.name, here)  # a broker with fewer slots does not start
        requests = self.topic_requests(state)
        topics = TopicAdmin(
            controller,
            requests,
            lambda: Room(self.slots, self.hosting.replicas),
            self.rpc.sleep,
            lambda: has_all_directories(context),
            self.mutations.of,
        )
        duties = Duties(
            controller,
            lambda name: self.configs.config[name],
            self.rpc.sleep,
            topics.finish_deletions,
        )
        return InOffice(controller, topics, duties, ReplicaAdmin(duties, self.rpc.sleep))

    async def before_hosting(self, session_id: int) -> None:
        """Set stray replicas aside, if no process has an image: later, logs are open."""
        context = self.context
        if not self.store.is_shared or context.incarnation > 1 or self._is_told:
            return
        await set_strays_aside(
            self.own_store,
            context.broker_id,
            self.config.log_dirs,
            lambda: has_all_directories(context) and self.store.session_id == session_id,
            lambda key: self.hosting.replicas.replica(key) is not None,
        )

    def in_office(self) -> None:
        """The controller is elected and loaded; processes can get the image now."""
        # The journal may have topics whose slots could not be released.
        for name in self.slots.topics():
            if self.hosting.replicas.topic(name) is None:
                self.slots.release(name)
        self._told()

    def not_elected(self) -> None:
        """Start to serve, with an empty image: the controller's requests arrive through the
        listeners, too.
        """
        if self._is_told or self._awaits_controller:
            return
        if self.context.incarnation == 1:
            self._told()
        else:
            # The other processes have what the last controller process was told. It is replaced by
            # what the active controller says of this broker's new registration, not by nothing.
            self._awaits_controller = True
            self.ready()
            self._listen()

    def _listen(self) -> None:
        """Go on once the active controller has begun to say what there is."""
        if self._awaits_controller and self.hosting.metadata.brokers:
            self._awaits_controller = False
            run(self._hear()).then(raise_failure)

    async def _hear(self) -> None:
        """It does so in a few requests."""
        await self.rpc.sleep(HEARING_MS)
        if not self._is_told:
            self._told()

    async def _image_there(self) -> None:
        if not self._is_told:
            first: Pending[None] = Pending()
            self._waiting_for_image.append(first)
            await first

    def _told(self) -> None:
        if not self._is_told and not self._goes_on and self.journal is not None:
            self.journal.begin()
        self._is_told = True
        waiting, self._waiting_for_image = self._waiting_for_image, []
        for pending in waiting:
            pending.resolve()
        self._take_over()
        self.ready()
        self.producer_ids.fetch_ahead()

    def failed(self, error: BaseException) -> None:
        if not self._is_set_up:
            self._failure = error
            return
        if isinstance(error, BadAcls):
            logger.error("the broker cannot start: %s", error)
            self.exit_code, self.stopping = EXIT_BAD_CONFIG, True
            return
        if isinstance(error, CANNOT_JOIN):
            logger.error("this broker cannot join the cluster: %s", error)
            has_waited = isinstance(error, AlreadyRegistered)
            self.exit_code = EXIT_BAD_CONFIG if has_waited else EXIT_CANNOT_START
            self.stopping = True
            return
        logger.error("the controller process failed", exc_info=error)
        self.exit_code, self.stopping = EXIT_CRASH, True

    def tick(self, now: int) -> None:
        self._take_over()
        self.store.settle(now)
        self.links.tick(now)
        self._metrics.publish()
        self.asking.tick(now)
        if self.store.is_shared and self._is_told:
            self.forgotten.tick(now)

    def _take_over(self) -> None:
        """Publish the image to processes of the previous controller process."""
        if self.context.incarnation > 1 and self._is_told:
            self.publisher.take_over()

    async def hello(self, sender: Address, _: calls.Nothing) -> calls.ImageDocument:
        """Return the image to a process, and send it all changes from now on."""
        await self._image_there()
        self.publisher.subscribe(sender)
        return self.hosting.image.snapshot(for_io_worker=sender.kind == ProcessKind.IO_WORKER)

    async def allocate_producer_ids(
        self, sender: Address, _: calls.Nothing
    ) -> calls.ProducerIdBlock:
        """Allocate producer ids."""
        return await self.producer_ids.take()

    def on_reload(self) -> None:
        """SIGHUP: reload the file and publish what has changed."""
        if self.context.config_path is None:
            logger.warning(
                "the broker was started without a configuration file, so there is nothing to reload"
            )
            return
        self.configs.reload(self.context.config_path, self.context.overrides).then(raise_failure)

    def on_leave(self) -> None:
        """The broker will stop: hand over leadership, and report when that is done."""

        def ended(outcome: Pending[bool]) -> None:
            self.processes.set(self.address, HANDED_OVER, 1)
            raise_failure(outcome)

        self.asking.leave().then(ended)

    def signal_of_parents_end(self) -> int:
        """A session outlives its process; so this one stays to end it."""
        return signal.SIGTERM if self.config.uses_zookeeper else signal.SIGKILL

    def shutdown(self) -> None:
        if os.getppid() != self.context.parent_pid:
            # Others may lead as soon as the session has ended: nothing may be written here by then.
            signal.alarm(ORPHAN_S)
            kinds = [ProcessKind.IO_WORKER, ProcessKind.NETWORK]
            if not await_end(self.processes, kinds, ORPHAN_S - 2):
                logger.error(
                    "the supervisor was killed, but other processes still run; the session expires"
                )
                return
            logger.warning("the supervisor was killed; ending this broker's session")
        self.slots.close()
        closed, until = self.store.close(), now_ms() + CLOSE_MS
        if self.store.fd is not None:
            with select.epoll() as poll:
                poll.register(self.store.fd, select.EPOLLIN)
                while not closed.done and now_ms() < until:
                    poll.poll((until - now_ms()) / 1000)
                    self.store.drain()
        if not closed.done:
            logger.warning(
                "cannot tell ZooKeeper that this broker stops; its session expires later"
            )
        closed.then(raise_failure)

    def _times_of(self, row: int) -> Callable[[int], None]:
        """Takes times in nanoseconds, of requests to ZooKeeper or of elections."""
        me = self.processes.addresses.index(self.address)
        return partial(RequestTimes(self.context.request_times, me).note, row, TOTAL)

    def _bound_ports(self) -> dict[str, int]:
        return {listener.name: bound.getsockname()[1] for listener, bound in self.context.listeners}


def cannot_start(error: BaseException) -> SystemExit:
    """Log why the controller cannot start, and stop the broker."""
    if isinstance(error, START_FAILURES):
        logger.error("the controller cannot start: %s", error)
    elif isinstance(error, DAMAGED):
        # The store returns other data than was written: its pages have no checksum.
        logger.error(
            "the controller cannot start: the metadata store %s is damaged (%s); restore it, "
            "or move it and %s away to adopt the topics on disk without their settings",
            FILE_NAME,
            error,
            COPY_NAME,
        )
    else:
        raise error
    return SystemExit(EXIT_CANNOT_START)


def wall_ms() -> int:
    return time.time_ns() // 1_000_000
