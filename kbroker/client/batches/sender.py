"""What becomes of batches that were not simply acknowledged, for every producer.

``SendLoop.run`` does the rest without the GIL. A turn of the sender is that call and what it leads
to; whoever drives it, and asks brokers beside it, differs: a thread (``producer.sender_thread``),
or the caller's own calls (``driven_sender``). See docs/decisions/0038-one-producer-engine.md.
"""

from __future__ import annotations

import logging
import random
import socket
import ssl
import threading
import time
from collections.abc import Callable
from typing import Any, Protocol, TypeVar

from kbroker._ext.client.appender import Appender
from kbroker._ext.client.send_loop import SendLoop
from kbroker._ext.client.sent_batch import SentBatch
from kbroker.client.batches.answers import FENCED, MOVED, OUT_OF_STEP, UNSURE, words_of
from kbroker.client.batches.producer_metadata import ProducerMetadata
from kbroker.client.batches.splitting import halves
from kbroker.client.connections.cluster import Cluster
from kbroker.client.connections.connection import Connection
from kbroker.client.connections.ending import Ending
from kbroker.client.errors import (
    ClientError,
    ConnectionLost,
    RejectedError,
    Timeout,
    TransactionState,
    UnsupportedByBroker,
)
from kbroker.errors import ErrorCode
from kbroker.protocol.api import ApiKey
from kbroker.record.compression import CODEC_NAMES, ZSTD
from kbroker.wire.stream import Malformed, RequestInFlight, body_of

logger = logging.getLogger("kbroker.client.producer.sender")  # programs set its level

# Versions of Produce: the first with batches of format 2; with zstd; the last without and with
# partitions that are added to a transaction by it.
_FIRST_FORMAT_2 = 3
_FIRST_ZSTD = 7
_LAST_EXPLICIT = 11
LAST_VERSION = 12
# BOUND: how long the loop sleeps without an event.
_HOUSE_S = 1.0
_EPOCH_MAX = 32_767
_NO_CODEC = ErrorCode.UNSUPPORTED_COMPRESSION_TYPE
_NO_ZSTD = "Brokers before Kafka 2.1 do not support zstd; they support lz4, snappy and gzip."
# After so long without a response it is told as a reason, and others are asked who leads.
_NOTICED_S, _SILENT_S = 1.0, 3.0


Result = TypeVar("Result")


class SenderSettings(Protocol):
    """By Kafka's names. given: those that the user has set."""

    @property
    def given(self) -> frozenset[str]: ...

    def __getitem__(self, name: str, /) -> Any: ...


class BlockingCalls(Protocol):
    """Calls that may wait for a broker: ``then`` has their result or exception, in the sender's
    thread, now or later.
    """

    def run(
        self,
        what: str,
        call: Callable[[], Result],
        then: Callable[[Result | None, Exception | None], Any],
    ) -> None: ...


