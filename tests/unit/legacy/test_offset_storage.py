"""Offsets of a group in either storage, with a coordinator that is scripted."""

from __future__ import annotations

import threading
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

import pytest
from support.brokers.fake_broker import FakeBroker

from kbroker.client.batches.offsets import TopicPartition
from kbroker.client.errors import ClientError, RejectedError, UnreachableError
from kbroker.errors import ErrorCode
from kbroker.legacy.zookeeper_consumer.offset_storage import OffsetStorage
from kbroker.legacy.zookeeper_consumer.zookeeper_consumer_settings import ConsumerConfig
from kbroker.protocol.api import ApiKey
from kbroker.protocol.messages.find_coordinator import FindCoordinatorResponse
from kbroker.protocol.messages.offset_commit import OffsetCommitResponse
from kbroker.protocol.messages.offset_fetch import OffsetFetchResponse

pytestmark = pytest.mark.unit

KEY = ("t", 0)


class Coordinator(FakeBroker):
    """errors: for the next responses, by API."""

    def __init__(self) -> None:
        self.errors: dict[ApiKey, list[ErrorCode]] = {}
        self.stored: dict[TopicPartition, int] = {}
        super().__init__({ApiKey.FIND_COORDINATOR: self.find, ApiKey.OFFSET_COMMIT: self.commit,
                          ApiKey.OFFSET_FETCH: self.fetch})  # fmt: skip

    def _error(self, api: ApiKey) -> int:
        left = self.errors.get(api)
        return int(left.pop(0)) if left else 0

    def find(self, request: Any, state: dict[str, Any]) -> Any:
        error = self._error(ApiKey.FIND_COORDINATOR)
        return FindCoordinatorResponse(
            error_code=error, node_id=0, host="127.0.0.1", port=self.port
        )

    def commit(self, request: Any, state: dict[str, Any]) -> Any:
        error = self._error(ApiKey.OFFSET_COMMIT)
        row = request.topics[0].partitions[0]
        if not error:
            self.stored[request.topics[0].name, row.partition_index] = row.committed_offset
        made = OffsetCommitResponse.OffsetCommitResponsePartition
        topic = OffsetCommitResponse.OffsetCommitResponseTopic(
            name="t", partitions=[made(partition_index=row.partition_index, error_code=error)]
        )
        return OffsetCommitResponse(topics=[topic])

    def fetch(self, request: Any, state: dict[str, Any]) -> Any:
        error = self._error(ApiKey.OFFSET_FETCH)
        made = OffsetFetchResponse.OffsetFetchResponsePartition
        topic = OffsetFetchResponse.OffsetFetchResponseTopic(
            name="t",
            partitions=[
                made(partition_index=n, committed_offset=self.stored.get(("t", n), -1), metadata="")
                for n in request.topics[0].partition_indexes
            ],
        )
        return OffsetFetchResponse(error_code=error, topics=[topic])

    def count(self, api: ApiKey) -> int:
        return sum(key == api for key, _ in self.headers)


class Session:
    """ZooKeeper."""

    def __init__(self) -> None:
        self.stored: dict[TopicPartition, int] = {}
        self.error: ClientError | None = None

    def offsets(self, keys: Iterable[TopicPartition]) -> dict[TopicPartition, int]:
        return {key: self.stored[key] for key in keys if key in self.stored}

    def commit(self, offsets: Mapping[TopicPartition, int]) -> None:
        if self.error is not None:
            raise self.error
        self.stored.update(offsets)


@pytest.fixture
def broker() -> Iterator[Coordinator]:
    with Coordinator() as found:
        yield found


class Made:
    def __init__(self, broker: Coordinator, **settings: Any) -> None:
        given = {"offsets_channel_backoff_ms": 5, "offsets_storage": "kafka", **settings}
        config = ConsumerConfig(group_id="g", zookeeper_connect="x:1", **given)
        self.session = Session()
        self.closing = threading.Event()
        session: Any = self.session
        self.storage = OffsetStorage(config, session, lambda: [broker.bootstrap], self.closing)


@pytest.fixture
def made(broker: Coordinator) -> Iterator[Any]:
    running = []

    def make(**settings: Any) -> Made:
        running.append(Made(broker, **settings))
        return running[-1]

    yield make
    for one in running:
        one.storage.close()


def test_zookeeper_alone_asks_no_broker(made: Any, broker: Coordinator) -> None:
    one = made(offsets_storage="zookeeper")
    one.storage.commit({KEY: 5}, retry=True)
    assert one.storage.read([KEY, ("t", 1)]) == {KEY: 5}
    assert not broker.requests


def test_zookeeper_with_dual_commits_has_both(made: Any, broker: Coordinator) -> None:
    """OFFS-22, the way back: the brokers may be ahead."""
    one = made(offsets_storage="zookeeper", dual_commit_enabled=True)
    broker.stored, one.session.stored = {KEY: 7}, {KEY: 3}
    assert one.storage.read([KEY]) == {KEY: 7}
    one.storage.commit({KEY: 9}, retry=True)
    assert (broker.stored, one.session.stored) == ({KEY: 9}, {KEY: 9})


