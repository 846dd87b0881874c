"""The controller process: metadata store, controller, and the replicas on this broker.

When it restarts, the other processes keep their image until the new controller process has loaded
its state and sends them a new one.
"""

from __future__ import annotations

import logging
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
from kbroker.cluster.features import ALL, NONE
from kbroker.cluster.topic_ids import TopicIds
from kbroker.controller.access.stored_acls import BrokerAcls
from kbroker.controller.configs.config_admin import ConfigAdmin
from kbroker.controller.configs.configs import ConfigsChanged
from kbroker.controller.configs.entity_admin import EntityAdmin
from kbroker.controller.configs.stored_configs import StoredConfigs
from kbroker.controller.election.active_controller import ActiveController
from kbroker.controller.election.events import EventQueue
from kbroker.controller.election.membership import Registration
from kbroker.controller.replicas.background import Background
from kbroker.controller.replicas.replica_admin import ReplicaAdmin
from kbroker.controller.store import persistence
from kbroker.controller.store.creations import Creations, OwnHosting
from kbroker.controller.store.producer_ids import ProducerIdBlocks
from kbroker.controller.store.stored_features import StoredFeatures
from kbroker.controller.topics.mutation_quotas import MutationQuotas
from kbroker.handlers.support.sasl_listener import make_sasl
from kbroker.hosting.control_server import ELEMENTS_PARTITIONS
from kbroker.hosting.hosting import Hosting
from kbroker.hosting.journal import Journal, JournalFile, Remembered
from kbroker.hosting.publisher import Publisher
from kbroker.ipc.pending import Pending, run
from kbroker.ipc.process_table import HANDED_OVER, ProcessKind
from kbroker.metastore.settled import SettledStore
from kbroker.peers.links import Links
from kbroker.protocol import codec
from kbroker.storage.dirs import boots
from kbroker.workers.base import Worker, now_ms, raise_failure
from kbroker.workers.controller import closing
from kbroker.workers.controller.advertised import advertised_endpoints, registered_endpoints
from kbroker.workers.controller.candidacy import Candidacy, ElectedController
from kbroker.workers.controller.cluster_metrics import ClusterMetrics
from kbroker.workers.controller.controller_channel import ControllerChannel
from kbroker.workers.controller.controller_server import ControllerServer
from kbroker.workers.controller.directory_check import check_directories
from kbroker.workers.controller.failing_over import ON as FAILOVER
from kbroker.workers.controller.failing_over import FailingOver
from kbroker.workers.controller.failures import (
    DAMAGED,
    START_FAILURES,
    cannot_start,
    exit_code_of,
)
from kbroker.workers.controller.forgotten import ForgottenReplicas
from kbroker.workers.controller.phase import ImageGate, Phase
from kbroker.workers.controller.serving import Serving
from kbroker.workers.controller.slot_assignments import slot_assignments
from kbroker.workers.controller.store_start import LastSession, has_all_directories, open_store
from kbroker.workers.controller.strays import set_strays_aside
from kbroker.workers.controller.topic_services import TopicServices
from kbroker.workers.plugged import uses_acls

logger = logging.getLogger(__name__)

# After its first request to a new registration, a controller takes at most this long for the rest.
HEARING_MS = 500


