"""The offsets of one partition in a shard in memory, with scripted groups."""

from __future__ import annotations

import os
import struct
from pathlib import Path
from random import Random
from types import SimpleNamespace
from typing import Any

from support.coordinators.coordinator_host import CoordinatorHost, Entry, value_of

from kbroker.coordinator.group.group import CLASSIC, Group
from kbroker.coordinator.group.machine import GroupMachine
from kbroker.coordinator.machine import NO_PRODUCER, CoordinatorOperation
from kbroker.coordinator.offsets.offsets import Offsets
from kbroker.coordinator.records.offsets_topic import GroupMetadataKey
from kbroker.errors import ErrorCode, WireError
from kbroker.ipc.rpc import Pending
from kbroker.protocol.messages.offset_commit import OffsetCommitRequest
from kbroker.protocol.messages.offset_delete import OffsetDeleteRequest
from kbroker.protocol.messages.offset_fetch import OffsetFetchRequest
from kbroker.protocol.messages.txn_offset_commit import TxnOffsetCommitRequest
from kbroker.record.builder import BatchBuilder
from kbroker.storage.formats import LOG_SUFFIX, segment_name

# (offset, leader epoch, metadata, error code)
Fetched = tuple[int, int, str, int]
NOTHING: Fetched = (-1, -1, "", 0)


class FakeGroup(Group):
    """A group with scripted checks; ``reject``: the code that they raise."""

    kind = CLASSIC
    state = "Empty"
    protocol_type = "consumer"
    is_empty = True
    empty_since_ms: int | None = -1

    def __init__(self, group_id: str = "g", **values: Any) -> None:
        super().__init__(group_id)
        self.subscribed: set[str] = set()
        self.reject: ErrorCode | None = None
        self.checked: list[tuple[Any, ...]] = []
        self.committed: list[list[tuple[bytes | None, int]]] = []  # what each commit is of
        for name, value in values.items():
            setattr(self, name, value)

    def subscribes_to(self, topic: str) -> bool:
        return topic in self.subscribed

    def check_commit(
        self,
        member_id: str,
        instance_id: str | None,
        epoch: int,
        *,
        version: int,
        transactional: bool = False,
        partitions: Any = None,
    ) -> None:
        self.checked.append((member_id, instance_id, epoch, version, transactional))
        self.committed.append(list(partitions or ()))
        self._check()

    def check_fetch(self, member_id: str | None, epoch: int) -> None:
        self.checked.append((member_id, epoch))
        self._check()

    def check_deletion(self) -> None:
        self._check()

    def delete(self, op: CoordinatorOperation) -> None:
        op.append(GroupMetadataKey(group=self.group_id), None)

    def _check(self) -> None:
        if self.reject is not None:
            raise WireError(self.reject)


def make_machine(host: Any) -> GroupMachine:
    machine = GroupMachine(host)
    machine.add(Offsets(machine))
    return machine


