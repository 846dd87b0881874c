"""The pool of clusters of a Python worker, and the alias for the name kafka."""

import pytest

pytest.importorskip("pyspark")

from kbroker.spark import install_kafka_alias
from kbroker.spark import pool as pool_module
from kbroker.spark.pool import ClusterPool, borrowed

pytestmark = pytest.mark.unit

PLACE = ("a:1", {"client.id": "x"})


@pytest.fixture
def closed(monkeypatch):
    """The clusters that were closed; none is ever connected."""
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
    pool = ClusterPool(ttl_s=10)
    with borrowed(*PLACE, pool) as first:
        pass
    now[0] += 11

    with borrowed(*PLACE, pool) as second:
        assert second is not first
    assert closed == [first]


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