class ControllerWorker(Worker):
    """The shell around ``kbroker.controller`` and ``kbroker.hosting``. remembered: what the last
    incarnation of this process was told by controllers; None if nothing is known of it.
    """

    kind = ProcessKind.CONTROLLER

    # -- the start ---------------------------------------------------------------------------

    def setup(self) -> None:
        self.phase, self.gate = Phase.SETTING_UP, ImageGate()
        self._failure: BaseException | None = None
        codec.allow_elements(ELEMENTS_PARTITIONS)
        try:
            self.slots = slot_assignments(self.context)
            self._endpoints = advertised_endpoints(self.config, self._bound_ports())
            if self.config.uses_zookeeper:
                self._endpoints = registered_endpoints(self.config, self._endpoints)
            self.last_session = LastSession(self.context, self.rpc.sleep)
            self.store = open_store(self.context, self._times_of(ZOOKEEPER_ROW))
        except (*START_FAILURES, *DAMAGED) as error:
            raise cannot_start(error) from error
        topic_ids = TopicIds("" if self.config.has_topic_ids else self.context.cluster_id)
        self._make_replicas()
        self._make_stored()
        self._make_configs(topic_ids)
        self._make_candidacy(topic_ids)
        self.credentials = Serving(self, wall_ms).credentials
        if self.store.fd is not None:
            self.add_reader(self.store.fd, self.store.drain)
        run(self._start()).then(self._started)
        if self._failure is not None:
            raise cannot_start(self._failure) from self._failure
        if self.phase is Phase.SETTING_UP:
            self.phase = Phase.RUNNING if self.gate.is_open else Phase.STARTING

    def _make_replicas(self) -> None:
        """The replicas on this broker, and their image for the other processes."""
        context, is_shared = self.context, self.store.is_shared
        # Nodes that any broker may change, whichever is the controller.
        self.own_events, self.own_store = EventQueue(), SettledStore(self.store)
        features = NONE if is_shared else ALL
        self.hosting = Hosting(context.broker_id, context.cluster_id, self.slots, features)
        self.creations = Creations(self.own_store, self.hosting, self.rpc.sleep)
        # Kept where other brokers may be the controller.
        self.journal: Journal | None = None
        self.remembered: Remembered | None = None
        if is_shared:
            self.journal = Journal(JournalFile(context.runtime_dir), self.hosting)
            self.remembered = self.journal.restore(self.slots)
            if self.remembered is not None:
                self.hosting.restore(self.remembered)
                self.hosting.release_unused(self.slots.topics())
            self.hosting.note_in(self.journal)
        self.publisher = Publisher(self.rpc, self.processes, self.hosting.image)
        self.hosting.publish_to(self.publisher)

    def _make_stored(self) -> None:
        """What the store has for every broker: settings, features, ACLs, blocks of producer ids."""
        store, own_store, hosting, sleep = self.store, self.own_store, self.hosting, self.rpc.sleep
        self.stored_configs = StoredConfigs(store, own_store, hosting, sleep, wall_ms)
        self.features = StoredFeatures(store, own_store, hosting, sleep, self.failed)
        self.acls: BrokerAcls | None = None
        if uses_acls(self.config):
            self.acls = BrokerAcls(
                store, own_store, hosting, sleep, wall_ms,
                refuses_damage=self.context.incarnation == 1,
            )  # fmt: skip
        self.producer_ids = ProducerIdBlocks(
            lambda: run(persistence.allocate_producer_ids(own_store, self.context.broker_id)),
            lambda: self.candidacy.check_connected(),
            self.sleep,
            is_shared=store.is_shared,
        )

    def _make_configs(self, topic_ids: TopicIds) -> None:
        """What checks and changes settings, and topics by them."""
        context = self.context
        self.topics = TopicServices(self, topic_ids)
        self.configs = ConfigAdmin(
            self.stored_configs,
            self.hosting.metadata,
            context.broker_id,
            context.config,
            context.runtime_dir,
            context.tls,
            self.topics.policies,
            make_sasl,
            context.peer_security,
            self.config,
        )
        self.entities = EntityAdmin(self.stored_configs)
        samples = self.config["controller.quota.window.num"]
        self.mutations = MutationQuotas(
            lambda: self.hosting.image.quotas,
            samples * self.config["controller.quota.window.size.seconds"],
            now_ms,
        )
        self.stored_configs.changed = self._configs_changed

    def _make_candidacy(self, topic_ids: TopicIds) -> None:
        """The session of this broker, and its ways to others."""
        context, is_shared = self.context, self.store.is_shared
        me = Registration(
            context.broker_id,
            self._endpoints,
            self.config["broker.rack"],
            context.cluster_id if is_shared else "",
            self.config.protocol_version,
            resumes=self.hosting.broker_epoch,
            is_suspect=any(map(boots.has_suspects, self.config.log_dirs)),
            session_ms=self.config["zookeeper.session.timeout.ms"],
            failover=self.config[FAILOVER],
        )
        security = context.peer_security.get(self.config.control_listener)
        taker = OwnHosting(self.hosting, self.creations)
        self.links = Links(context.broker_id, taker, self, self.config, now_ms, security)
        self.candidacy = Candidacy(
            self.store, me, self.hosting, self.links, self.stored_configs, self, topic_ids
        )
        self.candidacy.counts.elected = self._times_of(ELECTION_ROW)
        self.failover = FailingOver(self)
        self.controller_server = ControllerServer(
            lambda: self.candidacy.background, self.rpc.sleep, is_shared=is_shared
        )
        self.channel = ControllerChannel(self)
        self.forgotten = ForgottenReplicas(
            context.broker_id, self.hosting, self.own_store, context.cluster_id
        )
        if self.remembered is not None:
            self.channel.go_on_from(self.remembered)
        self._metrics = ClusterMetrics(
            self.open_counters(), self.candidacy, self.failover.failover.counts, is_shared
        )

    async def _start(self) -> None:
        # Logs are opened with their settings: nobody is elected, and there is no image, before.
        await self.stored_configs.start()
        self.configs.refresh()
        self.configs.reencode().then(raise_failure)
        # Without them, nobody but super users would be allowed anything.
        if self.acls is not None:
            await self.acls.start()
        await self.credentials.start()
        # A broker that does not support them does not register.
        await self.features.start()
        if self.remembered is not None:
            logger.info("continuing with what the previous controller process knew")
            self._image_is_there()
        # Before this broker can be elected for anything.
        if self.store.is_shared and await check_directories(
            self.own_store,
            self.context.broker_id,
            self.context.runtime_dir,
            self.context.clean_start,
        ):
            self.candidacy.note_suspect()
        self.candidacy.start()
        self.failover.start()

    def _started(self, outcome: Pending[None]) -> None:
        if outcome.error is not None:
            self.failed(outcome.error)

    def _configs_changed(self, changed: ConfigsChanged) -> None:
        self.configs.changed(changed)
        if self.candidacy.present is not None:
            self.candidacy.present.background.configs_changed(changed)

    # -- what the candidacy needs ------------------------------------------------------------

    def sleep(self, delay_ms: int) -> Pending[None]:
        return self.rpc.sleep(delay_ms)

    def make_elected(self, controller: ActiveController) -> ElectedController:
        state = controller.state
        self.failover.failover.leave_out(state)
        for topic in state.topics():
            hosted = enumerate(partition.replicas for partition in topic.partitions)
            here = [number for number, replicas in hosted if state.broker_id in replicas]
            self.slots.assign(topic.name, here)  # a broker with fewer slots does not start
        topics = self.topics.admin(controller)
        background = Background(
            controller,
            lambda name: self.configs.config[name],
            self.rpc.sleep,
            topics.finish_deletions,
        )
        replicas = ReplicaAdmin(background, self.rpc.sleep)
        return ElectedController(controller, topics, background, replicas)

    async def before_hosting(self, session_id: int) -> None:
        """Set stray replicas aside, if no process has an image: later, logs are open."""
        context = self.context
        if not self.store.is_shared or context.incarnation > 1 or self.gate.is_open:
            return
        await set_strays_aside(
            self.own_store,
            context.broker_id,
            self.config.log_dirs,
            lambda: has_all_directories(context) and self.store.session_id == session_id,
            lambda key: self.hosting.replicas.replica(key) is not None,
        )

    async def end_last_session(self, session_id: int) -> bool:
        return await self.last_session.end(session_id)

    def term_began(self) -> None:
        """The controller is elected and loaded; processes can get the image now."""
        # The journal may have topics whose slots could not be released.
        for name in self.slots.topics():
            if self.hosting.replicas.topic(name) is None:
                self.slots.release(name)
        self._image_is_there()
        self.failover.failover.elected()

    def not_elected(self) -> None:
        """Start to serve, with an empty image: the controller's requests arrive through the
        listeners, too.
        """
        if self.gate.is_open or self.phase is Phase.CATCHING_UP:
            return
        if self.context.incarnation == 1:
            self._image_is_there()
        else:
            # The other processes have what the last controller process was told. It is replaced by
            # what the active controller says of this broker's new registration, not by nothing.
            self.phase = Phase.CATCHING_UP
            self.ready()
            self.control_request_served()

    def failed(self, error: BaseException) -> None:
        if self.phase is Phase.SETTING_UP:
            self._failure = error
        else:
            self.exit_code, self.stopping = exit_code_of(error), True

    # -- the image ---------------------------------------------------------------------------

    def control_request_served(self) -> None:
        """Go on once the active controller has begun to say what there is: it does so in a few
        requests.
        """
        if self.phase is Phase.CATCHING_UP and self.hosting.metadata.brokers:
            self.phase = Phase.STARTING
            self.rpc.sleep(HEARING_MS).then(lambda _: self._image_is_there())

    def _image_is_there(self) -> None:
        """Called again, it changes nothing."""
        if not self.gate.is_open and self.remembered is None and self.journal is not None:
            self.journal.begin()
        if self.phase is not Phase.SETTING_UP:
            self.phase = Phase.RUNNING
        self.gate.open()
        self._take_over()
        self.ready()
        self.producer_ids.fetch_ahead()

    def _take_over(self) -> None:
        """Publish the image to processes of the previous controller process."""
        if self.context.incarnation > 1 and self.gate.is_open:
            self.publisher.take_over()

    # -- the process -------------------------------------------------------------------------

    def tick(self, now: int) -> None:
        self._take_over()
        self.store.settle(now)
        self.links.tick(now)
        self.failover.tick(now)
        self._metrics.publish()
        self.channel.tick(now)
        if self.store.is_shared and self.gate.is_open:
            self.forgotten.tick(now)

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

        self.channel.leave().then(ended)

    def signal_of_parents_end(self) -> int:
        """A session outlives its process; so this one stays to end it."""
        return signal.SIGTERM if self.config.uses_zookeeper else signal.SIGKILL

    def shutdown(self) -> None:
        if closing.others_have_ended(self.processes, self.context.parent_pid):
            self.slots.close()
            closing.close(self.store)

    def _times_of(self, row: int) -> Callable[[int], None]:
        """Takes times in nanoseconds, of requests to ZooKeeper or of elections."""
        me = self.processes.addresses.index(self.address)
        return partial(RequestTimes(self.context.request_times, me).note, row, TOTAL)

    def _bound_ports(self) -> dict[str, int]:
        return {listener.name: bound.getsockname()[1] for listener, bound in self.context.listeners}


def wall_ms() -> int:
    return time.time_ns() // 1_000_000
