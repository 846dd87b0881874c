"""The io worker: the one process that writes to its partitions' logs (``slot % num.io.threads``).

Its loop is ``_ext.io_loop``, appends are in ``_ext.produce_intake`` and the storage package; this
module connects them with the mailbox, the cluster image and the calls of the handlers. Nothing of a
turn is answered before the slots that it changed are published.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Collection, Iterable, Sequence
from functools import partial
from importlib import import_module

from kbroker._ext.io.io_loop import IoLoop
from kbroker._ext.shared.arena import forbid_writes
from kbroker._ext.shared.lane import Lane
from kbroker._ext.shared.partition_table import PartitionTable
from kbroker._ext.shared.quota_table import QuotaTable
from kbroker._ext.shared.replication_quota import FOLLOWER, ReplicationQuota
from kbroker._ext.shared.request_times import FLUSH_ROW, TOTAL, RequestTimes
from kbroker._ext.shared.session_times import SessionTimes
from kbroker.clock import Clock, SystemClock
from kbroker.cluster.image import ClusterImage
from kbroker.config.loader import BrokerConfig
from kbroker.config.topic_config import TopicConfig
from kbroker.errors import EXIT_CRASH, ErrorCode
from kbroker.heap import keep_freed_memory
from kbroker.ipc import calls
from kbroker.ipc.log_dir_table import LogDirTable
from kbroker.ipc.process_table import CONTROLLER, Address, ProcessKind
from kbroker.ipc.rpc import Pending, run
from kbroker.metrics.catalog import (
    COMMITTED_CUTS,
    COORDINATORS_LOADING,
    FOLLOWED,
    FOLLOWED_BYTES,
    FOLLOWED_FAILED,
    FOLLOWER_LAG_MAX,
    IO_IDLE,
    ISR_EXPANDS,
    ISR_SHRINKS,
    LOG_DIRS_OFFLINE,
    LOGS,
    MESSAGES_DROPPED,
    OFFSET_COMMIT_REQUESTS,
    OFFSET_COMMIT_TIME,
    OFFSET_COMMITS,
    OWN_BATCHES,
    OWN_BYTES,
    OWN_MESSAGES,
    PRODUCE_BATCHES,
    PRODUCE_BYTES,
    PRODUCE_FAILURES,
    PRODUCE_MESSAGES,
    PRODUCES_WAITING,
    SEGMENTS_DAMAGED,
    TAIL_REPAIRS_INCOMPLETE,
    TAIL_REPAIRS_WAITING,
    UNDER_MIN_ISR,
    UNDER_REPLICATED,
    MetricRow,
)
from kbroker.metrics.slots import Totals
from kbroker.protocol import codec
from kbroker.replication.partition import Partition
from kbroker.security.access import Access
from kbroker.security.principal import KafkaPrincipal
from kbroker.storage.log.partition_log import PartitionLog
from kbroker.storage.manager.log_manager import LogManager
from kbroker.types import Offset
from kbroker.workers.base import Worker, now_ms, raise_failure
from kbroker.workers.io.coordinators import Coordinators
from kbroker.workers.io.followers import Followers, sent_versions
from kbroker.workers.io.group_figures import GroupFigures
from kbroker.workers.io.hosted import HostedPartitions
from kbroker.workers.io.in_sync import InSync
from kbroker.workers.io.log_cleaning import LogCleaningService
from kbroker.workers.io.log_dir_calls import LogDirCalls
from kbroker.workers.io.log_moving import LogMovingService, placement_lock
from kbroker.workers.io.low_watermarks import LowWatermarks
from kbroker.workers.io.partition_calls import PartitionCalls
from kbroker.workers.io.tail_repairs import TailRepairs
from kbroker.workers.io.transaction_log import TransactionLog
from kbroker.workers.plugged import Authorization

logger = logging.getLogger(__name__)

# The tick while log.flush.interval.ms or the timers of a coordinator run: their maximum delay.
TIMERS_TICK_MS = 100
# For how long after a change of the cluster image garbage is left alone: a full collection takes
# 0.1 s for some thousand partitions.
CALM_MS = 2_000

# What the first coordinators of a process need. It takes 0.1 s of CPU, for which other partitions
# would wait when this broker takes over a coordinator.
OF_COORDINATORS = (
    "coordinator.group.classic.classic_protocol",
    "coordinator.group.consumer.consumer",
    "coordinator.group.machine",
    "coordinator.offsets.offsets",
    "coordinator.transaction.machine",
    "coordinator.transaction.markers",
    "workers.io.broker_links",
    "workers.io.remote_markers",
    "workers.io.remote_verifications",
)


class IoWorker(Worker):
    """The io worker process; see the module."""

    kind = ProcessKind.IO_WORKER

    @classmethod
    def import_for(cls, config: BrokerConfig) -> None:
        if config.uses_zookeeper:
            for name in OF_COORDINATORS:
                import_module(f"kbroker.{name}")

    def setup(self) -> None:
        keep_freed_memory()
        context = self.context
        self.networks = self.processes.of_kind(ProcessKind.NETWORK)
        self.worker_count = len(self.processes.of_kind(ProcessKind.IO_WORKER))
        slots = self.config["partition.table.slots"]
        self.table = PartitionTable(context.partition_table, slots)
        codec.allow_elements(slots)
        self.broker_id: int = context.broker_id
        self.image = ClusterImage()
        lanes = [self.open_lane(network) for network in self.networks]
        for arena in context.arenas:
            forbid_writes(arena)
        self.loop = IoLoop(self.table, context.arenas, lanes, self.on_storage_failure)
        self.figures = self.open_log_figures()
        self.loop.keep_figures(self.figures)
        self.loop.set_opening(True)
        self.loop.quotas = QuotaTable(
            context.client_quotas,
            self.config["quota.window.num"],
            self.config["quota.window.size.seconds"] * 1000,
        )
        self.loop.shows_followers = bool(self.config["replica.selector.class"])
        self.lane_is_full = False
        self._image_ms = 0
        self.counters = self.open_counters()
        for lane in lanes:
            self.add_reader(lane.fd, partial(self.loop.read_lane, lane))
        self.clock: Clock = SystemClock()
        self.has_joined = False
        self.make_services(lanes)
        self.totals = Totals(self.counters, self.metric_rows(lanes))
        self.rpc.serve(calls.NETWORK_STARTS, self.serve_network_starts)
        self.rpc.serve(calls.IMAGE, self.serve_image)
        self.rpc.serve(calls.STOP_REPLICAS, self.serve_stop_replicas)
        self.rpc.serve(calls.GONE_FOLLOWER, self.serve_gone_follower)
        run(self.join()).then(raise_failure)

    def make_services(self, lanes: list[Lane]) -> None:
        """Each is created after its arguments; once all exist, they reach each other through this
        process.
        """
        context = self.context
        self.authorization = Authorization(self.config, context.properties)
        self.security = context.peer_security.get(self.config.inter_broker_listener)
        self.logs = LogManager(
            self.config,
            self.config.log_dirs,
            self.table,
            self.address.index,
            self.worker_count,
            self.clock,
            clean_start=context.clean_start,
            failed_flags=context.failed_log_dirs,
            progress=self.on_recovery_progress,
            placement_lock=placement_lock(context.runtime_dir),
            keeps_topic_ids=self.config.has_topic_ids,
            note_full_disk=LogDirTable(
                context.failed_log_dirs, len(self.config.log_dirs)
            ).note_full_disk,
        )
        me = self.processes.addresses.index(self.address)
        times = RequestTimes(context.request_times, me)
        self.loop.keep_times(times)
        self.logs.time_flushes(partial(times.note, FLUSH_ROW, TOTAL))
        self.hosted = HostedPartitions(
            self,
            self.logs,
            self.loop,
            broker_id=context.broker_id,
            worker_index=self.address.index,
            worker_count=self.worker_count,
        )
        sample_ms = self.config["replication.quota.window.size.seconds"] * 1000
        self.followers = Followers(
            self,
            self.loop,
            broker_id=context.broker_id,
            versions=sent_versions,
            quota=ReplicationQuota(context.replication_quotas, FOLLOWER, sample_ms),
            figures=self.figures,
            security=self.security,
        )
        self.in_sync = InSync(
            self,
            self.loop,
            SessionTimes(context.follower_sessions),
            broker_id=context.broker_id,
        )
        self.tail_repairs = TailRepairs(
            self, self.loop, broker_id=context.broker_id, security=self.security
        )
        self.low_watermarks = LowWatermarks(self, self.loop)
        self.coordinators = Coordinators(self, self.logs, self.loop, lanes, self.security)
        self.coordinators.commit_path.figures = self.figures
        self.group_figures = GroupFigures(
            self.rpc, self.coordinators, context.group_offsets[self.address.index]
        )
        self.transaction_log = TransactionLog(
            self, self.logs, self.loop, verify=self.coordinators.verify
        )
        self.cleaning = LogCleaningService(self, self.logs, self.loop)
        self.moving = LogMovingService(self, self.logs, self.loop)
        self.partition_calls = PartitionCalls(self, self.logs)
        self.log_dir_calls = LogDirCalls(self, self.logs)

    async def join(self) -> None:
        """Open the logs of the partitions this worker owns."""
        # First pending requests, then the image: a response in between is in both.
        asked = await self.call_until_answered(CONTROLLER, calls.PENDING_ISR)
        self.in_sync.take_asked_before(asked)
        snapshot = await self.call_until_answered(CONTROLLER, calls.HELLO)
        if self.config.uses_zookeeper:
            self.logs.suspects.read_again()
        changes = self.image.apply(snapshot)
        self.authorization.take(snapshot)
        self.take_settings()
        self.followers.take_topics(changes)
        await self.hosted.open(changes).done
        self.has_joined = True
        self.loop.set_opening(False)
        self.in_sync.has_joined()
        self.coordinators.on_image(changes)
        if self.address.index == 0 and not self.config.uses_zookeeper:
            # In a cluster this image may lack what a controller has yet to say: see ``strays``.
            self.logs.moves.remove_orphans(self.image_has)
        self.ready()
        logger.info("owns %d partitions", len(self.logs.logs()))

    def on_recovery_progress(self, *_: object) -> None:
        """Show that the process is alive: a long recovery is not a stall."""
        self.processes.heartbeat(self.address)

    # -- the cluster image --

    def image_has(self, key: tuple[str, int]) -> bool:
        topic = self.image.topics.get(key[0])
        return topic is not None and key[1] < len(topic.partitions)

    def serve_network_starts(self, sender: Address, _: calls.Nothing) -> None:
        """Ignore messages of its previous incarnation from now on."""

    async def serve_image(self, sender: Address, change: calls.ImageChange) -> calls.ImageTaken:
        """Create and reconfigure logs, change roles; coordinators are opened after their logs."""
        self._image_ms = now_ms()
        changes = self.image.apply(change.delta)
        self.authorization.take(change.delta)
        # Everything but the opening of logs is done before anything else in this process runs.
        if changes.settings:
            self.take_settings()
        self.followers.take_topics(changes)
        self.hosted.take(changes, is_snapshot=bool(change.delta.get("snapshot")))
        if "brokers" in change.delta:
            self.in_sync.on_brokers()
            self.low_watermarks.on_brokers()
        opening = self.hosted.open(changes, lambda: self.coordinators.on_image(changes))
        return calls.ImageTaken(await self.hosted.errors_so_far(opening))

    async def serve_stop_replicas(self, sender: Address, order: calls.StopReplicas) -> None:
        """Delete logs by order of the controller."""
        await self.hosted.stop(order.replicas)

    def serve_gone_follower(self, sender: Address, gone: calls.GoneFollower) -> calls.LastHeard:
        """A broker is gone: leaders do not wait for it."""
        return calls.LastHeard(self.in_sync.follower_gone(gone.broker_id, gone.closed_ms))

    def lead_lost(self, slot: int) -> None:
        """This broker no longer leads the partition."""
        self.coordinators.close(slot)

    def role_changed(self, slot: int, partition: Partition, log: PartitionLog | None) -> None:
        """Follow the partition's new leader, or track the followers of a partition led here."""
        self.followers.take_role(slot, partition, log)
        self.tail_repairs.take_role(slot, partition, log)
        self.in_sync.take_role(slot, partition, log)
        if log is None:
            self.low_watermarks.fail(slot, ErrorCode.NOT_LEADER_OR_FOLLOWER)
        else:
            self.low_watermarks.check(slot)

    def show_in_sync(self, slot: int, log: PartitionLog, partition: Partition) -> None:
        """Have produces with acks=all see whether enough replicas are in sync."""
        self.hosted.show_in_sync(slot, log, partition)

    def topic_config(self, name: str) -> TopicConfig:
        """The configs of a topic as they are now; those of the broker for an unknown one."""
        return self.hosted.topic_config(self.image.topics.get(name))

    def lead_repaired(self, slot: int) -> None:
        """The log of a partition has what the other replicas have: lead it, and open its
        coordinator.
        """
        self.coordinators.on_image(self.hosted.lead_repaired(slot))

    async def open_again(self, slots: Collection[int]) -> None:
        """Open logs for which there were no descriptors before."""
        self.coordinators.on_image(await self.hosted.open_again(slots))

    def take_settings(self) -> None:
        """Use the broker's dynamic settings as the image has them."""
        self.follow_settings(self.image.broker_config)
        self.logs.config = self.config
        if self.security is not None:
            self.security.follow(self.config)
        self.moving.take_settings()
        self.transaction_log.take_settings()
        self.followers.take_settings()
        self.in_sync.take_settings()

    # -- what its services need of each other --

    def led_log(self, slot: int) -> PartitionLog | None:
        """The log of a partition, if it is open and led here."""
        return self.hosted.led_log(slot)

    def held_log(self, slot: int) -> PartitionLog | None:
        """The log of a partition, if it is open and led or followed here."""
        return self.hosted.held_log(slot)

    def is_loading(self, slot: int) -> bool:
        """Whether a coordinator is loading this log, whose files must not change."""
        return self.coordinators.is_loading(slot)

    def on_marker(
        self, slot: int, offset: Offset, producer_id: int, epoch: int, commit: bool
    ) -> None:
        """A marker was appended: notify the partition's coordinator, if it has one."""
        self.coordinators.on_marker(slot, offset, producer_id, epoch, commit)

    def write_markers(self, markers: Iterable[calls.SlotMarker]) -> Pending[list[int]]:
        """Append markers to logs of this io worker; resolves to their error codes."""
        return self.transaction_log.write_markers(markers)

    def wake(self, slot: int) -> None:
        """Make waiting readers of the partition read its slot again."""
        self.loop.wake(slot)

    def access(self, principal: KafkaPrincipal, host: str) -> Access:
        """What a client may do, whose request a coordinator serves."""
        self.authorization.tick()
        return self.authorization.accesses.of(principal, host)

    def count(self, metric: MetricRow, amount: int) -> None:
        """Add to a counter."""
        self.counters.add(metric, amount)

    def count_own(self, slot: int, records: int, size: int) -> None:
        """Count a batch that this process has appended and no client has sent."""
        self.figures.count_own(self.table, slot, records, size)
        for metric, amount in ((OWN_BATCHES, 1), (OWN_MESSAGES, records), (OWN_BYTES, size)):
            self.counters.add(metric, amount)

    # -- produce --

    def open_lane(self, network: Address) -> Lane:
        end = self.context.lanes[network.index][self.address.index][1]
        cells, cell = self.processes.incarnation_cell(network)
        me = (self.address.kind, self.address.index, self.context.incarnation)
        return Lane(end.fileno(), me, network.index, cells, cell)

    def wait(self, timeout_ms: int) -> None:
        for fd in self.loop.turns(self.epoll.fileno(), timeout_ms):
            reader = self._readers.get(fd)
            if reader is not None:
                reader()

    def end_turn(self) -> None:
        due = self.loop.verification.next_ask_ms
        if due is not None and now_ms() >= due:
            self.loop.ask_again()
        # Both may append, so they run before the logs are published.
        self.cleaning.end_turn()
        self.coordinators.run_timers()
        self.followers.publish()
        # Everything appended is published here, and requests that wait for a commit are completed.
        # Responses from coordinators that result from this follow.
        self.lane_is_full = self.loop.end_turn()
        self.lane_is_full |= self.coordinators.end_turn()
        self.in_sync.end_turn()
        self.low_watermarks.end_turn()
        # Moves copy published data; readers must see the results of moves and logs.
        self.moving.end_turn()
        for slot in self.logs.turn():
            self.loop.wake(slot)
        # Appended records are synced where required, so the leader may learn of them.
        self.followers.end_turn()

    def metric_rows(self, lanes: list[Lane]) -> list[tuple[MetricRow, Callable[[], int]]]:
        loop, coordinators = self.loop, self.coordinators
        commit_path = coordinators.commit_path
        return [
            (COORDINATORS_LOADING, lambda: coordinators.loading),
            (OFFSET_COMMIT_REQUESTS, lambda: coordinators.commits + commit_path.commits),
            (OFFSET_COMMIT_TIME, lambda: (coordinators.commit_ns + commit_path.commit_ns) // 1000),
            (OFFSET_COMMITS, lambda: commit_path.offsets_committed),
            (OWN_BATCHES, lambda: commit_path.batches),
            (OWN_MESSAGES, lambda: commit_path.offsets_committed),
            (OWN_BYTES, lambda: commit_path.bytes_total),
            (PRODUCE_BYTES, lambda: loop.bytes_total),
            (PRODUCE_BATCHES, lambda: loop.batches_total),
            (PRODUCE_FAILURES, lambda: loop.failed_total),
            (PRODUCE_MESSAGES, lambda: loop.messages_total),
            (PRODUCES_WAITING, lambda: loop.waiting_count),
            (IO_IDLE, lambda: loop.idle_ns),
            (LOGS, lambda: self.logs.count),
            (FOLLOWED, lambda: self.followers.count),
            (FOLLOWED_FAILED, lambda: self.followers.failed_count),
            (FOLLOWED_BYTES, lambda: self.followers.bytes_total),
            (COMMITTED_CUTS, lambda: self.followers.committed_cuts),
            (FOLLOWER_LAG_MAX, lambda: self.followers.lag_max),
            (UNDER_REPLICATED, lambda: self.in_sync.under_replicated),
            (UNDER_MIN_ISR, lambda: self.hosted.under_min_isr),
            (ISR_SHRINKS, lambda: self.in_sync.shrinks),
            (TAIL_REPAIRS_WAITING, lambda: self.tail_repairs.waiting),
            (TAIL_REPAIRS_INCOMPLETE, lambda: self.tail_repairs.incomplete),
            (ISR_EXPANDS, lambda: self.in_sync.expands),
            (SEGMENTS_DAMAGED, lambda: self.logs.check.damaged_count),
            (LOG_DIRS_OFFLINE, lambda: len(self.logs.dirs.failures())),
            (
                MESSAGES_DROPPED,
                lambda: self.mailbox.dropped + sum(lane.dropped for lane in lanes),
            ),
        ]

    def is_quiet(self) -> bool:
        """Partitions that have just changed their leader are behind: what waits for them comes
        first.
        """
        return now_ms() >= self._image_ms + CALM_MS

    def tick_ms(self) -> int:
        timed = self.logs.has_unflushed or self.loop.is_waiting
        return TIMERS_TICK_MS if timed else super().tick_ms()

    def next_deadline_ms(self) -> int | None:
        deadline = self.coordinators.next_deadline_ms
        if self.loop.has_news and not self.lane_is_full:
            return 0  # there were appends or wake-ups after the last turn
        for other in (
            self.loop.verification.next_ask_ms,
            self.cleaning.next_deadline_ms(),
            self.moving.next_deadline_ms(),
            self.logs.next_deadline_ms,
            self.followers.next_deadline_ms(),
        ):
            if other is not None:
                deadline = min(other, deadline)
        return min(now_ms() + 1, deadline) if self.lane_is_full else deadline

    def on_storage_failure(self, slot: int) -> None:
        """A write or sync failed: the directory and its partitions are offline until a restart."""
        self.on_failed_slots(self.logs.fail_directory_of(slot))

    def on_failed_slots(self, slots: Sequence[int]) -> None:
        """The log directory of these slots is offline."""
        for gone in slots:
            self.hosted.has_failed(gone)
            self.coordinators.close(gone)
            self.followers.stop(gone)
            self.tail_repairs.stop(gone)
            self.in_sync.stop(gone)
            self.low_watermarks.fail(gone, ErrorCode.KAFKA_STORAGE_ERROR)
            self.loop.remove(gone, ErrorCode.KAFKA_STORAGE_ERROR)
            self.loop.wake(gone)

    def tick(self, now: int) -> None:
        self.totals.publish()
        self.show_sizes()
        for slot in self.logs.tick():
            self.loop.wake(slot)
        for slot, count in self.loop.expire_waiting(self.clock.monotonic_ms()):
            waited = self.logs.log(slot)
            name = f"slot {slot}" if waited is None else waited.name
            logger.warning("%s: %d operations were not committed in time", name, count)
        due = self.logs.shortages.due()
        if due:
            run(self.open_again(due)).then(raise_failure)
        self.transaction_log.tick()
        self.coordinators.tick(now)
        self.in_sync.tick(now)
        self.tail_repairs.tick(now)
        self.prove_followers()

    def show_sizes(self) -> None:
        """Note the sizes of logs whose segments have changed."""
        for slot in self.figures.resized(self.table):
            log = self.logs.log(slot)
            if log is not None:
                sealed = log.segments.size - log.segments.active.size
                self.figures.show_size(self.table, slot, len(log.segments), sealed)

    def prove_followers(self) -> None:
        """A follower that has caught up has lost nothing in a power failure any more."""
        if self.logs.suspects:
            for slot in self.hosted.suspect_followers():
                if self.followers.has_caught_up(slot):
                    self.hosted.has_caught_up(slot)

    def shutdown(self) -> None:
        self.followers.close()
        self.coordinators.close_links()
        self.tail_repairs.close()
        self.wait(0)
        self.end_turn()
        self.logs.close(clean=True)  # reports failed directories to the supervisor
        # Logs that are not open yet are as the last shutdown left them.
        if not self.has_joined and not all(self.context.clean_start.values()):
            self.exit_code = EXIT_CRASH  # no clean-shutdown marker: the next start checks the logs