class OffsetsHost(CoordinatorHost):
    """Topics ``t`` and ``u`` of four partitions each."""

    def __init__(self, **settings: str) -> None:
        super().__init__(make_machine, **settings)
        self.add_topic("t", 4)
        self.add_topic("u", 4)

    @property
    def offsets(self) -> Offsets:
        offsets: Offsets = self.machine.offsets
        return offsets

    def put_group(self, group: FakeGroup) -> FakeGroup:
        self.machine.groups[group.group_id] = group
        return group

    def commit_offset(
        self,
        offset: int,
        *,
        group: str = "g",
        topic: str = "t",
        partition: int = 0,
        metadata: str | None = "",
        leader_epoch: int = -1,
        version: int = 8,
        **values: Any,
    ) -> int:
        """OffsetCommit of one partition; returns its error code. values: of the request."""
        place = {"commit_timestamp": values.pop("commit_timestamp", -1)}
        request = OffsetCommitRequest(
            group_id=group,
            topics=[
                OffsetCommitRequest.OffsetCommitRequestTopic(
                    name=topic if version < 10 else "",
                    topic_id=topic.encode().ljust(16, b"-") if version >= 10 else bytes(16),
                    partitions=[
                        OffsetCommitRequest.OffsetCommitRequestPartition(
                            partition_index=partition,
                            committed_offset=offset,
                            committed_leader_epoch=leader_epoch,
                            committed_metadata=metadata,
                            **place,
                        )
                    ],
                )
            ],
            **values,
        )
        return int(self.ask(request, version).topics[0].partitions[0].error_code)

    def commit_in_transaction(self, offset: int, **values: Any) -> int:
        """TxnOffsetCommit of one partition; returns its error code. values: as
        ``send_in_transaction``.
        """
        response = value_of(self.send_in_transaction(offset, **values))
        return int(response.topics[0].partitions[0].error_code)

    def send_in_transaction(
        self,
        offset: int,
        *,
        transactional_id: str = "x",
        producer_id: int = 1,
        producer_epoch: int = 0,
        group: str = "g",
        topic: str = "t",
        partition: int = 0,
        metadata: str | None = "",
        version: int = 4,
        **values: Any,
    ) -> Pending:
        request = TxnOffsetCommitRequest(
            transactional_id=transactional_id,
            group_id=group,
            producer_id=producer_id,
            producer_epoch=producer_epoch,
            topics=[
                TxnOffsetCommitRequest.TxnOffsetCommitRequestTopic(
                    name=topic,
                    partitions=[
                        TxnOffsetCommitRequest.TxnOffsetCommitRequestPartition(
                            partition_index=partition,
                            committed_offset=offset,
                            committed_metadata=metadata,
                        )
                    ],
                )
            ],
            **values,
        )
        return self.send(request, version)

    def fetch(
        self,
        group: str = "g",
        topic: str = "t",
        partition: int = 0,
        *,
        version: int = 9,
        require_stable: bool = False,
    ) -> Fetched:
        """OffsetFetch of one partition."""
        if version >= 8:
            asked = OffsetFetchRequest(
                groups=[fetch_group(group, {topic: [partition]}, by_id=version >= 10)],
                require_stable=require_stable,
            )
            answer = self.ask(asked, version).groups[0]
            assert (answer.group_id, answer.error_code) == (group, 0)
        else:
            asked = OffsetFetchRequest(
                group_id=group,
                topics=[
                    OffsetFetchRequest.OffsetFetchRequestTopic(
                        name=topic, partition_indexes=[partition]
                    )
                ],
                require_stable=require_stable,
            )
            answer = self.ask(asked, version)
        return fetched(answer.topics[0].partitions[0])

    def fetch_all(
        self, group: str = "g", *, version: int = 9, require_stable: bool = False
    ) -> dict[tuple[str, int], Fetched]:
        """OffsetFetch of all offsets of a group."""
        if version >= 8:
            asked = OffsetFetchRequest(
                groups=[fetch_group(group, None)], require_stable=require_stable
            )
            topics = self.ask(asked, version).groups[0].topics
        else:
            asked = OffsetFetchRequest(group_id=group, topics=None, require_stable=require_stable)
            topics = self.ask(asked, version).topics
        return {
            (topic.name, partition.partition_index): fetched(partition)
            for topic in topics
            for partition in topic.partitions
        }

    def delete_offset(self, *, group: str = "g", topic: str = "t", partition: int = 0) -> int:
        """OffsetDelete of one partition; returns its code, or the request's as a negative
        number.
        """
        request = OffsetDeleteRequest(
            group_id=group,
            topics=[
                OffsetDeleteRequest.OffsetDeleteRequestTopic(
                    name=topic,
                    partitions=[
                        OffsetDeleteRequest.OffsetDeleteRequestPartition(partition_index=partition)
                    ],
                )
            ],
        )
        answer = self.ask(request, 0)
        if answer.error_code:
            return -int(answer.error_code)
        return int(answer.topics[0].partitions[0].error_code)


def fetch_group(
    group: str,
    topics: dict[str, list[int]] | None,
    *,
    by_id: bool = False,
    member_id: str | None = None,
    member_epoch: int = -1,
) -> Any:
    """One group of a request in version 8 and later."""
    entry = OffsetFetchRequest.OffsetFetchRequestTopics
    return OffsetFetchRequest.OffsetFetchRequestGroup(
        group_id=group,
        member_id=member_id,
        member_epoch=member_epoch,
        topics=None
        if topics is None
        else [
            entry(topic_id=name.encode().ljust(16, b"-"), partition_indexes=indexes)
            if by_id
            else entry(name=name, partition_indexes=indexes)
            for name, indexes in topics.items()
        ],
    )


def fetched(partition: Any) -> Fetched:
    return (
        partition.committed_offset,
        partition.committed_leader_epoch,
        partition.metadata,
        partition.error_code,
    )


class OneSegment(list[Any]):
    def holding(self, _offset: int) -> Any:
        return self[0]


def write_segment(random: Random, log: list[Entry], directory: Path) -> Any:
    """A log of one segment for a Loader."""
    data = b""
    position = 0
    while position < len(log):
        entry = log[position]
        count = 1
        if entry.commit is None:
            limit = random.choice([1, 3, 50])
            same = entry[:2]
            while (
                count < limit
                and position + count < len(log)
                and log[position + count].commit is None
                and log[position + count][:2] == same
            ):
                count += 1
        is_transactional = (entry.producer_id, entry.epoch) != NO_PRODUCER
        builder = BatchBuilder(
            random.choice([0, 0, 0, 1]),
            base_offset=position,
            producer_id=entry.producer_id,
            producer_epoch=entry.epoch,
            transactional=is_transactional,
            control=entry.commit is not None,
        )
        for one in log[position : position + count]:
            if one.commit is None:
                builder.append(one.value, one.key, 1)
            else:
                builder.append(struct.pack(">hi", 0, 0), struct.pack(">hh", 0, one.commit), 1)
        data += builder.build()
        position += count
    with open(os.path.join(directory, segment_name(0, LOG_SUFFIX)), "wb") as file:
        file.write(data)
    segments = OneSegment([SimpleNamespace(base_offset=0, size=len(data))])
    return SimpleNamespace(
        path=str(directory),
        name="__consumer_offsets-0",
        log_start_offset=0,
        segments=segments,
    )
