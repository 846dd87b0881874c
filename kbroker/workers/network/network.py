"""The network process: clients' connections, every fetch, and the network side of every produce.

The work on sockets is in ``_ext.net_loop``. This module connects it with the mailbox, the cluster
image, the handlers of everything that is not hot, and the acceptor. It takes connections only once
it has the image and every io worker has answered its hello (docs/architecture.md, "Mailboxes").
"""

from __future__ import annotations

import logging
import mmap
import re
import socket
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from kbroker._ext.fetch.fetch_engine import FetchEngine
from kbroker._ext.network.connection import HANDSHAKE, SERVING, Connection
from kbroker._ext.network.net_loop import NetLoop
from kbroker._ext.network.produce_path import ProducePath
from kbroker._ext.shared.arena import Arena
from kbroker._ext.shared.client_figures import ClientFigures
from kbroker._ext.shared.lane import Lane
from kbroker._ext.shared.partition_table import PartitionTable
from kbroker._ext.shared.quota_table import QuotaTable
from kbroker._ext.shared.replication_quota import LEADER, ReplicationQuota
from kbroker._ext.shared.request_times import RequestTimes
from kbroker._ext.shared.session_times import SessionTimes
from kbroker._ext.sockets.requests import RequestTable
from kbroker._ext.sockets.transport import Transport
from kbroker.cluster.changes import ImageChanges
from kbroker.cluster.image import ClusterImage, TopicImage
from kbroker.config.key import LONG_MAX
from kbroker.config.topic_keys import TOPIC_KEYS
from kbroker.errors import ConfigError, ErrorCode, WireError
from kbroker.handlers.dispatch import RequestDispatcher, Response, peer
from kbroker.handlers.sasl import ConnectionLogin
from kbroker.handlers.support.joining import Joining
from kbroker.handlers.support.sasl_listener import SaslListener, sasl_listener
from kbroker.handlers.telemetry import pushed_series
from kbroker.ipc import calls
from kbroker.ipc.fdpass import host_of, receive_connections, send_closed, send_mark
from kbroker.ipc.process_table import CONNECTIONS, CONTROLLER, Address, ProcessKind
from kbroker.ipc.regions import small_part_bytes
from kbroker.ipc.rpc import Pending, run
from kbroker.ipc.slices import Slices
from kbroker.logcontext import RateLimit
from kbroker.metrics.catalog import (
    ARENA_FULL,
    ARENA_USED,
    AUTHENTICATIONS,
    CONNECTIONS_CLOSED,
    CONNECTIONS_OPEN,
    CONSUMER_BYTES,
    EXPIRED_CONNECTIONS,
    FAILED_AUTHENTICATIONS,
    FETCH_PARKED,
    FETCH_SESSION_EVICTIONS,
    FETCH_SESSIONS,
    FETCHES_REDIRECTED,
    FETCHES_WAITING,
    FOLLOWER_BYTES,
    FOLLOWER_SESSIONS,
    INVALID_REQUESTS,
    LISTENER_CONNECTIONS,
    MESSAGES_DROPPED,
    NETWORK_IDLE,
    PARTITION_READS,
    PARTITION_READS_FAILED,
    REQUEST_BYTES,
    REQUEST_QUEUE,
    REQUESTS,
    RESPONSE_BYTES,
    RESPONSE_QUEUE,
    THROTTLED,
    MetricRow,
)
from kbroker.metrics.slots import Totals
from kbroker.protocol import codec
from kbroker.replication.read_replicas import RackAwareSelector
from kbroker.replication.throttles import LEADER_REPLICAS, throttled_partitions
from kbroker.security.principal import ANONYMOUS, KafkaPrincipal
from kbroker.workers.base import Worker, now_ms, raise_failure
from kbroker.workers.descriptor_limit import fetched_files_max
from kbroker.workers.network import slow_requests
from kbroker.workers.network.arrival import Arrival
from kbroker.workers.network.beside import Beside
from kbroker.workers.network.client_usages import ClientUsages
from kbroker.workers.network.coordinator_link import CoordinatorLink
from kbroker.workers.network.epoch_ends import EpochEnds
from kbroker.workers.network.leader_hints import LeaderHints
from kbroker.workers.plugged import Authorization

