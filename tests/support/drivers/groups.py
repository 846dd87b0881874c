"""Administration of groups and transactions with each client: ``group_admin(name, ...)``."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Protocol

from support.drivers import WAIT_S, ClientError
from support.drivers.access import Access, access_to
from support.drivers.java import Java
from support.drivers.members import Partition

Offset = tuple[int, str]  # and its metadata


@dataclass(frozen=True, slots=True)
class Described:
    """A group in the coordinator's description; states are spelt as on the wire."""

    state: str
    assignor: str
    owned: dict[str, frozenset[Partition]]  # by client id
    instances: frozenset[str]


class GroupAdmin(Protocol):
    """The group operations that every admin client supports."""

    name: str

    def describe(self, group: str) -> Described: ...

    def groups(self) -> set[str]: ...

    def offsets(self, group: str) -> dict[Partition, Offset]: ...

    def close(self) -> None: ...


class OffsetAdmin(GroupAdmin, Protocol):
    """Operations on offsets, which not all clients support."""

    terminator: str  # a suffix that the client adds to metadata

    def delete(self, group: str) -> None: ...

    def alter_offsets(self, group: str, offsets: Mapping[Partition, Offset]) -> None: ...


class ConfluentGroups:
    """librdkafka's."""

    name = "confluent-kafka"
    terminator = "\0"  # confluent-kafka's suffix of metadata

    def __init__(self, where: str | Access) -> None:
        from confluent_kafka.admin import AdminClient

        self._admin = AdminClient(access_to(where).librdkafka())

    def close(self) -> None:
        del self._admin

    def describe(self, group: str) -> Described:
        found = _confluent(self._admin.describe_consumer_groups([group])[group])
        members = [
            (
                member.client_id,
                frozenset((p.topic, p.partition) for p in member.assignment.topic_partitions),
                member.group_instance_id,
            )
            for member in found.members
        ]
        state = {"PREPARING_REBALANCING": "PreparingRebalance"}.get(found.state.name)
        state = state or found.state.name.title().replace("_", "")
        return _described(state.replace("Rebalancing", "Rebalance"), found, members)

    def groups(self) -> set[str]:
        found = _confluent(self._admin.list_consumer_groups(request_timeout=WAIT_S))
        assert not found.errors, found.errors
        return {group.group_id for group in found.valid}

    def delete(self, group: str) -> None:
        _confluent(self._admin.delete_consumer_groups([group])[group])

    def offsets(self, group: str) -> dict[Partition, Offset]:
        from confluent_kafka import ConsumerGroupTopicPartitions

        asked = self._admin.list_consumer_group_offsets([ConsumerGroupTopicPartitions(group)])
        return {
            (one.topic, one.partition): (one.offset, one.metadata or "")
            for one in _confluent(asked[group]).topic_partitions
        }

    def alter_offsets(self, group: str, offsets: Mapping[Partition, Offset]) -> None:
        from confluent_kafka import ConsumerGroupTopicPartitions, TopicPartition

        wanted = [
            TopicPartition(*where, offset, metadata)
            for where, (offset, metadata) in offsets.items()
        ]
        asked = self._admin.alter_consumer_group_offsets(
            [ConsumerGroupTopicPartitions(group, wanted)]
        )
        for one in _confluent(asked[group]).topic_partitions:
            if one.error is not None:
                raise ClientError(one.error.code(), str(one.error))


class KafkaPythonGroups:
    """kafka-python's."""

    name = "kafka-python"
    terminator = ""

    def __init__(self, where: str | Access) -> None:
        from kafka import KafkaAdminClient

        self._admin = KafkaAdminClient(**access_to(where).kafka_python())

    def close(self) -> None:
        self._admin.close()

    def describe(self, group: str) -> Described:
        found = _kafka_python(self._admin.describe_groups, [group])[group]
        members = []
        for member in found["members"]:
            assignment = member["member_assignment"]
            rows = assignment["assigned_partitions"] if isinstance(assignment, dict) else ()
            owned = frozenset((row["topic"], n) for row in rows for n in row["partitions"])
            members.append((member["client_id"], owned, member.get("group_instance_id")))
        return Described(
            found["group_state"],
            found["protocol_data"],
            {client: owned for client, owned, _ in members},
            frozenset(instance for _, _, instance in members if instance),
        )

    def groups(self) -> set[str]:
        return {group["group_id"] for group in _kafka_python(self._admin.list_groups)}

    def delete(self, group: str) -> None:
        response = _kafka_python(self._admin.delete_groups, [group])[group]
        if response != "OK":
            import kafka.errors

            raise ClientError(getattr(kafka.errors, response).errno, response)

    def offsets(self, group: str) -> dict[Partition, Offset]:
        found = _kafka_python(self._admin.list_group_offsets, {group: None})[group]
        return {tuple(where): (one.offset, one.metadata or "") for where, one in found.items()}

    def alter_offsets(self, group: str, offsets: Mapping[Partition, Offset]) -> None:
        from kafka import TopicPartition
        from kafka.structs import OffsetAndMetadata

        wanted = {
            TopicPartition(*where): OffsetAndMetadata(offset, metadata, -1)
            for where, (offset, metadata) in offsets.items()
        }
        _raise_first(_kafka_python(self._admin.alter_group_offsets, group, wanted))

    def delete_offsets(self, group: str, partitions: Iterable[Partition]) -> None:
        from kafka import TopicPartition

        wanted = [TopicPartition(*where) for where in partitions]
        _raise_first(_kafka_python(self._admin.delete_group_offsets, group, wanted))

    def transactions(self) -> dict[str, str]:
        found = _kafka_python(self._admin.list_transactions)
        return {one.transactional_id: one.state.value for rows in found.values() for one in rows}

    def transaction(self, transactional_id: str) -> dict[str, Any]:
        found = _kafka_python(self._admin.describe_transactions, [transactional_id])
        one = found[transactional_id]
        return {
            "state": one.state.value,
            "producer_id": one.producer_id,
            "producer_epoch": one.producer_epoch,
            "timeout_ms": one.transaction_timeout_ms,
            "partitions": {tuple(where) for where in one.topic_partitions},
        }

    def producers(self, topic: str, partition: int) -> list[tuple[int, int, int, int]]:
        from kafka import TopicPartition

        where = TopicPartition(topic, partition)
        found = _kafka_python(self._admin.describe_producers, [where])[where]
        return [
            (
                one.producer_id,
                one.producer_epoch,
                one.last_sequence,
                one.current_transaction_start_offset,
            )
            for one in found.active_producers
        ]


