"""The client against a real broker: metadata, offsets, and reading ranges in all circumstances."""

from __future__ import annotations

import os
import pickle
import signal
import time
from collections.abc import Iterator

import pytest

pa = pytest.importorskip("pyarrow")

from support.clients import client_topics as topics  # noqa: E402

from kbroker.client.batches.arrow import read_arrow, schema_of  # noqa: E402
from kbroker.client.batches.counts import count_records  # noqa: E402
from kbroker.client.batches.fetch import RangeFetch  # noqa: E402
from kbroker.client.batches.offsets import (  # noqa: E402
    LATEST,
    NO_OFFSET,
    commit,
    committed,
    list_offsets,
    log_dir_sizes,
    retention_of,
)
from kbroker.client.connections.cluster import Cluster  # noqa: E402
from kbroker.client.errors import (  # noqa: E402
    CorruptRecords,
    OffsetOutOfRange,
    RejectedError,
    SettingRefused,
    Timeout,
    TopicChanged,
    UnreachableError,
)
from kbroker.testing import Broker, wait_until  # noqa: E402

pytestmark = pytest.mark.integration


@pytest.fixture(scope="module")
def broker() -> Iterator[Broker]:
    with Broker({"log.retention.ms": -1, "offsets.topic.num.partitions": 2}) as running:
        yield running


@pytest.fixture
def cluster(broker: Broker) -> Iterator[Cluster]:
    with Cluster(broker.bootstrap, deadline=20) as made:
        yield made


def test_topics_name_partitions_leaders_and_ids(cluster):
    topics.create(cluster, "metadata", 3)

    (found,) = cluster.topics(["metadata", "nothing"]).values()

    assert list(found.partitions) == [0, 1, 2]
    assert {one.leader for one in found.partitions.values()} == {0}
    assert found.id != bytes(16)
    assert "metadata" in cluster.topics()
    assert "nothing" not in cluster.topics(), "asking for it did not create it"


def test_offsets_are_found_by_time_and_at_the_ends(cluster):
    topics.create(cluster, "by-time", 2)
    rows = pa.record_batch(
        {
            "value": [b"v"] * 10,
            "partition": pa.array([0] * 10, pa.int32()),
            "timestamp": pa.array(range(1000, 11000, 1000), pa.timestamp("ms")),
        }
    )
    with topics.ArrowProducer(cluster, topic="by-time") as producer:
        producer.write(rows)

    assert topics.ends(cluster, "by-time") == {0: (0, 10), 1: (0, 0)}
    found = list_offsets(cluster, {("by-time", 0): 3500, ("by-time", 1): 3500})
    assert found["by-time", 0][:2] == (3, 4000)
    assert found["by-time", 1].offset == NO_OFFSET
    with pytest.raises(RejectedError, match="UNKNOWN_TOPIC_OR_PARTITION"):
        list_offsets(cluster, {("by-time", 7): LATEST})


def test_committed_offsets_are_read_back(cluster):
    topics.create(cluster, "consumed", 2)

    commit(cluster, "job", {("consumed", 0): (5, "note")})

    assert committed(cluster, "job")["consumed", 0][:2] == (5, "note")
    assert list(committed(cluster, "job", [("consumed", 0), ("consumed", 1)])) == [("consumed", 0)]
    assert committed(cluster, "other") == {}
    assert retention_of(cluster, "job") == 7 * 86_400


def test_sizes_of_logs_are_those_of_the_disk(cluster):
    topics.create(cluster, "sized", 1)
    topics.write(cluster, "sized", 1000)

    assert log_dir_sizes(cluster, ["sized"])["sized", 0] > 5000


@pytest.mark.parametrize("codec", ["none", "gzip", "snappy", "lz4", "zstd"])
def test_range_is_read_in_many_fetches(cluster, codec):
    name = f"range-{codec}"
    topics.create(cluster, name)
    topics.write(cluster, name, 20_000, codec=codec, batch_bytes=4000)

    found = topics.values(cluster, name, start=1234, end=18_765, max_bytes=10_000)

    assert found == [b"%d" % n for n in range(1234, 18_765)]
    batches = list(read_arrow(cluster, name, 0, 0, 20_000, headers=True))
    assert all(one.schema.equals(schema_of(headers=True)) for one in batches)
    counts = count_records(cluster, name, 0, 0, 20_000)
    assert sum(row.records for row in counts.values()) == 20_000
    assert sum(row.bytes for row in counts.values()) == sum(len(b"%d" % n) for n in range(20_000))


def test_two_fetches_are_on_their_way_while_the_first_is_used(cluster):
    topics.create(cluster, "ahead")
    topics.write(cluster, "ahead", 5000, batch_bytes=2000)
    fetch = RangeFetch(cluster, "ahead", 0, 0, 5000, max_bytes=5000)
    sets = iter(fetch)
    first = next(sets)

    assert fetch._pending is not None
    kept = bytes(first.records)
    second = next(sets)

    assert first.next_offset == second.first_offset
    assert bytes(first.records) == kept, "a set is good while the next one is looked at"
    sets.close()


def test_read_continues_when_the_broker_restarts():
    with Broker() as broker, Cluster(broker.bootstrap, deadline=30) as cluster:
        topics.create(cluster, "restarted")
        topics.write(cluster, "restarted", 30_000, batch_bytes=2000)
        found = []
        batches = read_arrow(
            cluster, "restarted", 0, 0, 30_000, columns=["value"], max_bytes=20_000, rows_max=500
        )
        for number, one in enumerate(batches):
            found += one.column(0).to_pylist()
            if number in (3, 20):
                broker.restart()

    assert found == [b"%d" % n for n in range(30_000)]


