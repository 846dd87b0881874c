"""Members of groups of the Python clients."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable
from typing import Any

from support.drivers import WAIT_S, ClientError
from support.drivers.members import Partition, ThreadMember


class ConfluentMember(ThreadMember):
    """librdkafka of today."""

    name = "confluent-kafka"

    def _open(self) -> None:
        from confluent_kafka import Consumer

        wanted = self.subscription
        settings: dict[str, Any] = {
            **self.access.librdkafka(),
            "group.id": wanted.group,
            "group.protocol": wanted.protocol,
            "enable.auto.commit": False,
            "auto.offset.reset": "earliest",
            "isolation.level": wanted.isolation,
            "topic.metadata.refresh.interval.ms": 500,
            "fetch.wait.max.ms": 100,
            "reconnect.backoff.max.ms": 200,
            "log_level": 3,
        }
        if wanted.protocol == "classic":
            settings["session.timeout.ms"] = wanted.session_ms
            settings["heartbeat.interval.ms"] = wanted.heartbeat_ms
            settings["partition.assignment.strategy"] = wanted.assignor
        if wanted.instance:
            settings["group.instance.id"] = wanted.instance
        self.consumer = Consumer({**settings, **dict(wanted.config)})
        topics = [f"^{wanted.pattern}"] if wanted.pattern else list(wanted.topics)
        self.consumer.subscribe(
            topics,
            on_assign=lambda _, partitions: self._assigned(_places(partitions)),
            on_revoke=lambda _, partitions: self._revoked(_places(partitions)),
            on_lost=lambda _, partitions: self._lost(_places(partitions)),
        )

    def _poll(self, timeout_s: float) -> None:
        for record in self.consumer.consume(500, timeout_s):
            error = record.error()
            if error is None:
                self._take(record.topic(), record.partition(), record.offset(), record.value())
            elif not error.retriable() and error.name() not in ("_ALL_BROKERS_DOWN", "_TRANSPORT"):
                if error.code() == 3:  # a topic that does not exist (any more, or yet)
                    continue
                raise ClientError(error.code(), str(error))

    def _commit(self, offsets: dict[Partition, int]) -> None:
        from confluent_kafka import KafkaException, TopicPartition

        wanted = [TopicPartition(*where, offset) for where, offset in offsets.items()]
        try:
            answers = self.consumer.commit(offsets=wanted, asynchronous=False)
        except KafkaException as raised:
            raise ClientError(raised.args[0].code(), str(raised.args[0])) from raised
        for response in answers:
            if response.error is not None:
                raise ClientError(response.error.code(), str(response.error))

    def group_metadata(self) -> Any:
        """Its group metadata. (The call holds the interpreter lock while it waits for a thread of
        librdkafka, so it must not run beside a poll.)
        """
        return self.ask(self.consumer.consumer_group_metadata)

    def _close(self) -> None:
        self.consumer.close()


class KafkaPythonMember(ThreadMember):
    """kafka-python, the classic protocol."""

    name = "kafka-python"
    # A poll that times out during a join restarts that join.
    JOIN_POLL_S = 2.0

    def _open(self) -> None:
        from kafka import KafkaConsumer
        from kafka.consumer.subscription_state import AsyncConsumerRebalanceListener
        from kafka.coordinator.assignors.cooperative_sticky import (
            CooperativeStickyAssignor,
        )
        from kafka.coordinator.assignors.range import RangePartitionAssignor
        from kafka.coordinator.assignors.roundrobin import RoundRobinPartitionAssignor

        assignors = {
            "range": RangePartitionAssignor,
            "roundrobin": RoundRobinPartitionAssignor,
            "cooperative-sticky": CooperativeStickyAssignor,
        }
        member = self

        class Listener(AsyncConsumerRebalanceListener):  # type: ignore[misc]
            async def on_partitions_assigned(self, assigned: Iterable[Any]) -> None:
                member._assigned(_places(assigned))

            async def on_partitions_revoked(self, revoked: Iterable[Any]) -> None:
                gone = frozenset(_places(revoked))
                offsets, began = member._settle(gone)
                if offsets:
                    # A private commit method, because a listener may not block in the public one.
                    coordinator = member.consumer._coordinator
                    await coordinator._commit_offsets_sync_async(_kafka_python(offsets), 5000)
                member._gone("revoked", gone, began)

            async def on_partitions_lost(self, lost: Iterable[Any]) -> None:
                member._lost(_places(lost))

        wanted = self.subscription
        self.consumer = KafkaConsumer(
            **self.access.kafka_python(),
            group_id=wanted.group,
            group_instance_id=wanted.instance or None,
            partition_assignment_strategy=(assignors[wanted.assignor],),
            session_timeout_ms=wanted.session_ms,
            heartbeat_interval_ms=wanted.heartbeat_ms,
            isolation_level=wanted.isolation,
            enable_auto_commit=False,
            auto_offset_reset="earliest",
            fetch_max_wait_ms=100,
            metadata_max_age_ms=500,
            **dict(wanted.config),
        )
        if wanted.pattern:
            self.consumer.subscribe(pattern=f"^{wanted.pattern}", listener=Listener())
        else:
            self.consumer.subscribe(list(wanted.topics), listener=Listener())

    def _poll(self, timeout_s: float) -> None:
        patience = timeout_s if self.consumer.assignment() else self.JOIN_POLL_S
        for where, records in self.consumer.poll(timeout_ms=int(patience * 1000)).items():
            for record in records:
                self._take(where.topic, where.partition, record.offset, record.value)

    def _commit(self, offsets: dict[Partition, int]) -> None:
        from kafka.errors import KafkaError

        try:
            self.consumer.commit(_kafka_python(offsets))
        except KafkaError as raised:
            raise ClientError(getattr(raised, "errno", -1) or -1, repr(raised)) from raised

    def group_metadata(self) -> Any:
        """Its group metadata."""
        return self.ask(self.consumer.group_metadata)

    def _close(self) -> None:
        self.consumer.close(autocommit=False)


class AioMember(ThreadMember):
    """aiokafka; its event loop runs in the member's thread."""

    name = "aiokafka"

    def _open(self) -> None:
        from aiokafka import AIOKafkaConsumer, ConsumerRebalanceListener
        from aiokafka.coordinator.assignors.range import RangePartitionAssignor
        from aiokafka.coordinator.assignors.roundrobin import RoundRobinPartitionAssignor

        assignors = {"range": RangePartitionAssignor, "roundrobin": RoundRobinPartitionAssignor}
        member = self

        class Listener(ConsumerRebalanceListener):  # type: ignore[misc]
            def on_partitions_assigned(self, assigned: Iterable[Any]) -> None:
                member._assigned(_places(assigned))

            async def on_partitions_revoked(self, revoked: Iterable[Any]) -> None:
                gone = frozenset(_places(revoked))
                offsets, began = member._settle(gone)
                if offsets:
                    await member._send_commit(offsets)
                member._gone("revoked", gone, began)

        wanted = self.subscription
        self._loop = asyncio.new_event_loop()

        async def start() -> None:
            self.consumer = AIOKafkaConsumer(
                **self.access.aiokafka(),
                group_id=wanted.group,
                group_instance_id=wanted.instance or None,
                partition_assignment_strategy=(assignors[wanted.assignor],),
                session_timeout_ms=wanted.session_ms,
                heartbeat_interval_ms=wanted.heartbeat_ms,
                isolation_level=wanted.isolation,
                enable_auto_commit=False,
                auto_offset_reset="earliest",
                fetch_max_wait_ms=100,
                metadata_max_age_ms=500,
                **dict(wanted.config),
            )
            if wanted.pattern:
                self.consumer.subscribe(pattern=f"^{wanted.pattern}", listener=Listener())
            else:
                self.consumer.subscribe(list(wanted.topics), listener=Listener())
            await self.consumer.start()

        self._loop.run_until_complete(asyncio.wait_for(start(), self.join_timeout_s))

    def _poll(self, timeout_s: float) -> None:
        work = self.consumer.getmany(timeout_ms=int(timeout_s * 1000))
        for where, records in self._loop.run_until_complete(work).items():
            for record in records:
                self._take(where.topic, where.partition, record.offset, record.value)

    async def _send_commit(self, offsets: dict[Partition, int]) -> None:
        from aiokafka import TopicPartition

        await self.consumer.commit({TopicPartition(*w): n for w, n in offsets.items()})

    def _commit(self, offsets: dict[Partition, int]) -> None:
        from aiokafka.errors import KafkaError

        try:
            self._loop.run_until_complete(asyncio.wait_for(self._send_commit(offsets), WAIT_S))
        except KafkaError as raised:
            raise ClientError(getattr(raised, "errno", -1) or -1, repr(raised)) from raised

    def _close(self) -> None:
        try:
            self._loop.run_until_complete(asyncio.wait_for(self.consumer.stop(), WAIT_S))
        finally:
            self._loop.close()


def _places(partitions: Iterable[Any]) -> list[Partition]:
    return [(one.topic, one.partition) for one in partitions]


def _kafka_python(offsets: dict[Partition, int]) -> dict[Any, Any]:
    from kafka import TopicPartition
    from kafka.structs import OffsetAndMetadata

    return {
        TopicPartition(*where): OffsetAndMetadata(offset, "", -1)
        for where, offset in offsets.items()
    }
