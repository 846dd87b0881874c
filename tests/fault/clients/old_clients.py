"""Programs of Kafka 0.8: its producers, its simple consumer, and groups by ZooKeeper."""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from fault.clients.handles import Given
from fault.clients.readers import COMMIT_EVERY_S, POLL_S
from fault.clients.writers import CLOSE_S, PAUSE_S, Row, Writer

from kbroker.client.errors import ClientError
from kbroker.legacy import (
    EARLIEST_TIME,
    LATEST_TIME,
    DefaultEventHandler,
    FetchRequestBuilder,
    KeyedMessage,
    OffsetChannel,
    Producer,
    SimpleConsumer,
)
from kbroker.legacy.dispatcher import Dispatcher
from kbroker.legacy.encoders import EncoderOf
from kbroker.legacy.zookeeper_consumer import Consumer
from kbroker.legacy.zookeeper_consumer.consumer_errors import ConsumerTimeout

if TYPE_CHECKING:
    from fault.clients.program import Program

SEND_S = 60.0  # all attempts of both
CALL_S = 12.0  # two attempts of a simple consumer, and the time that a fetch waits
FETCH_BYTES = 1 << 20
LOOK_EVERY_S = 1.0


class _Handler(DefaultEventHandler):
    """Knows what the thread of an asynchronous producer has sent, which nobody else is told."""

    def __init__(self, writer: OldWriter) -> None:
        self._writer = writer

    def handle(self, events: Sequence[Any], producer: Dispatcher, encoder: EncoderOf) -> None:
        try:
            super().handle(events, producer, encoder)
        except ClientError as error:
            self._writer.have_ended(events, error)
            raise
        self._writer.have_ended(events, None)


class OldWriter(Writer):
    """``Producer``, which blocks, or has a queue."""

    def _made(self) -> Any:
        settings = {name.replace("_", "."): value for name, value in self._own_settings()}
        settings["metadata.broker.list"] = self.program.bootstrap
        handler = _Handler(self) if settings["producer.type"] == "async" else None
        return Given(self.told, Producer(settings, handler))

    def _own_settings(self) -> list[tuple[str, Any]]:
        settings = self.program.settings
        return [(name, value) for name, value in settings.items() if name != "bootstrap_servers"]

    def send(self, rows: list[Row]) -> None:
        is_async = self.program.settings["producer_type"] == "async"
        for partition in range(self.program.partitions):
            part = [row for row in rows if row[0] == partition]
            topic = self.program.topic
            messages = [KeyedMessage(topic, self.value(row), partition=partition) for row in part]
            self._count(len(part))
            # A queue may take the first of several, and have no room for the others.
            for some in [[one] for one in messages] if is_async else [messages]:
                try:
                    self.handle.call("send", SEND_S, *some)
                except ClientError as error:
                    self.have_ended(some, error)
                else:
                    if not is_async:
                        self.have_ended(some, None)

    def have_ended(self, messages: Sequence[Any], error: ClientError | None) -> None:
        for message in messages:
            _, partition, number = message.message.decode().rsplit(":", 2)
            self._end((int(partition), int(number)), error, -1)

    def step(self) -> None:
        self.send(self._rows())
        self.tell_ended()

    def rest(self) -> None:
        self.program.pause(1.0)

    def finish(self) -> None:
        try:
            self.handle.call("close", SEND_S)
        except ClientError:
            pass
        self.tell_ended()
        self.told.tell("open", count=self._open["records"])


def write(program: Program) -> None:
    """Until the program is stopped."""
    writer = OldWriter(program)
    while program.pause(PAUSE_S):
        writer.rest() if program.resting else writer.step()
    writer.finish()