def test_kafka_alone_writes_nothing_to_zookeeper(made: Any, broker: Coordinator) -> None:
    one = made(dual_commit_enabled=False)
    one.session.stored = {KEY: 99}
    one.storage.commit({KEY: 5}, retry=True)
    assert one.storage.read([KEY, ("t", 1)]) == {KEY: 5}
    assert one.session.stored == {KEY: 99}


@pytest.mark.parametrize(
    ("kafka", "zookeeper", "read"),
    [(5, 7, 7), (7, 5, 7), (None, 3, 3), (4, None, 4), (None, None, None)],
)
def test_of_both_the_larger_offset_counts(
    kafka: int | None, zookeeper: int | None, read: int | None, made: Any, broker: Coordinator
) -> None:
    """OFFS-21: while a group migrates, some commit to ZooKeeper only."""
    one = made()
    broker.stored = {} if kafka is None else {KEY: kafka}
    one.session.stored = {} if zookeeper is None else {KEY: zookeeper}
    assert one.storage.read([KEY]) == ({} if read is None else {KEY: read})
    one.storage.commit({KEY: 9}, retry=True)
    assert (broker.stored, one.session.stored) == ({KEY: 9}, {KEY: 9})


def test_a_commit_is_repeated_as_often_as_allowed(made: Any, broker: Coordinator) -> None:
    """OFFS-19."""
    one = made(offsets_commit_max_retries=2)
    loading = ErrorCode.COORDINATOR_LOAD_IN_PROGRESS
    broker.errors[ApiKey.OFFSET_COMMIT] = [loading] * 2
    one.storage.commit({KEY: 5}, retry=True)
    assert broker.stored == {KEY: 5} and broker.count(ApiKey.OFFSET_COMMIT) == 3
    broker.errors[ApiKey.OFFSET_COMMIT] = [loading] * 3
    with pytest.raises(RejectedError, match="COORDINATOR_LOAD_IN_PROGRESS"):
        one.storage.commit({KEY: 6}, retry=True)
    assert broker.count(ApiKey.OFFSET_COMMIT) == 6


def test_a_periodic_commit_is_not_repeated(made: Any, broker: Coordinator) -> None:
    broker.errors[ApiKey.OFFSET_COMMIT] = [ErrorCode.REQUEST_TIMED_OUT]
    with pytest.raises(RejectedError, match="REQUEST_TIMED_OUT"):
        made().storage.commit({KEY: 5}, retry=False)
    assert broker.count(ApiKey.OFFSET_COMMIT) == 1


def test_the_lookup_of_the_coordinator_does_not_count(made: Any, broker: Coordinator) -> None:
    broker.errors[ApiKey.FIND_COORDINATOR] = [ErrorCode.COORDINATOR_NOT_AVAILABLE] * 9
    made(offsets_commit_max_retries=0).storage.commit({KEY: 5}, retry=True)
    assert broker.stored == {KEY: 5} and broker.count(ApiKey.FIND_COORDINATOR) == 10


def test_a_coordinator_that_has_moved_is_looked_up_again(made: Any, broker: Coordinator) -> None:
    """OFFS-05."""
    one = made()
    broker.errors[ApiKey.OFFSET_COMMIT] = [ErrorCode.NOT_COORDINATOR]
    one.storage.commit({KEY: 5}, retry=True)
    assert broker.count(ApiKey.FIND_COORDINATOR) == 2


def test_offsets_are_read_once_the_coordinator_has_loaded_them(
    made: Any, broker: Coordinator
) -> None:
    """ERR-04: OffsetsLoadInProgress."""
    broker.stored = {KEY: 5}
    broker.errors[ApiKey.OFFSET_FETCH] = [ErrorCode.COORDINATOR_LOAD_IN_PROGRESS] * 3
    assert made().storage.read([KEY]) == {KEY: 5}


def test_nobody_waits_for_a_coordinator_at_the_end(made: Any, broker: Coordinator) -> None:
    one = made()
    one.closing.set()
    broker.errors[ApiKey.FIND_COORDINATOR] = [ErrorCode.COORDINATOR_NOT_AVAILABLE] * 99
    with pytest.raises(RejectedError, match="COORDINATOR_NOT_AVAILABLE"):
        one.storage.commit({KEY: 5}, retry=True)
    with pytest.raises(RejectedError, match="COORDINATOR_NOT_AVAILABLE"):
        one.storage.read([KEY])


def test_the_brokers_have_offsets_although_zookeeper_fails(made: Any, broker: Coordinator) -> None:
    one = made()
    one.session.error = UnreachableError({"z": "away"})
    with pytest.raises(UnreachableError):
        one.storage.commit({KEY: 5}, retry=True)
    assert broker.stored == {KEY: 5}