class AioGroups:
    """aiokafka, which only reads."""

    name = "aiokafka"

    def __init__(self, where: str | Access) -> None:
        self._access = access_to(where)

    def close(self) -> None:
        pass

    def _run(self, work: Callable[[Any], Any]) -> Any:
        from aiokafka.admin import AIOKafkaAdminClient
        from aiokafka.errors import KafkaError

        async def run() -> Any:
            admin = AIOKafkaAdminClient(**self._access.aiokafka())
            await admin.start()
            try:
                return await work(admin)
            finally:
                await admin.close()

        try:
            return asyncio.run(asyncio.wait_for(run(), WAIT_S))
        except KafkaError as raised:
            raise ClientError(raised.errno, repr(raised)) from raised

    def describe(self, group: str) -> Described:
        from aiokafka.coordinator.protocol import ConsumerProtocol

        (response,) = self._run(lambda admin: admin.describe_consumer_groups([group]))
        ((code, _, state, _, assignor, rows, *_),) = response.groups
        if code:
            raise ClientError(code, f"group {group}")
        owned = {}
        for _, client, _, _, assignment, *_ in rows:
            parsed = ConsumerProtocol.ASSIGNMENT.decode(assignment).assignment if assignment else ()
            owned[client] = frozenset((topic, n) for topic, numbers in parsed for n in numbers)
        return Described(state, assignor, owned, frozenset())

    def groups(self) -> set[str]:
        return {row[0] for row in self._run(lambda admin: admin.list_consumer_groups())}

    def offsets(self, group: str) -> dict[Partition, Offset]:
        found = self._run(lambda admin: admin.list_consumer_group_offsets(group))
        return {tuple(where): (one.offset, one.metadata or "") for where, one in found.items()}


class JavaGroups:
    """The Java admin client, in the JVM of a driver."""

    terminator = ""

    def __init__(self, java: Java) -> None:
        self.name = java.name
        self._java = java

    def close(self) -> None:
        pass

    def describe(self, group: str) -> Described:
        found = self._java.call("groups_describe", group=group)
        return Described(
            found["state"],
            found["assignor"],
            {row["client"]: _pairs(row["owned"]) for row in found["members"]},
            frozenset(row["instance"] for row in found["members"] if row["instance"]),
        )

    def groups(self) -> set[str]:
        return {name for name, _, _ in self._java.call("groups_list")}

    def types(self) -> dict[str, str]:
        """``Classic`` or ``Consumer`` by group."""
        return {name: kind for name, _, kind in self._java.call("groups_list")}

    def delete(self, group: str) -> None:
        self._java.call("groups_delete", group=group)

    def offsets(self, group: str) -> dict[Partition, Offset]:
        rows = self._java.call("groups_offsets", group=group)
        return {(topic, n): (offset, metadata) for topic, n, offset, metadata in rows}

    def alter_offsets(self, group: str, offsets: Mapping[Partition, Offset]) -> None:
        rows = [(*where, *offset) for where, offset in offsets.items()]
        self._java.call("groups_alter_offsets", group=group, offsets=rows)

    def delete_offsets(self, group: str, partitions: Iterable[Partition]) -> None:
        self._java.call("groups_delete_offsets", group=group, partitions=list(partitions))

    def transactions(self) -> dict[str, str]:
        return dict(self._java.call("groups_transactions"))

    def transaction(self, transactional_id: str) -> dict[str, Any]:
        found = dict(self._java.call("groups_transaction", transactional_id=transactional_id))
        found["partitions"] = set(_pairs(found["partitions"]))
        return found

    def producers(self, topic: str, partition: int) -> list[tuple[int, int, int, int]]:
        rows = self._java.call("groups_producers", topic=topic, partition=partition)
        return [tuple(row) for row in rows]


def _pairs(rows: Iterable[Any]) -> frozenset[Partition]:
    return frozenset((topic, partition) for topic, partition in rows)


def _described(state: str, found: Any, members: list[Any]) -> Described:
    return Described(
        state,
        found.partition_assignor,
        {client: owned for client, owned, _ in members},
        frozenset(instance for _, _, instance in members if instance),
    )


def _confluent(response: Any) -> Any:
    from confluent_kafka import KafkaException

    try:
        return response.result(WAIT_S)
    except KafkaException as raised:
        raise ClientError(raised.args[0].code(), str(raised.args[0])) from raised


def _kafka_python(call: Callable[..., Any], *arguments: Any) -> Any:
    from kafka.errors import KafkaError

    try:
        return call(*arguments)
    except KafkaError as raised:
        raise ClientError(getattr(raised, "errno", -1) or -1, repr(raised)) from raised


def _raise_first(errors: Mapping[Any, Any]) -> None:
    for where, error in errors.items():
        if error.errno:
            raise ClientError(error.errno, f"{where}: {error}")