@pytest.mark.parametrize(
    ("number", "offset", "max_bytes", "why"),
    [
        (0, 1 << 50, 2 << 20, "not above those of the batch before"),
        (0, 1 << 50, 1, "to end before offset 1125899906842628, but the log ends at 24"),
        (1, 0, 2 << 20, "not above those of the batch before"),
    ],
    ids=["too high, with others", "too high, alone", "too low"],
)
def test_batch_with_a_rotten_first_offset_is_told_and_hides_nothing(
    broker, cluster, number, offset, max_bytes, why
):
    """No checksum covers it, and a broker does not check its own batches again: it serves the
    damaged one.
    """
    name = f"rotten-{number}-{max_bytes}"
    topics.create(cluster, name, segment_bytes=1 << 20)
    with topics.ArrowProducer(cluster, topic=name) as producer:
        for _ in range(6):
            producer.write(pa.record_batch({"value": [b"v" * 100_000] * 4}))
            producer.flush()
    with (broker.data_dir / f"{name}-0" / f"{0:020}.log").open("r+b") as file:
        for _ in range(number):
            file.seek(8, os.SEEK_CUR)
            file.seek(int.from_bytes(file.read(4), "big"), os.SEEK_CUR)
        file.write(offset.to_bytes(8, "big"))

    with pytest.raises(CorruptRecords, match=why):
        for _ in RangeFetch(cluster, name, 0, 0, 24, max_bytes=max_bytes):
            pass


def test_offsets_below_the_log_start_are_told_with_the_range_there_is(cluster):
    topics.create(cluster, "deleted")
    topics.write(cluster, "deleted", 100)
    topics.delete_records(cluster, "deleted", 40)

    with pytest.raises(OffsetOutOfRange) as caught:
        topics.values(cluster, "deleted", start=10, end=100)

    assert (caught.value.wanted, caught.value.log_start, caught.value.log_end) == (10, 40, 100)
    assert topics.values(cluster, "deleted") == [b"%d" % n for n in range(40, 100)]


def test_range_beyond_the_end_is_waited_for_no_longer_than_the_deadline(cluster):
    topics.create(cluster, "short")
    topics.write(cluster, "short", 10)
    began = time.monotonic()

    with pytest.raises(Timeout, match=r"short-0 .*up to 11; last: the log's end is 10"):
        topics.values(cluster, "short", start=0, end=11, deadline=1.0)

    assert time.monotonic() - began < 15, "the cluster's own deadline is 20 s"


def test_topic_recreated_is_not_read_as_the_old_one(cluster):
    topics.create(cluster, "anew")
    topics.write(cluster, "anew", 1000, batch_bytes=1000)
    planned = cluster.topic("anew").id
    fetch = iter(RangeFetch(cluster, "anew", 0, 0, 1000, max_bytes=2000))
    next(fetch)
    topics.delete(cluster, "anew")
    topics.create(cluster, "anew")
    topics.write(cluster, "anew", 1000, batch_bytes=1000)

    with pytest.raises(TopicChanged, match="anew"):
        list(fetch)
    with pytest.raises(TopicChanged, match="planned"):
        topics.values(cluster, "anew", topic_id=planned)
    assert len(topics.values(cluster, "anew")) == 1000


def test_cluster_serves_in_another_process_after_a_fork(cluster):
    topics.create(cluster, "forked")
    topics.write(cluster, "forked", 100)

    child = os.fork()
    if child == 0:
        os._exit(0 if len(topics.values(cluster, "forked")) == 100 else 1)

    assert len(topics.values(cluster, "forked")) == 100
    assert os.waitpid(child, 0)[1] == 0
    assert len(topics.values(pickle.loads(pickle.dumps(cluster)), "forked")) == 100


def test_cluster_that_nobody_serves_is_unreachable_within_the_deadline():
    cluster = Cluster("127.0.0.1:1,127.0.0.1:2", deadline=0.5)
    began = time.monotonic()

    with pytest.raises(UnreachableError) as caught:
        cluster.topics()

    assert set(caught.value.tried) == {"127.0.0.1:1", "127.0.0.1:2"}
    assert time.monotonic() - began < 20, "without a deadline it is 60 s"


def test_wrong_settings_are_told_before_anything_is_connected():
    with pytest.raises(SettingRefused, match=r"bootstrap\.servers"):
        Cluster.from_options({})
    with pytest.raises(SettingRefused, match=r"request\.timeout\.ms"):
        Cluster.from_options({"bootstrap.servers": "a:1", "request.timeout.ms": "soon"})
    made = Cluster.from_options({"bootstrap.servers": "a:1", "request.timeout.ms": "1500"})
    assert made.request_timeout == 1.5


def test_broker_that_stalls_costs_no_more_than_the_deadline(broker, cluster):
    topics.create(cluster, "stalled")
    topics.write(cluster, "stalled", 10)
    pids = [broker.kill("network", index, signal.SIGSTOP) for index in (0, 1)]
    began = time.monotonic()
    try:
        with pytest.raises(Timeout, match="stalled-0"):
            list(read_arrow(cluster, "stalled", 0, 0, 10, deadline=0.5))
        assert time.monotonic() - began < 15, "the cluster's own deadline is 20 s"
    finally:
        for pid in pids:
            os.kill(pid, signal.SIGCONT)
    wait_until(lambda: len(topics.values(cluster, "stalled")) == 10, 60, "it serves again")
