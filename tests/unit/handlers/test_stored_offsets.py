"""OffsetCommit and OffsetFetch 0, from the request to the nodes of the metadata store."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from support.network.call_documents import request
from support.network.network_process import NetworkProcess

from kbroker.controller.election.events import EventQueue
from kbroker.controller.store.stored_offsets import StoredOffsets
from kbroker.errors import ErrorCode, WireError
from kbroker.ipc import calls
from kbroker.ipc.pending import run
from kbroker.ipc.process_table import Address
from kbroker.metastore.embedded import EmbeddedStore
from kbroker.metastore.node_file import NodeFile
from kbroker.metastore.settled import SettledStore
from kbroker.metastore.store import NodeExists, StoreFailed
from kbroker.protocol.messages.offset_commit import OffsetCommitRequest
from kbroker.protocol.messages.offset_fetch import OffsetFetchRequest

pytestmark = pytest.mark.unit

Outcome = dict[tuple[str, int], Any]


def respond_with(
    operation: calls.CallOperation[Any, Any], serve: Callable[..., Any], to: Address, **said: Any
) -> Any:
    answered = run(serve(to, request(operation, **said)))
    if answered.error is not None:
        raise answered.error
    return answered.value


class Broker:
    """A network process whose controller has a real store. Topics ``t`` and ``u``, 2 partitions."""

    def __init__(self, directory: Path) -> None:
        self.file = NodeFile(str(directory))
        self.file.create("/consumers")
        self.stored = StoredOffsets(EventQueue(), SettledStore(EmbeddedStore(self.file)))
        self.network = NetworkProcess(offset_metadata_max_bytes="10")
        for name in ("t", "u"):
            self.network.add_topic(name, name.encode() * 16, [0, 1])
        for operation, serve in (
            (calls.COMMIT_STORED_OFFSETS, self.stored.commit),
            (calls.FETCH_STORED_OFFSETS, self.stored.fetch),
        ):
            self.network.set_response(operation.name, partial(respond_with, operation, serve))

    def commit(self, offsets: dict[tuple[str, int], int], *, group: str = "g", **more: Any) -> Any:
        request = OffsetCommitRequest(
            group_id=group,
            topics=[
                OffsetCommitRequest.OffsetCommitRequestTopic(
                    name=topic,
                    partitions=[
                        OffsetCommitRequest.OffsetCommitRequestPartition(
                            partition_index=partition, committed_offset=offset, **more
                        )
                    ],
                )
                for (topic, partition), offset in offsets.items()
            ],
        )
        return {
            (topic.name, partition.partition_index): partition.error_code
            for topic in self.network.ask(request, 0).topics
            for partition in topic.partitions
        }

    def fetch(self, *places: tuple[str, int], group: str = "g") -> Outcome:
        request = OffsetFetchRequest(
            group_id=group,
            topics=[
                OffsetFetchRequest.OffsetFetchRequestTopic(
                    name=topic, partition_indexes=[partition]
                )
                for topic, partition in places
            ],
        )
        return {
            (topic.name, p.partition_index): (p.committed_offset, p.metadata, p.error_code)
            for topic in self.network.ask(request, 0).topics
            for p in topic.partitions
        }


@pytest.fixture
def broker(tmp_path: Path) -> Iterator[Broker]:
    broker = Broker(tmp_path)
    yield broker
    broker.file.close()


def test_offsets_are_where_consumers_of_zookeeper_keep_them(broker: Broker) -> None:
    assert broker.commit({("t", 0): 7, ("t", 1): 8, ("u", 0): 2**63 - 1}) == {
        ("t", 0): 0,
        ("t", 1): 0,
        ("u", 0): 0,
    }

    assert broker.file.get("/consumers/g/offsets/t/1").data == b"8"
    broker.file.set("/consumers/g/offsets/t/1", b"9")  # as such a consumer does
    assert broker.fetch(("t", 0), ("t", 1), ("u", 0)) == {
        ("t", 0): (7, "", 0),
        ("t", 1): (9, "", 0),
        ("u", 0): (2**63 - 1, "", 0),
    }


def test_later_commit_replaces_the_offset(broker: Broker) -> None:
    broker.commit({("t", 0): 7})
    broker.commit({("t", 0): 5})

    assert broker.fetch(("t", 0)) == {("t", 0): (5, "", 0)}


def test_offset_that_was_never_committed_is_an_unknown_partition(broker: Broker) -> None:
    nothing = (-1, "", ErrorCode.UNKNOWN_TOPIC_OR_PARTITION)
    broker.commit({("t", 0): 7})

    assert broker.fetch(("t", 1), ("nobody", 0), ("t", 2)) == {
        ("t", 1): nothing,
        ("nobody", 0): nothing,
        ("t", 2): nothing,
    }
    assert broker.fetch(("t", 0), group="other") == {("t", 0): nothing}


def test_one_bad_partition_does_not_cost_its_neighbour(broker: Broker) -> None:
    unknown = ErrorCode.UNKNOWN_TOPIC_OR_PARTITION

    assert broker.commit({("t", 0): 7, ("t", 9): 7, ("nobody", 0): 7}) == {
        ("t", 0): 0,
        ("t", 9): unknown,
        ("nobody", 0): unknown,
    }
    too_large = broker.commit({("t", 1): 7}, committed_metadata="x" * 11)
    assert too_large == {("t", 1): ErrorCode.OFFSET_METADATA_TOO_LARGE}
    assert broker.fetch(("t", 0))[("t", 0)] == (7, "", 0)


@pytest.mark.parametrize("group", ["", "a/b", "..", ".", "a\0b", "a\nb", "/", "x" * 250])
def test_group_that_is_no_name_of_a_node_is_rejected(broker: Broker, group: str) -> None:
    assert broker.commit({("t", 0): 7}, group=group) == {("t", 0): ErrorCode.INVALID_GROUP_ID}
    assert broker.fetch(("t", 0), group=group) == {("t", 0): (-1, "", ErrorCode.INVALID_GROUP_ID)}

    assert broker.file.children("/consumers") == []


def test_node_without_a_number_is_no_offset(broker: Broker) -> None:
    broker.commit({("t", 0): 7})
    broker.file.set("/consumers/g/offsets/t/0", b"soon")

    assert broker.fetch(("t", 0)) == {("t", 0): (-1, "", ErrorCode.UNKNOWN_TOPIC_OR_PARTITION)}


def test_commit_is_tried_again_when_others_write_too(
    broker: Broker, monkeypatch: pytest.MonkeyPatch
) -> None:
    failures = [NodeExists("/consumers/g"), NodeExists("/consumers/g")]
    transact = broker.file.transact

    def contended(operations: Any) -> Any:
        if failures:
            raise failures.pop()
        return transact(operations)

    monkeypatch.setattr(broker.file, "transact", contended)

    assert broker.commit({("t", 0): 7}) == {("t", 0): 0}
    failures += [NodeExists("/consumers/g")] * 3
    assert broker.commit({("t", 0): 8}) == {("t", 0): ErrorCode.UNKNOWN_SERVER_ERROR}


def test_store_that_failed_is_told_and_logged(
    broker: Broker, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def failing(*_: Any) -> Any:
        raise StoreFailed("the disk is full")

    monkeypatch.setattr(broker.file, "transact", failing)
    monkeypatch.setattr(broker.file, "get", failing)

    assert broker.commit({("t", 0): 7}) == {("t", 0): ErrorCode.UNKNOWN_SERVER_ERROR}
    assert broker.fetch(("t", 0))[("t", 0)] == (-1, "", ErrorCode.UNKNOWN_SERVER_ERROR)
    assert caplog.text.count("the metadata store failed: the disk is full") == 2


def test_controller_that_restarts_is_an_error_of_the_partitions(broker: Broker) -> None:
    def gone(*_: Any, **__: Any) -> Any:
        raise WireError(ErrorCode.COORDINATOR_NOT_AVAILABLE)

    broker.network.set_response("commit_stored_offsets", gone)

    assert broker.commit({("t", 0): 7}) == {("t", 0): ErrorCode.COORDINATOR_NOT_AVAILABLE}