class SimpleReader:
    """As a program of 0.8 does it: finds the leaders, fetches from each, and finds them again when
    that fails.
    """

    def __init__(self, program: Program) -> None:
        self.program, self.told = program, program.told
        self._next = dict.fromkeys(range(program.partitions), 0)
        self._consumers: dict[tuple[str, int], Given] = {}
        self._leaders: dict[int, tuple[str, int]] = {}
        self._looked = self._committed_at = 0.0
        self._in_doubt: set[tuple[tuple[str, int], int]] = set()  # committed without an answer
        channel = OffsetChannel(program.group, self._brokers, socket_timeout_ms=4_000)
        self._channel = Given(self.told, channel)

    def _brokers(self) -> list[tuple[str, int]]:
        parts = [one.rpartition(":") for one in self.program.bootstrap.split(",")]
        return [(host, int(port)) for host, _, port in parts]

    def _consumer(self, host: str, port: int) -> Given:
        made = self._consumers.get((host, port))
        if made is None:
            consumer = SimpleConsumer(host, port, so_timeout=4_000, client_id="exam")
            made = self._consumers[host, port] = Given(self.told, consumer)
        return made

    def _look(self) -> None:
        """Who leads, by the first broker that says."""
        for broker in self._brokers():
            try:
                topics = self._consumer(*broker).call(
                    "topic_metadata", CALL_S, [self.program.topic]
                )
            except ClientError:
                continue
            (topic,) = topics
            found = {
                row.partition_id: (row.leader.host, row.leader.port)
                for row in topic.partitions_metadata
                if row.leader is not None
            }
            if found:
                self._leaders, self._looked = found, time.monotonic()
                return

    def step(self) -> None:
        missing = set(self._next) - set(self._leaders)
        if missing and time.monotonic() > self._looked + LOOK_EVERY_S:
            self._look()
        by_leader: dict[tuple[str, int], list[int]] = {}
        for partition, leader in self._leaders.items():
            by_leader.setdefault(leader, []).append(partition)
        for leader, partitions in by_leader.items():
            self._fetch(leader, partitions)
        if not by_leader:
            self.program.pause(POLL_S)
        if time.monotonic() > self._committed_at + COMMIT_EVERY_S:
            self._committed_at = time.monotonic()
            self._commit()
            self._ask()

    def _commit(self) -> None:
        """With the group's coordinator, which the channel finds and keeps to. A commit that was
        not answered may come into effect after the next one, on a connection that was silent: a
        group without generations cannot tell which of them is older.
        """
        offsets = {(self.program.topic, n): offset for n, offset in self._next.items()}
        try:
            self._channel.call("commit", SEND_S, offsets)
        except ClientError:
            self._in_doubt.update(offsets.items())
            return
        self.told.tell("committed", offsets=[(n, offset) for (_, n), offset in offsets.items()])
        try:
            found = self._channel.call("fetch", SEND_S, list(offsets), 0)
        except ClientError:
            return
        back = {
            (key, found[key].offset)
            for key, offset in offsets.items()
            if found[key].offset < offset
        }
        if back - self._in_doubt:
            self.told.tell("broke", error=f"committed {offsets}, and found {found}")

    def _ask(self) -> None:
        """The other questions, of a leader."""
        topic = self.program.topic
        for partition, leader in list(self._leaders.items())[:1]:
            consumer = self._consumer(*leader)
            try:
                consumer.call("earliest_or_latest_offset", CALL_S, topic, partition, EARLIEST_TIME)
                consumer.call("get_offsets_before", CALL_S, topic, partition, LATEST_TIME, 1)
                consumer.call("find_coordinator", CALL_S, self.program.group)
            except ClientError:
                self._forget([partition])

    def _fetch(self, leader: tuple[str, int], partitions: list[int]) -> None:
        topic = self.program.topic
        builder = FetchRequestBuilder().max_wait(100).min_bytes(1)
        for partition in partitions:
            builder.add_fetch(topic, partition, self._next[partition], FETCH_BYTES)
        try:
            response = self._consumer(*leader).call("fetch", CALL_S, builder.build())
        except ClientError:
            self._forget(partitions)
            return
        rows = []
        for partition in partitions:
            if response.error_code(topic, partition):
                self._forget([partition])
                continue
            for message, offset in response.message_set(topic, partition):
                if offset >= self._next[partition]:
                    rows.append((partition, offset, message.payload.decode()))
                    self._next[partition] = offset + 1
        if rows:
            self.told.tell("returned", rows=rows)

    def _forget(self, partitions: list[int]) -> None:
        for partition in partitions:
            self._leaders.pop(partition, None)

    def close(self) -> None:
        self._channel.call("close", CLOSE_S)
        for made in self._consumers.values():
            made.call("close", CLOSE_S)


def read(program: Program) -> None:
    """Until the program is stopped."""
    reader = SimpleReader(program)
    while not program.stopped:
        reader.step()
    reader.close()


class GroupReader:
    """``ConsumerConnector``, with one stream, and commits by hand."""

    def __init__(self, program: Program) -> None:
        self.program, self.told = program, program.told
        settings = dict(program.settings)
        settings.pop("bootstrap_servers")
        settings |= {"group_id": settings["group_id"], "zookeeper_connect": program.zookeeper}
        self._handle = Given(self.told, Consumer.create(**settings))
        streams = self._handle.call("create_message_streams", CALL_S, {program.topic: 1})
        (self._stream,) = streams[program.topic]
        self._next: dict[int, int] = {}
        self._committed_at = time.monotonic()

    def step(self) -> None:
        rows = []
        try:
            deadline = time.monotonic() + POLL_S
            for row in self._stream:
                rows.append((row.partition, row.offset, row.message.decode()))
                if time.monotonic() > deadline or len(rows) >= 200:
                    break
        except ConsumerTimeout:
            pass
        except ClientError as error:
            self.told.tell("error", call="stream", error=f"{type(error).__name__}: {error}"[:500])
            self.program.pause(0.05)
        if rows:
            self.told.tell("returned", rows=rows)
        self._next |= {partition: offset + 1 for partition, offset, _ in rows}
        if time.monotonic() > self._committed_at + COMMIT_EVERY_S:
            self._committed_at = time.monotonic()
            self._commit()

    def _commit(self) -> None:
        try:
            self._handle.call("commit_offsets", SEND_S)
        except ClientError:
            return
        self._handle.call("lags", 0.5)
        self._handle.call("metrics", 0.5)

    def close(self) -> None:
        self._handle.call("shutdown", SEND_S)


def read_as_member(program: Program) -> None:
    """Until the program is stopped."""
    reader = GroupReader(program)
    while not program.stopped:
        reader.step()
    reader.close()