class BatchSender:
    """transaction_failed: called with an error that nothing may be sent after before somebody has
    dealt with it: it ends the open transaction, or the producer; None: the next ones are sent, with
    other sequence numbers. implicit: whether partitions need not be added to a transaction
    (KIP-890); may change until the first connection.
    """

    beside: BlockingCalls
    # Whether a batch that its broker finds too large is sent as smaller ones.
    splits = True

    clock = staticmethod(time.monotonic)

    def __init__(
        self,
        settings: SenderSettings,
        pool: Appender,
        loop: SendLoop,
        cluster: Cluster,
        transaction_failed: Callable[[ClientError], None] | None,
        metadata: type[ProducerMetadata] = ProducerMetadata,
    ) -> None:
        self._settings = settings
        self._pool = pool
        self._loop = loop
        self._cluster = cluster
        self._transaction_failed = transaction_failed
        self._timers: list[tuple[float, Callable[[], object]]] = []
        self._stopping = False
        self._ending = Ending()  # of connections under way
        self._failures: dict[int, int] = {}  # of connections in a row, by node
        self._unreachable: dict[int, Exception] = {}  # why there is no connection, by node
        self._links: dict[int, Connection] = {}
        self._silent_since: dict[str, float] = {}  # by address; another one is made for each turn
        self.connections_made = self.connections_closed = 0
        self._last_errors: dict[tuple[str, int], str] = {}
        self._answering = ""  # the address whose response is looked at
        self._identity = (-1, -1)
        self.implicit = False
        self._transaction = 0  # the number of the latest one, with the lock
        self._beginning = threading.Lock()
        self.add_partitions: Callable[[list[tuple[str, int]]], None] | None = None
        # While a transaction is aborted, what has not been written is given up; unsure: something
        # may be written after all, or the sequence numbers have a gap.
        self.aborting = False
        self.unsure = False
        self.metadata = metadata(
            cluster,
            pool,
            backoff=settings["retry.backoff.ms"] / 1000,
            backoff_max=settings["retry.backoff.max.ms"] / 1000,
            done=lambda heard: pool.wake(),
        )

    # -- any thread

    def begin_transaction(self) -> None:
        """No partition is in it yet, whatever is still answered about the one before."""
        with self._beginning:
            self._transaction += 1
            self._pool.begin_transaction()
        self.unsure = False

    def trouble(self) -> str:
        """What keeps batches from being acknowledged, as far as that is known."""
        now = self.clock()
        reasons = [
            *map(str, list(self._unreachable.values())),
            *(f"{who}: no response for {now - at:.0f} s" for who, at in self._silent_since.items()),
            *list(self._last_errors.values()),
        ]
        return reasons[0] if reasons else str(self.metadata.trouble or "")

    def waits_for(self) -> str:
        """What keeps them, or at least who has them."""
        reason = self.trouble()
        if reason or not self._links:
            return reason
        links = list(self._links.values())
        return f"sent to {', '.join(link.address for link in links)}"

    def set_producer(self, producer_id: int, epoch: int) -> None:
        """The id and epoch of what is sent from now on."""
        self._identity = producer_id, epoch
        self._pool.set_producer(producer_id, epoch)

    # -- a turn

    def _turn(self) -> None:
        self._take_events(self._seconds_left())
        self._look_after()

    def _look_after(self) -> None:
        """What is due, whatever has happened."""
        now = self.clock()
        due = [call for at, call in self._timers if at <= now]
        self._timers = [timer for timer in self._timers if timer[0] > now]
        for call in due:
            call()
        if self.aborting:
            self._give_up(self._loop.take_all())
        if now - self.metadata.heard_at > self._settings["metadata.max.age.ms"] / 1000:
            self.metadata.refresh()
        self._replace_expired()
        self._leave_silent()

    def _take_events(self, seconds: float) -> None:
        for event in self._loop.run(seconds):
            try:
                self._take(event)
            except BaseException as error:
                # INVARIANT: every future ends, also where nothing could be decided.
                logger.exception("cannot handle what a broker did; the records concerned fail")
                self._fail_undecided(event[-1], error)

    def _take(self, event: tuple[Any, ...]) -> None:
        handle: Callable[..., None] = getattr(self, f"_on_{event[0]}")
        handle(*event[1:])

    def _seconds_left(self) -> float:
        soonest = min((at for at, _ in self._timers), default=float("inf"))
        return max(0.0, min(_HOUSE_S, soonest - self.clock()))

    def later(self, seconds: float, call: Callable[[], object]) -> None:
        """Call it in that many seconds. In the sender's thread."""
        self._timers.append((self.clock() + seconds, call))

    def _fail_undecided(self, batches: Any, error: BaseException) -> None:
        failure = ClientError(f"{type(error).__name__}: {error}")
        for batch in batches if isinstance(batches, list) else ():
            if isinstance(batch, SentBatch) and batch.taken:
                self._loop.fail(batch, failure)
                self._break_transaction(failure)

    # -- events

    def _on_ended(self, callbacks: list[tuple[Any, Callable[[Any], Any]]]) -> None:
        for future, function in callbacks:
            try:
                function(future)
            except BaseException:  # sys.exit() in a callback ends no thread
                logger.exception("a callback of a sent record raised an error")

    def _on_connect(self, node: int) -> None:
        address = self._cluster.address(node)
        if address is None:
            self._on_unreachable(node, ConnectionLost(f"node {node}", "its address is not known"))
            return
        self.beside.run(
            f"connect-{node}",
            lambda: self._connect(*address),
            lambda made, error: self._take_connection(node, made, error),
        )

    def _connect(self, host: str, port: int) -> tuple[Connection, int]:
        seconds = self._settings["socket.connection.setup.timeout.ms"] / 1000
        connection = Connection(
            host,
            port,
            self._cluster.security,
            client_id=self._cluster.client_id,
            deadline=self.clock() + seconds,
            ending=self._ending,
        )
        return connection, self._version_of(connection)

    def _version_of(self, connection: Connection) -> int:
        """Of Produce. Raises UnsupportedByBroker."""
        explicit = self._settings["transactional.id"] is not None and not self.implicit
        most = _LAST_EXPLICIT if explicit else LAST_VERSION
        version = connection.version_of(ApiKey.PRODUCE, most)
        if version < _FIRST_FORMAT_2:
            connection.close()
            what = "Produce of Kafka 0.11 and newer"
            raise UnsupportedByBroker(connection.address, what)
        return version

    def _take_connection(
        self, node: int, made: tuple[Connection, int] | None, error: Exception | None
    ) -> None:
        if made is None:
            self._on_unreachable(node, error)
            return
        connection, version = made
        if self._stopping:
            connection.close()
            return
        plain = connection.take_socket()
        for option, name in (
            (socket.SO_RCVBUF, "receive.buffer.bytes"),
            (socket.SO_SNDBUF, "send.buffer.bytes"),
        ):
            if self._settings[name] > 0:
                plain.setsockopt(socket.SOL_SOCKET, option, self._settings[name])
        self._failures.pop(node, None)
        self._unreachable.pop(node, None)
        self._note_closed(node)
        self.connections_made += 1
        self._links[node] = connection
        self._loop.connect(node, plain, isinstance(plain, ssl.SSLSocket), version)

    def _on_unreachable(self, node: int, error: Exception | None) -> None:
        failures = self._failures[node] = self._failures.get(node, 0) + 1
        logger.debug("cannot connect to node %d: %s", node, error)
        if error is not None:
            self._unreachable[node] = error
        pause = self._pause("reconnect.backoff.ms", "reconnect.backoff.max.ms", failures)
        self._loop.unreachable(node, pause)
        if isinstance(error, ClientError) and not error.retriable:
            self.fail_all(error)
            return
        self.metadata.refresh()  # the leaders may be others by now

    def _leave_silent(self) -> None:
        """A broker that does not respond, and leads nothing any more by what others say, keeps no
        batch: it may be silent until ``request.timeout.ms``, or for ever.
        """
        silent = {node: self._loop.silent_s(node) for node in self._links}
        now = self.clock()
        self._silent_since = {
            self._links[node].address: now - seconds
            for node, seconds in silent.items()
            if seconds >= _NOTICED_S
        }
        for node, silent_s in silent.items():
            if silent_s < _SILENT_S:
                continue
            link = self._links[node]
            asked_at = now - silent_s + _SILENT_S
            if self.metadata.heard_at > asked_at and node not in self.metadata.leading:
                logger.info("%s leads nothing any more, and is silent", link.address)
                self._loop.disconnect(node, f"no response for {silent_s:.0f} s")
            else:
                self.metadata.refresh()

    def _note_closed(self, node: int) -> Connection | None:
        link = self._links.pop(node, None)
        self.connections_closed += link is not None
        return link

    def _pause(self, first: str, last: str, failures: int) -> float:
        grown = float(self._settings[first]) * 2.0 ** min(max(failures - 1, 0), 30)
        most = float(max(self._settings[last], self._settings[first]))
        return min(grown, most) / 1000 * random.uniform(0.8, 1.2)

    def _on_lost(self, node: int, why: str, batches: list[SentBatch]) -> None:
        link = self._note_closed(node)
        if self._stopping:
            return
        address = link.address if link is not None else f"node {node}"
        if batches:
            logger.info(
                "lost the connection to %s: %s; sending %d batches again",
                address,
                why,
                len(batches),
            )
        error = ConnectionLost(address, why)
        self._loop.unreachable(node, self._settings["reconnect.backoff.ms"] / 1000)
        self.metadata.refresh()
        for batch in batches:
            self._retry_or_fail(batch, error, unsure=True)

    def _on_leaders(self, topics: list[str]) -> None:
        self.metadata.refresh()
        self.later(self._settings["retry.backoff.ms"] / 1000, self._loop.leaders_known)

    def _on_add(self, parts: list[tuple[str, int]]) -> None:
        assert self.add_partitions is not None
        if self.implicit:
            self._pool.added(parts, True)
            return
        add, transaction = self.add_partitions, self._transaction
        self.beside.run(
            "add", lambda: add(parts), lambda _, error: self._added(transaction, parts, error)
        )

    def _added(
        self, transaction: int, parts: list[tuple[str, int]], error: Exception | None
    ) -> None:
        if self._mark_added(transaction, parts, error is None) and error is not None:
            failure = error if isinstance(error, ClientError) else ClientError(str(error))
            self._break_transaction(failure)
            self.fail_all(failure)

    def _mark_added(self, transaction: int, parts: list[tuple[str, int]], are_added: bool) -> bool:
        """False: the next transaction has begun, which has neither these partitions nor an error of
        theirs.
        """
        with self._beginning:
            if transaction != self._transaction:
                return False
            self._pool.added(parts, are_added)
        return True

    def _on_expired(self, batches: list[SentBatch]) -> None:
        seconds = self._settings["delivery.timeout.ms"] / 1000
        for batch in batches:
            key = (batch.topic, batch.partition)
            last = self._last_errors.get(key)
            why = last if last is not None else self._why_not_sent(batch)
            if batch.attempts:
                self.unsure = True
            self._fail(batch, Timeout(f"the delivery to {key[0]}-{key[1]}", seconds, why))

    def _why_not_sent(self, batch: SentBatch) -> str:
        what = "it was not acknowledged" if batch.attempts else "its leader was not reached"
        return f"{what}: {trouble}" if (trouble := self.trouble()) else what

    def _on_answered(self, node: int, version: int, frame: bytes, batches: list[SentBatch]) -> None:
        try:
            request = RequestInFlight(ApiKey.PRODUCE, version, 0)  # its number has been compared
            response = request.decoded(body_of(frame, request))
        except Malformed as error:
            self._loop.disconnect(node, f"not a Kafka response: {error}")
            lost = ConnectionLost(f"node {node}", str(error))
            for batch in batches:
                self._retry_or_fail(batch, lost, unsure=True)
            return
        self._cluster.learn(response.node_endpoints or ())
        rows = {
            (topic.name, row.index): row
            for topic in response.responses
            for row in topic.partition_responses
        }
        link = self._links.get(node)
        self._answering = link.address if link is not None else f"node {node}"
        for batch in batches:
            self._take_row(batch, node, version, rows.get((batch.topic, batch.partition)))

    # -- decisions

    def _take_row(self, batch: SentBatch, node: int, version: int, row: Any) -> None:
        if batch.ended:
            return
        what = f"produce to {batch.topic}-{batch.partition}"
        if row is None:
            self._fail(batch, RejectedError(-1, what, "the response does not mention the batch"))
            return
        code = row.error_code
        if code in (ErrorCode.NONE, ErrorCode.DUPLICATE_SEQUENCE_NUMBER):
            self._loop.complete(batch, row.base_offset, row.log_append_time_ms)
            self._last_errors.pop((batch.topic, batch.partition), None)
            return
        error = RejectedError(code, what, words_of(row))
        if version < _FIRST_ZSTD and batch.codec == ZSTD and error.code not in MOVED:
            # Such a broker cannot read the batch, and says only that something went wrong.
            self._fail(batch, RejectedError(_NO_CODEC, what, _NO_ZSTD))
            return
        if error.code == ErrorCode.MESSAGE_TOO_LARGE and self._may_split(batch):
            self._split_or_fail(batch, error)
            return
        if error.code in MOVED:
            hint = row.current_leader
            leader, epoch = (hint.leader_id, hint.leader_epoch) if hint is not None else (-1, -1)
            # A hint of an older epoch is not taken: it may be of another topic with that name.
            if not self._pool.set_leader(batch.topic, batch.partition, leader, epoch, node):
                self.metadata.refresh()
        if batch.producer[2] >= 0 and error.code in OUT_OF_STEP:
            self._resume_sequence(batch, error)
        elif batch.producer[2] >= 0 and error.code in FENCED and self._transaction_failed is None:
            self._resume_sequence(batch, error)
        else:
            self._retry_or_fail(batch, error, unsure=error.code in UNSURE)

    def _may_split(self, batch: SentBatch) -> bool:
        return self.splits and batch.records > 1 and not self.aborting

    def _split_or_fail(self, batch: SentBatch, error: ClientError) -> None:
        """COMPAT: as Java's. The parts follow one another with the numbers that the batch had, and
        what is behind them waits, so the order stays; halves are halved until a broker takes them.
        """
        name = f"compression.{CODEC_NAMES[batch.codec]}.level"
        level = self._settings[name] if name in self._settings.given else None
        try:
            parts = halves(batch.data, level)
        except ValueError:
            self._retry_or_fail(batch, error)
            return
        logger.debug("%s: sending %d records as %d batches", error, batch.records, len(parts))
        self._loop.split(batch, parts)

    def _resume_sequence(self, batch: SentBatch, error: ClientError) -> None:
        """KIP-360: behind an undecided batch, wait for it; else the broker has lost the state, or
        an earlier batch has failed, and all that follows begins again with the next epoch.

        COMPAT: a batch whose successors were appended fails, in Java's producer once its delivery
        times out. The log began with them, as that of a topic does which was created again while
        they were on their way, or the leader has forgotten older batches: with other numbers it
        would be out of order, or there twice.
        """
        if not self._loop.is_oldest(batch) or not self._loop.is_alone(batch):
            self._put_back(batch, error)
        elif self._transaction_failed is not None or self._loop.is_overtaken(batch):
            self._fail(batch, error)
        else:
            self._renumber(batch, error)

    def _renumber(self, batch: SentBatch, error: ClientError) -> None:
        producer_id, epoch, _ = batch.producer
        if (producer_id, epoch) == self._identity:
            if epoch < _EPOCH_MAX:
                self.set_producer(producer_id, epoch + 1)
            else:
                self._pool.set_producer(-1, -1)
                self._identity = -1, -1
                self.ask_identity()
        self._loop.rewrite(batch)
        self._retry_or_fail(batch, error, retriable=True)

    def ask_identity(self) -> None:
        """Replaced by the producer: asks for a producer id, if it is idempotent."""

    def _retry_or_fail(
        self,
        batch: SentBatch,
        error: ClientError,
        *,
        unsure: bool = False,
        retriable: bool | None = None,
    ) -> None:
        again = error.retriable if retriable is None else retriable
        if again and not self.aborting and batch.attempts <= self._settings["retries"]:
            self._put_back(batch, error)
            return
        self.unsure = self.unsure or unsure
        if batch.producer[2] >= 0 and not unsure and self._transaction_failed is None:
            # The numbers of what follows have a gap now.
            self._skip_numbers(batch)
        self._fail(batch, error)

    def _skip_numbers(self, batch: SentBatch) -> None:
        producer_id, epoch, _ = batch.producer
        if not self._loop.is_oldest(batch):
            return  # that of older ones is unknown: their numbers must stay
        if (producer_id, epoch) == self._identity and epoch < _EPOCH_MAX:
            self.set_producer(producer_id, epoch + 1)
            self._loop.rewrite(batch)

    def _put_back(self, batch: SentBatch, error: ClientError) -> None:
        by = f" (by {self._answering})" if isinstance(error, RejectedError) else ""
        self._last_errors[batch.topic, batch.partition] = f"{error}{by}"
        pause = self._pause("retry.backoff.ms", "retry.backoff.max.ms", batch.attempts)
        self._loop.put_back(batch, pause)

    def _fail(self, batch: SentBatch, error: ClientError) -> None:
        self._loop.fail(batch, error)
        if not self.aborting:
            self._break_transaction(error)
        elif batch.producer[2] >= 0:
            self.unsure = True  # the numbers of what follows have a gap now

    def fail_all(self, error: ClientError) -> None:
        """Nothing that waits can be sent. In the sender's thread."""
        for batch in self._loop.take_all():
            self._fail(batch, error)

    def _break_transaction(self, error: ClientError) -> None:
        if self._transaction_failed is not None:
            self._transaction_failed(error)

    def _give_up(self, batches: list[SentBatch]) -> None:
        for batch in batches:
            self.unsure = self.unsure or batch.producer[2] >= 0  # perhaps as a part of another
            self._loop.fail(batch, TransactionState("the transaction was aborted"))

    def _replace_expired(self) -> None:
        """Before a broker ends the session of a SASL login, connect again, between two requests."""
        for node, link in list(self._links.items()):
            if link.expired and self._loop.in_flight(node) == 0:
                self._note_closed(node)
                self._loop.disconnect(node, "its authentication expires")