if TYPE_CHECKING:
    from kbroker.config.loader import BrokerConfig
    from kbroker.handlers.support.client_telemetry import ClientTelemetry
    from kbroker.workers.network.handshakes import Handshakes

logger = logging.getLogger(__name__)

SWEEP_MS = 1000
# How ``Connection.check_phase`` begins when a client has not authenticated again.
SESSION_ENDED = "its session has ended"
# How long a stopping process waits for responses of io workers: this part of shutdown.timeout.ms.
# Batches without a response may be rejected when they are sent again, because a snapshot has only
# the last batch of a producer.
DRAIN_SHARE = 3
# Reserved for log files when connections have used up all others, so that these are still served.
RESERVED_DESCRIPTORS = 64
_NUMBERS = re.compile(r"\d+")


class NetworkWorker(Worker):
    """The network process; see the module."""

    kind = ProcessKind.NETWORK

    @classmethod
    def import_for(cls, config: BrokerConfig) -> None:
        if any(listener.uses_tls for listener in config.listeners):
            import kbroker.workers.network.handshakes  # noqa: F401

    def make_poller(self) -> None:
        config, context = self.config, self.context
        index = self.address.index
        self.io_workers = self.processes.of_kind(ProcessKind.IO_WORKER)
        slots = self.config["partition.table.slots"]
        self.table = PartitionTable(context.partition_table, slots)
        codec.allow_elements(slots)
        self.image = ClusterImage()
        self.slices = Slices()
        self.joining = Joining()
        self.given_away_bytes = 0
        self.telemetry: ClientTelemetry | None = None  # from the first request for it on
        self.authorization = Authorization(config, context.properties)
        self.accesses, self.acls = self.authorization.accesses, self.authorization.acls
        processes = len(self.processes.of_kind(ProcessKind.NETWORK))
        frame_max = config["socket.request.max.bytes"]
        region = context.arenas[index]
        self.arena = arena = Arena(region, frame_max + 4, small_part_bytes(len(region)))
        self.requests = requests = RequestTable()
        self.fetch = FetchEngine(
            self.table,
            index,
            config.log_dirs,
            max_sessions=-(-config["max.incremental.fetch.session.cache.slots"] // processes),
            max_open_files=fetched_files_max(),
            max_bytes=config["fetch.max.bytes"],
            io_workers=len(self.io_workers),
            times=SessionTimes(context.follower_sessions, index),
        )
        self.quota = ReplicationQuota(
            context.replication_quotas,
            LEADER,
            config["replication.quota.window.size.seconds"] * 1000,
        )
        self.produce = ProducePath(arena, self.fetch.registry, requests, len(self.io_workers))
        self.loop = NetLoop(
            arena,
            requests,
            frame_max,
            self.on_close,
            self.produce,
            self.fetch,
            self.dispatch,
            QuotaTable(
                context.client_quotas,
                config["quota.window.num"],
                config["quota.window.size.seconds"] * 1000,
            ),
        )
        self.open_figures()
        self.usages = ClientUsages(self.loop, config)
        self.loop.unknown_frame_max = min(frame_max, config["sasl.server.max.receive.size"])
        self.listeners = [listener.name for listener, *_ in context.listeners]
        self.sasl_listeners: dict[int, SaslListener] = {}  # by index, those with SASL
        self.failed_logins = RateLimit()
        self.fetch.encoder.find_leaders = self.produce.find_leaders = self.find_leaders
        self.tls = context.tls
        self.tls.tick(now_ms())  # files may be newer than the broker's start
        self.handshakes: Handshakes | None = None
        if self.tls.by_name:
            from kbroker.workers.network.handshakes import Handshakes

            self.handshakes = Handshakes(now_ms)
            self.loop.add_reader(self.handshakes.fd, self.take_handshakes)
        self.selector: RackAwareSelector | None = None
        if config["replica.selector.class"]:
            self.selector = RackAwareSelector(context.broker_id, self.listeners)
            self.fetch.reader.select = self.selector.choose
        self.configure_loop()
        self._turns = self.loop.turns

    def open_figures(self) -> None:
        """Count requests, and what passes through partitions."""
        me = self.processes.addresses.index(self.address)
        times = RequestTimes(self.context.request_times, me)
        clients = ClientFigures(self.context.client_figures, self.address.index)
        self.loop.keep_times(times, clients)
        self.fetch.reader.times = times
        self.fetch.reader.figures = self.open_log_figures(self.address.index)
        self.times = times

    def add_reader(self, fd: int, callback: Callable[[], None]) -> None:
        self.loop.add_reader(fd, callback)

    def wait(self, timeout_ms: int) -> None:
        self.lane_is_full = self._turns(timeout_ms)
        if self.slices.has_work:
            self.slices.run()
            self.lane_is_full = self.loop.end_turn()

    def setup(self) -> None:
        me = (self.address.kind, self.address.index, self.context.incarnation)
        lanes = []
        for worker in self.io_workers:
            end = self.context.lanes[self.address.index][worker.index][0]
            cells, cell = self.processes.incarnation_cell(worker)
            lanes.append(Lane(end.fileno(), me, worker.index, cells, cell))
            self.loop.add_lane(lanes[-1])
        self.coordinators = CoordinatorLink(lanes)
        self.loop.on_response = self.coordinators.on_response
        self.loop.on_rejected = self.reject
        self.loop.on_epoch_questions = EpochEnds(self.rpc, self.io_workers, self.loop).ask
        self.lane_is_full = False
        self.counters = self.open_counters()
        self.totals = Totals(self.counters, self.metric_rows())
        self.beside = Beside()
        self.loop.add_reader(self.beside.fd, self.beside.take)
        self.handoff = self.context.handoffs[self.address.index][1]
        self.closed_peers: list[str] = []
        self.closing_lines = RateLimit()
        self.next_sweep_ms = 0
        self.dispatcher = RequestDispatcher(self)
        self.rpc.serve(calls.IMAGE, self.serve_image)
        self.rpc.serve(calls.CONNECTIONS, self.serve_connections)
        self.rpc.serve(calls.QUOTA_FIGURES, lambda sender, _: self.usages.figures(now_ms()))
        self.rpc.serve(calls.CLIENT_TELEMETRY, lambda *_: pushed_series(self.telemetry))
        run(self.join()).then(raise_failure)

    async def join(self) -> None:
        """Join the running broker."""
        self.take_image(await self.call_until_answered(CONTROLLER, calls.HELLO))
        for worker in self.io_workers:
            await self.call_until_answered(worker, calls.NETWORK_STARTS)
        # Requests to the previous incarnation. They are not read any more, and it may take long
        # until as many bytes are received again.
        self.context.arenas[self.address.index].madvise(mmap.MADV_REMOVE)
        self.loop.add_reader(self.handoff.fileno(), self.take_connections)
        self.ready()
        logger.info("serving clients")

    # -- the cluster image --

    def serve_image(self, sender: Address, change: calls.ImageChange) -> calls.ImageTaken:
        self.take_image(change.delta)
        return calls.ImageTaken({})

    def take_image(self, delta: calls.ImageDocument) -> None:
        """Take a snapshot or a delta of the controller."""
        changes = self.image.apply(delta)
        self.authorization.take(delta)
        if self.image.brokers:
            self.joining.joined()
        if self.selector is not None and "brokers" in delta:
            self.selector.take_brokers(self.image.brokers.values())
            for name, topic in self.image.topics.items():
                self.find_nearby(name, topic)
        for name, change in changes.topics.items():
            if change.new is None:
                self.fetch.remove_topic(name)
            elif not changes.settings:
                self.put_topic(name, change.new)
        if changes.settings:
            self.follow_settings(self.image.broker_config)
            self.configure_loop()
            self.tls.follow(self.config.of_listener)
            for name, topic in self.image.topics.items():
                self.put_topic(name, topic)  # each may inherit the changed config
        if changes.quotas:
            self.usages.follow(self.image.quotas)
        followers = followers_of_new_leader(changes, self.context.broker_id)
        if followers:
            self.loop.hurry_followers(followers)

    def configure_loop(self) -> None:
        config = self.config
        self.loop.set_timeouts(
            config["connections.max.idle.ms"],
            config["connection.first.request.timeout.ms"],
            config["connection.request.timeout.ms"],
            config["connection.write.timeout.ms"],
        )
        self.loop.responses.watch_for(config["slow.request.log.ms"])
        self.follow_sasl()
        if self.handshakes is not None:
            self.handshakes.timeout_ms = config["connection.first.request.timeout.ms"]
        self.quota.rate = config["leader.replication.throttled.rate"]
        self.fetch.reader.quota = None if self.quota.rate == LONG_MAX else self.quota

    def follow_sasl(self) -> None:
        """Take what clients may authenticate with from the configs. The configs at the start have
        been checked; if later ones cannot be obeyed, those of before stay in force.
        """
        for index, (listener, *_) in enumerate(self.context.listeners):
            if not listener.uses_sasl:
                continue
            try:
                self.sasl_listeners[index] = sasl_listener(self.config, listener.name)
            except ConfigError as error:
                if index not in self.sasl_listeners:
                    raise
                logger.error("listener %s stays as it is: %s", listener.name, error)

    def put_topic(self, name: str, topic: TopicImage) -> None:
        slots = [partition.slot for partition in topic.partitions]
        incarnations = [partition.slot_incarnation for partition in topic.partitions]
        self.fetch.put_topic(
            name,
            topic.topic_id,
            slots,
            incarnations,
            rejects_old=not self.topic_setting(topic, "message.downconversion.enable"),
            stores_zstd=self.topic_setting(topic, "compression.type") == "zstd",
            internal=topic.internal,
        )
        known = self.fetch.registry.get(name.encode())
        assert known is not None
        partitions = topic.partitions
        throttled = throttled_partitions(
            topic.config, LEADER_REPLICAS, self.context.broker_id, len(partitions)
        )
        known.throttled = {
            number: partitions[number].isr for number in throttled if number < len(partitions)
        } or None
        self.find_nearby(name, topic)

    def find_nearby(self, name: str, topic: TopicImage) -> None:
        """Find the replicas that consumers of the topic may be sent to."""
        known = self.fetch.registry.get(name.encode())
        if self.selector is not None and known is not None:
            known.nearby = self.selector.nearby(topic.partitions)

    def find_leaders(self, listener: int) -> LeaderHints:
        """For a response to a client of that listener that has asked the wrong broker."""
        return LeaderHints(self.image, self.listeners[listener])

    def topic_setting(self, topic: TopicImage, name: str) -> Any:
        """One of a topic's configs, without parsing them all."""
        own = topic.config.get(name)
        return self.config.topic_defaults[name] if own is None else TOPIC_KEYS[name].parse(own)

    # -- connections --

    def take_connections(self) -> None:
        """Accept connections handed over by the acceptor."""
        for fd, listener_index, peer_host in receive_connections(
            self.handoff, RESERVED_DESCRIPTORS
        ):
            family = self.context.listeners[listener_index][1].family
            connection_socket = socket.socket(family, socket.SOCK_STREAM, 0, fd)
            try:
                connection_socket.setblocking(False)
                port = connection_socket.getpeername()[1]
                local = connection_socket.getsockname()
            except OSError:  # gone before it was looked at
                self.closed_peers.append(peer_host)
                connection_socket.close()
                continue
            arrival = Arrival(listener_index, peer_host, port, (host_of(local), local[1]))
            tls = self.tls.by_name.get(self.listeners[listener_index])
            if tls is not None and self.handshakes is not None:
                self.handshakes.start(connection_socket, arrival, tls)
            else:
                self.admit(Transport(connection_socket.detach()), arrival, ANONYMOUS)
        self.publish_count()

    def take_handshakes(self) -> None:
        """Serve the clients whose TLS handshake is done."""
        assert self.handshakes is not None
        for result in self.handshakes.results():
            arrival, reason = result.arrival, result.reason
            if result.principal is not None:
                self.admit(result.transport(), arrival, result.principal)
                if arrival.listener not in self.sasl_listeners:
                    self.counters.add(AUTHENTICATIONS, 1, arrival.listener)
                continue
            self.closed_peers.append(arrival.host)
            if reason:
                self.counters.add(FAILED_AUTHENTICATIONS, 1, arrival.listener)
                self.note_closing(arrival.host, f"{arrival.host}:{arrival.port}", reason)
        self.publish_count()

    def admit(self, transport: Transport, arrival: Arrival, principal: KafkaPrincipal) -> None:
        """Serve a connection. principal: that of its certificate, if it has shown one; with SASL,
        it is nobody until it has logged in.
        """
        uses_sasl = arrival.listener in self.sasl_listeners
        connection = self.loop.add_transport(
            transport,
            arrival.listener,
            arrival.host,
            arrival.port,
            self.accesses.of(ANONYMOUS if uses_sasl else principal, arrival.host),
            HANDSHAKE if uses_sasl else SERVING,
        )
        if uses_sasl:
            connection.login = ConnectionLogin()
        connection.local_address = arrival.local

    def serve_connections(self, sender: Address, _: calls.Nothing) -> calls.OpenConnections:
        """A new acceptor asks for the present connections.

        It must ask again when it has not read what was reported before.
        """
        self.take_connections()
        if not send_closed(self.handoff, self.closed_peers) or not send_mark(self.handoff):
            return calls.OpenConnections(None)
        hosts = self.loop.peer_hosts()
        if self.handshakes is not None:
            for host, count in self.handshakes.hosts().items():
                hosts[host] = hosts.get(host, 0) + count
        return calls.OpenConnections(hosts)

    def on_close(self, connection: Connection, reason: str | None) -> None:
        """A connection was closed; ``reason`` says why if this side closed it."""
        host = connection.peer_host
        if connection.turn is not None:
            connection.turn.is_gone = True
        if reason is not None:
            if reason.startswith(SESSION_ENDED):
                self.counters.add(EXPIRED_CONNECTIONS, 1, connection.listener)
            self.note_closing(host, peer(connection), reason)
        self.closed_peers.append(host)

    def note_closing(self, host: str, client: str, reason: str) -> None:
        """Log why this side closed a connection."""
        times = self.closing_lines.due((host, kind_of(reason)))
        if times > 1:
            logger.warning(
                "closed the connection of %s: %s (%d times from that address)",
                client,
                reason,
                times,
            )
        elif times:
            logger.warning("closed the connection of %s: %s", client, reason)

    def publish_count(self) -> None:
        count = self.loop.connection_count
        if self.handshakes is not None:
            count += self.handshakes.count
        self.processes.set(self.address, CONNECTIONS, count)

    # -- requests that are not hot --

    def dispatch(self, connection: Connection, token: int, frame: bytes) -> None:
        """Serve one request through its handler; called by the loop."""
        self.respond_with(connection, token, lambda: self.dispatcher.handle(connection, frame))

    def reject(
        self, connection: Connection, token: int, frame: bytes, code: int, text: bytes
    ) -> None:
        """A coordinator rejected a request that was forwarded undecoded; called by the loop."""
        error = WireError(ErrorCode(code), text.decode("utf-8", "replace"))
        self.respond_with(
            connection, token, lambda: self.dispatcher.reject(connection, frame, error)
        )

    def respond_with(
        self, connection: Connection, token: int, serve: Callable[[], Pending[Response]]
    ) -> None:
        def done(outcome: Pending[Response]) -> None:
            if outcome.error is not None:
                logger.error("a request got no response", exc_info=outcome.error)
            self.loop.respond(token, outcome.value)

        try:
            serve().then(done)
        except Exception:
            logger.exception("a request of %s failed", peer(connection))
            self.loop.respond(token, None)

    # -- the turn --

    def end_turn(self) -> None:
        self.lane_is_full |= self.coordinators.flush()
        if self.closed_peers:
            self.publish_count()
            send_closed(self.handoff, self.closed_peers)

    def metric_rows(self) -> list[tuple[MetricRow, Callable[[], int]]]:
        loop, arena, fetch = self.loop, self.arena, self.fetch
        return [
            (REQUEST_BYTES, lambda: loop.bytes_received),
            (RESPONSE_BYTES, lambda: loop.bytes_sent),
            (INVALID_REQUESTS, lambda: loop.rejected_total),
            (THROTTLED, lambda: loop.limits.throttled),
            (CONNECTIONS_OPEN, lambda: loop.connection_count),
            (CONNECTIONS_CLOSED, lambda: loop.closed_total),
            (ARENA_USED, lambda: arena.allocated),
            (NETWORK_IDLE, lambda: loop.idle_ns),
            (CONSUMER_BYTES, lambda: fetch.reader.bytes_out),
            (PARTITION_READS, lambda: fetch.reader.reads),
            (PARTITION_READS_FAILED, lambda: fetch.reader.failed_reads),
            (FETCH_PARKED, lambda: fetch.parked_total),
            (FETCHES_WAITING, lambda: fetch.counts()["parked"]),
            (FETCHES_REDIRECTED, lambda: fetch.reader.redirected_total),
            (FOLLOWER_SESSIONS, lambda: fetch.counts()["followers"]),
            (FETCH_SESSIONS, lambda: fetch.counts()["sessions"]),
            (FETCH_SESSION_EVICTIONS, lambda: fetch.counts()["session_evictions"]),
            (FOLLOWER_BYTES, lambda: fetch.follower_bytes),
            (ARENA_FULL, lambda: loop.starved_total),
            (MESSAGES_DROPPED, lambda: self.mailbox.dropped + loop.lane_drops),
        ]

    def next_deadline_ms(self) -> int | None:
        if self.slices.has_work:
            return 0
        if self.lane_is_full:
            return now_ms() + 1
        deadline = self.loop.next_fetch_deadline_ms()
        return deadline if deadline >= 0 else None

    def is_quiet(self) -> bool:
        return not self.slices.has_work and not self.loop.heavy_bytes

    def tick(self, now: int) -> None:
        self.dispatcher.tick(now)
        self.coordinators.tick(now)
        self.loop.relieve(now)
        self.tls.tick(now)
        self.totals.publish()
        self.report_damages()
        if self.config["slow.request.log.ms"] >= 0:
            slow_requests.report(self.loop.responses, self.listeners)
        for index, count in self.loop.by_listener().items():
            self.counters.set(LISTENER_CONNECTIONS, count, index)
        for api_key, count in self.loop.take_request_counts():
            self.counters.add(REQUESTS, count, api_key)
        if now >= self.next_sweep_ms:
            self.next_sweep_ms = now + SWEEP_MS
            self.authorization.tick()
            self.loop.sweep()
            if self.telemetry is not None:
                self.telemetry.tick(now)
            waiting, unsent = self.requests.queue_sizes()
            self.counters.set(REQUEST_QUEUE, waiting)
            self.counters.set(RESPONSE_QUEUE, unsent)
            self.arena.trim()
            self.fetch.tidy(now)

    def report_damages(self) -> None:
        """Report damage that readers found to the owners of the logs, who log it once."""
        damages = {damage[:3]: damage for damage in self.fetch.take_damages()}
        for slot, incarnation, segment, position, what in damages.values():
            damage = calls.Damage(slot, incarnation, segment, position, what)
            owner = self.io_workers[slot % len(self.io_workers)]
            self.rpc.call(owner, calls.REPORT_DAMAGE, damage)

    def shutdown(self) -> None:
        self.loop.stop_reading()
        if self.handshakes is not None:
            self.handshakes.close()
        give_up_at = now_ms() + self.config["shutdown.timeout.ms"] // DRAIN_SHARE
        while self.loop.produces_in_flight() and now_ms() < give_up_at:
            self.wait(10)
        self.loop.close_all()


def followers_of_new_leader(changes: ImageChanges, broker_id: int) -> frozenset[int]:
    """The followers of partitions that this broker leads in a new leader epoch.

    A follower fetches them with its next request. Until then nothing is committed in them, and its
    present request may wait at this broker for seconds.
    """
    return frozenset(
        follower
        for change in changes.partitions()
        if change.new.leader == broker_id
        and (change.old is None or change.old.leader_epoch != change.new.leader_epoch)
        for follower in change.new.replicas
        if follower != broker_id
    )


def kind_of(reason: str) -> str:
    """A reason for closing without the parts that a client could vary endlessly: numbers, and text
    after a colon.
    """
    return _NUMBERS.sub("", reason.partition(":")[0])
