"""The in-sync replicas (ISR) of the partitions that an io worker leads.

Where the followers are and what is committed, ``_ext/log/replica_set`` knows; this module decides
who is in sync, and asks the controller process to have the controller agree. One change of a
partition is asked for at a time. Until its answer is known, the partition counts on the larger of
both: nothing is committed that a replica lacks that may be in sync, and acks=all needs as many as
surely are.

A replica joins when it has all that is committed and has followed this leader; it leaves when it
has been behind for replica.lag.time.max.ms. One that has asked for nothing for a third of that
time, while records wait for it, leaves if min.insync.replicas are in sync without it. One that
fetches below the high watermark has lost records, and leaves at once; so does one whose broker is
gone.
"""

from __future__ import annotations

import logging
from collections.abc import Collection, Sequence
from itertools import islice
from typing import TYPE_CHECKING, Protocol

from kbroker._ext.log.replica_set import ReplicaSet
from kbroker.errors import ErrorCode, WireError
from kbroker.ipc import calls
from kbroker.ipc.calls import IsrResult, WantedIsr
from kbroker.ipc.process_table import CONTROLLER
from kbroker.ipc.rpc import run
from kbroker.peers.evidence import STILL_SERVED_MS
from kbroker.workers.base import now_ms, raise_failure

if TYPE_CHECKING:
    from kbroker._ext.io.io_loop import IoLoop
    from kbroker._ext.shared.session_times import SessionTimes
    from kbroker.cluster.image import ClusterImage
    from kbroker.config.loader import BrokerConfig
    from kbroker.ipc.rpc import Rpc
    from kbroker.replication.partition import Partition
    from kbroker.storage.log.partition_log import PartitionLog

logger = logging.getLogger(__name__)

# BOUND: changes in one call.
WANTED_MAX = 1_000
# The delay before a failed call is retried.
ASK_AGAIN_MS = 500
# How long a change rejected by the controller is not proposed again in the same leader epoch.
REJECTED_MS = 10_000
# Parts of replica.lag.time.max.ms: how long a follower may be silent, and how often that is looked
# at. A follower asks twice as often at least, so it is not late but cut off, or stands still.
SILENT_SHARE, LOOK_SHARE = 3, 6


class InSyncProcess(Protocol):
    """What this needs of the io worker."""

    rpc: Rpc
    image: ClusterImage

    @property
    def config(self) -> BrokerConfig: ...

    def show_in_sync(self, slot: int, log: PartitionLog, partition: Partition) -> None:
        """Have produces with acks=all see whether enough replicas are in sync."""


class Led:
    """A partition that is led here with followers."""

    __slots__ = ("log", "partition", "replicas", "shrink_after_ms", "slot", "wanted")

    def __init__(
        self, slot: int, partition: Partition, log: PartitionLog, replicas: ReplicaSet
    ) -> None:
        self.slot = slot
        self.partition = partition
        self.log = log
        self.replicas = replicas
        # The ISR proposed to the controller, without a result.
        self.wanted: WantedIsr | None = None
        self.shrink_after_ms = 0


