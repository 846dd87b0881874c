"""The pool of clusters of a Python worker, and the alias for the name kafka."""

from functools import partial

import pytest

pytest.importorskip("pyspark")

from kbroker.spark import install_kafka_alias, reading, sink, source
from kbroker.spark import pool as pool_module
from kbroker.spark.exactly_once import WriteAttempt
from kbroker.spark.options.option_values import OptionError
from kbroker.spark.options.options import parse_read, parse_write
from kbroker.spark.pool import ClusterPool, PoolLimits, borrowed
from kbroker.spark.source import ROW

pytestmark = pytest.mark.unit

PLACE = ("a:1", {"client.id": "x"})


@pytest.fixture
def closed(monkeypatch):
    """The closed clusters; none is ever connected."""
    found = []
    monkeypatch.setattr(pool_module.Cluster, "close", lambda self: found.append(self))
    return found


def test_cluster_comes_back_for_the_same_settings_only(closed):
    pool = ClusterPool()
    with borrowed(*PLACE, pool) as first:
        assert first.client_id == "x"

    with borrowed(*PLACE, pool) as again, borrowed(*PLACE, pool) as other:
        assert again is first
        assert other is not first, "one user at a time"
    with borrowed("a:1", {}, pool) as different:
        assert different not in (first, other)
    assert closed == []


def test_cluster_that_was_used_in_vain_is_closed(closed):
    pool = ClusterPool()

    with pytest.raises(KeyError), borrowed(*PLACE, pool) as first:
        raise KeyError("x")

    assert closed == [first]
    with borrowed(*PLACE, pool) as second:
        assert second is not first


def test_generator_that_is_left_early_closes_its_cluster(closed):
    pool = ClusterPool()

    def rows():
        with borrowed(*PLACE, pool):
            yield 1
            yield 2

    made = rows()
    next(made)
    made.close()

    assert len(closed) == 1


def test_idle_cluster_is_closed_when_its_time_is_over(closed, monkeypatch):
    now = [100.0]
    monkeypatch.setattr(pool_module.time, "monotonic", lambda: now[0])
    pool = ClusterPool()
    with borrowed(*PLACE, pool, limits=PoolLimits(idle_s=10)) as first:
        pass
    now[0] += 11

    with borrowed(*PLACE, pool) as second:
        assert second is not first
    assert closed == [first]


def test_no_more_clusters_are_idle_than_the_limit_says(closed):
    pool, two = ClusterPool(), PoolLimits(capacity=2)
    given = [(f"{name}:1", {}, pool) for name in "abc"]
    with borrowed(*given[0], limits=two) as a, borrowed(*given[1], limits=two) as b:
        with borrowed(*given[2], limits=two) as c:
            pass

    assert closed == [a], "the last to come back"
    with borrowed(*given[1]) as again, borrowed(*given[2]) as third:
        assert (again, third) == (b, c)
    with borrowed(*given[0], limits=PoolLimits(capacity=0)) as none:
        pass
    assert closed == [a, none]


def test_limits_of_the_pool_are_those_of_the_connector_unless_given():
    given = {"kafka.bootstrap.servers": "a:1", "subscribe": "t"}
    read, write = parse_read(given, streaming=False), parse_write(given)

    assert (read.pool, write.pool.idle_s) == (PoolLimits(64, 300.0), 600.0)
    given["spark.kafka.consumer.cache.capacity"] = "3"
    given["spark.kafka.consumer.cache.timeout"] = "20s"
    given["spark.kafka.producer.cache.timeout"] = "1m"
    assert parse_read(given, streaming=True).pool == PoolLimits(3, 20.0)
    assert parse_write(given).pool.idle_s == 60.0
    for name in list(given)[2:]:
        with pytest.raises(OptionError, match=f"{name} is .*: write"):
            parse = parse_write if "producer" in name else partial(parse_read, streaming=False)
            parse({**given, name: "-1"})


def test_reader_and_writer_pass_their_limits_on(monkeypatch):
    given = {"kafka.bootstrap.servers": "a:1", "subscribe": "t", "topic": "t"}
    given["spark.kafka.consumer.cache.timeout"] = "20s"
    given["spark.kafka.producer.cache.timeout"] = "30s"
    asked = []

    def borrow(bootstrap, settings, *, limits):
        asked.append(limits.idle_s)
        raise ConnectionError("far enough")

    for module in (source, reading, sink):
        monkeypatch.setattr(module, "borrowed", borrow)
    monkeypatch.setattr(sink, "prepare_worker", lambda: None)
    read = parse_read(given, streaming=False)
    columns = ROW.fieldNames()
    attempt = WriteAttempt("w", 0, "first")
    for use in (
        source.BatchReader(read, ROW).partitions,
        lambda: next(reading.read_ranges(read, [], source.arrow_schema(ROW), {})),
        lambda: sink.BatchWriter(parse_write(given), columns)._write(iter(()), attempt, 0),
    ):
        with pytest.raises(ConnectionError):
            use()

    assert asked == [20.0, 20.0, 30.0]


def test_forked_process_starts_without_the_connections_of_its_parent(closed, monkeypatch):
    pool = ClusterPool()
    with borrowed(*PLACE, pool) as first:
        pass
    monkeypatch.setattr(pool_module.os, "getpid", lambda: -1)

    with borrowed(*PLACE, pool) as second:
        assert second is not first


def test_alias_gives_the_name_kafka_to_kbroker(monkeypatch):
    from pyspark.sql.readwriter import DataFrameReader, DataFrameWriter
    from pyspark.sql.streaming.readwriter import DataStreamReader, DataStreamWriter

    owners = (DataFrameReader, DataFrameWriter, DataStreamReader, DataStreamWriter)
    asked = []
    for owner in owners:
        monkeypatch.setattr(owner, "format", lambda self, source: asked.append(source))

    install_kafka_alias()
    install_kafka_alias()

    for owner in owners:
        for name in ("kafka", "KAFKA", "parquet"):
            owner.format(None, name)
    assert asked == ["kbroker", "kbroker", "parquet"] * 4