class InSync:
    """Made by the io worker, after its loop. times: of the followers' sessions."""

    def __init__(
        self, process: InSyncProcess, loop: IoLoop, times: SessionTimes, *, broker_id: int
    ) -> None:
        self._process = process
        self._loop = loop
        self._times = times
        self._broker_id = broker_id
        self._led: dict[int, Led] = {}
        # Proposals of an earlier process, by partition.
        self._asked_before: dict[tuple[str, int], WantedIsr] = {}
        self._to_ask: list[tuple[int, WantedIsr]] = []
        self._next_look_ms = 0
        # The last tick, and since when this process has listened without standing still itself.
        self._ticked_ms = self._listening_ms = 0
        # Slots of partitions with replicas that are not in sync.
        self._incomplete: set[int] = set()
        # Brokers that are gone, and when their connections had ended.
        self._gone: dict[int, int] = {}
        self.shrinks = self.expands = 0

    # -- roles --

    def take_asked_before(self, wanted: Sequence[WantedIsr]) -> None:
        """An earlier process has asked for these, and the controller may have agreed; comes before
        the first role.
        """
        self._asked_before = {one.key: one for one in wanted}

    def has_joined(self) -> None:
        """Every log is open: what was asked for other partitions is no concern of this process."""
        self._asked_before = {}

    def take_role(self, slot: int, partition: Partition, log: PartitionLog | None) -> None:
        """The partition is what ``partition`` says from now on. log: None while it is not open."""
        if log is None or not partition.leads or partition.is_alone:
            self.stop(slot)
            return
        led = self._led.get(slot)
        if led is None or led.log is not log:
            led = Led(slot, partition, log, ReplicaSet(self._times, self._lag_ms))
            self._led[slot] = led
        if led.replicas.leader_epoch != partition.leader_epoch:
            self._begin_epoch(led)
        if partition.wanted_isr is None:
            led.wanted = None
        led.shrink_after_ms = 0
        led.replicas.retry_all()
        led.replicas.set_assigned([b for b in partition.replicas if b != self._broker_id])
        self._resume(led)
        self._show(led)
        log.appender.replicas = led.replicas
        self._loop.admit_followers(slot)
        self._loop.touch(log.appender)
        self._check(led)

    def _begin_epoch(self, led: Led) -> None:
        log, partition = led.log, led.partition
        latest, start, _ = log.epochs.newest
        if latest != partition.leader_epoch:
            start = log.log_end_offset
        led.replicas.begin_epoch(partition.leader_epoch, start, log.log_end_offset, now_ms())

    def _resume(self, led: Led) -> None:
        """Ask again for what an earlier process has asked for."""
        asked = self._asked_before.pop(led.log.key, None)
        partition = led.partition
        if asked is None or asked.leader_epoch != partition.leader_epoch:
            return
        if asked.partition_epoch == partition.partition_epoch:
            self._want(led, asked)

    def stop(self, slot: int) -> None:
        """The partition is not led here with followers: somebody else leads it, or nobody follows,
        or its log is closed or deleted.
        """
        led = self._led.pop(slot, None)
        self._incomplete.discard(slot)
        if led is not None:
            led.log.appender.replicas = None

    def take_settings(self) -> None:
        """Follow the settings as they are now."""
        for led in self._led.values():
            led.replicas.lag_ms = self._lag_ms

    def on_brokers(self) -> None:
        """Other brokers live: a replica that could not join before may do so."""
        self._loop.isr_to_check.update(self._incomplete)

    def follower_gone(self, broker: int, closed_ms: int) -> int:
        """A broker cannot be reached since then: it leaves the in-sync replicas of all partitions
        for which it has not fetched any more. Returns the time of its last request, 0 without one.
        """
        self._gone[broker] = closed_ms
        heard_ms = 0
        for led in self._led.values():
            heard_ms = max(heard_ms, self._last_request_ms(led, broker))
            if broker in led.partition.isr:
                self._check(led)
        return heard_ms

    def _last_request_ms(self, led: Led, broker: int) -> int:
        known = led.replicas.describe(broker)
        return 0 if known is None else self._times.read(known["session"])

    def _silent(self, led: Led, now: int, leaving: Collection[int]) -> dict[int, int]:
        """In-sync followers for which records wait, and that have asked for nothing for too long,
        with the time in ms; none if too few are in sync without them.
        """
        silent = {}
        for broker in self._others(led.partition.isr):
            if broker not in leaving:
                silent_ms = self._silent_for(led, broker, now)
                if silent_ms > self._silence_ms:
                    silent[broker] = silent_ms
        left = len(led.partition.isr) - len(leaving) - len(silent)
        return silent if left >= led.partition.least_in_sync else {}

    def _silent_for(self, led: Led, broker: int, now: int) -> int:
        """How long a follower has asked for nothing; 0 if it has all records."""
        known = led.replicas.describe(broker)
        if known is None or known["end"] == led.replicas.leader_end:
            return 0
        asked_ms: int = max(
            known["caught_up_ms"], known["asked_ms"], self._last_request_ms(led, broker)
        )
        return now - max(asked_ms, self._listening_ms)

    def _is_gone(self, led: Led, broker: int) -> bool:
        """Whether it is known to be gone, and has not fetched since. One that has is back."""
        closed_ms = self._gone.get(broker)
        if closed_ms is None:
            return False
        if self._last_request_ms(led, broker) <= closed_ms + STILL_SERVED_MS:
            return True
        del self._gone[broker]
        return False

    @property
    def under_replicated(self) -> int:
        """Partitions with replicas that are not in sync."""
        return len(self._incomplete)

    @property
    def _lag_ms(self) -> int:
        lag_ms: int = self._process.config["replica.lag.time.max.ms"]
        return lag_ms

    @property
    def _silence_ms(self) -> int:
        """Longer than a follower's request waits here (``leader_link.IDLE_WAIT_SHARE``)."""
        wait_ms: int = self._process.config["replica.fetch.wait.max.ms"]
        return max(self._lag_ms // SILENT_SHARE, 2 * wait_ms)

    # -- the loop --

    def end_turn(self) -> None:
        """Check what followers gave reason to check, and ask for what that changes."""
        if self._loop.isr_to_check:
            slots = list(self._loop.isr_to_check)
            self._loop.isr_to_check.clear()
            for slot in slots:
                led = self._led.get(slot)
                if led is not None:
                    self._check(led)
        if self._to_ask:
            asked, self._to_ask = iter(self._to_ask), []
            while some := list(islice(asked, WANTED_MAX)):
                run(self._ask(some)).then(raise_failure)

    def tick(self, now: int) -> None:
        """Look for replicas that are behind or silent, now and then."""
        look_ms = max(self._lag_ms // LOOK_SHARE, 1)
        if now - self._ticked_ms > look_ms:
            self._listening_ms = now  # nobody could be heard meanwhile
        self._ticked_ms = now
        if now < self._next_look_ms:
            return
        self._next_look_ms = now + look_ms
        for led in list(self._led.values()):
            if led.log.high_watermark < led.log.log_end_offset:
                # It may rise without a fetch: a replica that is not in sync counts for a while.
                self._loop.touch(led.log.appender)
                self._check(led)
            elif led.slot in self._incomplete:
                self._check(led)

    # -- decisions --

    def _check(self, led: Led) -> None:
        """Ask for other in-sync replicas if some of them have to go, or others may join."""
        if led.wanted is not None:
            return
        now, high_watermark, isr = now_ms(), led.log.high_watermark, led.partition.isr
        leaving: dict[int, str] = {}
        if now >= led.shrink_after_ms:
            for broker, behind_ms in led.replicas.lagging(now).items():
                leaving[broker] = f"has been behind for {behind_ms} ms"
            for broker in led.replicas.short(high_watermark):
                leaving[broker] = "has lost records below the high watermark"
            for broker, silent_ms in self._silent(led, now, leaving).items():
                leaving[broker] = f"has asked for nothing for {silent_ms} ms"
            for broker in list(self._gone):
                if broker in isr and self._is_gone(led, broker):
                    leaving[broker] = "is gone: its connections ended, its listener refuses"
        joining = self._joining(led, now)
        if not leaving and not joining:
            return
        wanted = [broker for broker in isr if broker not in leaving] + joining
        why = [f"broker {broker} {text}" for broker, text in leaving.items()]
        why += [f"broker {broker} has caught up" for broker in joining]
        ends = {b: self._end_of(led, b) for b in (*leaving, *joining)}
        logger.info(
            "%s: asking for in-sync replicas %s instead of %s because %s; high watermark %d, "
            "log end %d, theirs %s",
            led.log.name, wanted, list(isr), ", ".join(why), high_watermark,
            led.log.log_end_offset, ends,
        )  # fmt: skip
        partition = led.partition
        change = WantedIsr(*led.log.key, partition.leader_epoch, wanted, partition.partition_epoch)
        self._want(led, change)
        self._show(led)

    def _joining(self, led: Led, now: int) -> list[int]:
        """What has caught up and lives. A broker that is gone may be registered for as long as its
        session lasts, and has caught up for as long as nothing is written.
        """
        live = self._process.image.brokers
        caught_up = led.replicas.joining(led.log.high_watermark, now)
        return [one for one in caught_up if one in live and not self._is_gone(led, one)]

    @staticmethod
    def _end_of(led: Led, broker: int) -> int:
        known = led.replicas.describe(broker)
        return -1 if known is None else int(known["end"])

    def _want(self, led: Led, wanted: WantedIsr) -> None:
        led.wanted = wanted
        led.partition.wanted_isr = tuple(wanted.isr)
        self._to_ask.append((led.slot, wanted))

    def _show(self, led: Led) -> None:
        """Have the high watermark and acks=all follow from who is in sync."""
        partition = led.partition
        led.replicas.is_changing = led.wanted is not None
        led.replicas.set_in_sync(
            self._others(partition.isr), self._others(partition.maximal_isr), now_ms()
        )
        self._loop.show_followers(led.slot, led.replicas)
        self._process.show_in_sync(led.slot, led.log, partition)
        if len(partition.isr) < len(partition.replicas):
            self._incomplete.add(led.slot)
        else:
            self._incomplete.discard(led.slot)

    def _others(self, brokers: Collection[int]) -> list[int]:
        return [broker for broker in brokers if broker != self._broker_id]

    # -- the controller --

    async def _ask(self, asked: Sequence[tuple[int, WantedIsr]]) -> None:
        request = calls.IsrChangeRequests([wanted for _, wanted in asked])
        try:
            results = await self._process.rpc.call(CONTROLLER, calls.ALTER_ISR, request)
        except WireError:
            # The controller process has restarted, or there was no response so far.
            await self._process.rpc.sleep(ASK_AGAIN_MS)
            self._to_ask += [
                (slot, wanted)
                for slot, wanted in asked
                if (led := self._led.get(slot)) is not None and led.wanted is wanted
            ]
            return
        for (slot, wanted), result in zip(asked, results, strict=True):
            led = self._led.get(slot)
            if led is not None and led.wanted is wanted:
                self._take_result(led, wanted, result)

    def _take_result(self, led: Led, wanted: WantedIsr, result: IsrResult) -> None:
        state, partition = result.state, led.partition
        if result.error is not ErrorCode.NONE or state is None:
            # The outcome is unknown: the proposed ISR counts until the controller responds.
            logger.info(
                "%s: the controller rejected the in-sync replicas %s (%s); waiting for a "
                "LeaderAndIsr",
                led.log.name, wanted.isr, result.error.name,
            )  # fmt: skip
            return
        led.wanted = None
        before = set(partition.isr)
        if partition.adopt(state.isr, state.partition_epoch):
            self.shrinks += bool(before - set(partition.isr))
            self.expands += bool(set(partition.isr) - before)
        for rejected in set(wanted.isr) - set(partition.isr):
            led.replicas.retry_at(rejected, now_ms() + REJECTED_MS)
        if set(partition.isr) - set(wanted.isr):
            led.shrink_after_ms = now_ms() + REJECTED_MS
        self._show(led)
        for broker in before - set(partition.isr):
            if self._silent_for(led, broker, now_ms()) > self._silence_ms:
                led.replicas.forget(broker)
        for broker in list(self._gone):
            if broker not in partition.isr and self._is_gone(led, broker):
                led.replicas.forget(broker)
        logger.info(
            "%s: in-sync replicas are now %s (partition epoch %d)",
            led.log.name, list(partition.isr), partition.partition_epoch,
        )  # fmt: skip
        # A removed replica does not hold back the high watermark any more; after a new one there
        # may be another.
        self._loop.touch(led.log.appender)
        self._loop.isr_to_check.add(led.slot)
