"""Broker id and cluster id from a real ZooKeeper, before the broker forks."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import pytest
from support.brokers.zookeeper import ZooKeeperServer

from kbroker.config.loader import BrokerConfig
from kbroker.errors import ConfigError
from kbroker.metastore import paths
from kbroker.metastore.zookeeper_client import new_client
from kbroker.metastore.zookeeper_settings import settings_of
from kbroker.supervisor.data_dirs import DataDirs

pytestmark = pytest.mark.integration


@pytest.fixture(scope="module")
def zookeeper(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ZooKeeperServer]:
    with ZooKeeperServer(tmp_path_factory.mktemp("zookeeper")) as server:
        yield server


@pytest.fixture
def connect(zookeeper: ZooKeeperServer, request: pytest.FixtureRequest) -> str:
    """A tree for each test."""
    return f"{zookeeper.connect}/{request.node.name}/kafka"


def config(directory: Path, connect: str, **settings: str) -> BrokerConfig:
    named = {name.replace("_", "."): value for name, value in settings.items()}
    return BrokerConfig({"log.dirs": str(directory), "zookeeper.connect": connect, **named})


def begun(found: BrokerConfig) -> DataDirs:
    dirs = DataDirs.open(found)
    dirs.begin()
    dirs.release()
    return dirs


def document(connect: str, path: str) -> bytes:
    client = new_client(settings_of(BrokerConfig({"zookeeper.connect": connect})))
    client.start(10)
    try:
        return bytes(client.get(path)[0])
    finally:
        client.stop()
        client.close()


def test_first_broker_makes_the_cluster_and_the_next_ones_join_it(
    tmp_path: Path, connect: str
) -> None:
    first = begun(config(tmp_path / "a", connect))
    second = begun(config(tmp_path / "b", connect))
    named = begun(config(tmp_path / "c", connect, broker_id="7"))

    assert json.loads(document(connect, paths.CLUSTER_ID)) == {
        "version": "1",
        "id": first.cluster_id,
    }
    assert {second.cluster_id, named.cluster_id} == {first.cluster_id}
    # Above reserved.broker.max.id, and unique.
    assert (first.broker_id, second.broker_id, named.broker_id) == (1001, 1002, 7)
    assert begun(config(tmp_path / "a", connect)).broker_id == 1001


def test_broker_of_another_cluster_is_refused_and_both_are_named(
    tmp_path: Path, connect: str
) -> None:
    cluster_id = begun(config(tmp_path / "a", connect)).cluster_id
    (tmp_path / "b").mkdir()
    (tmp_path / "b" / "meta.properties").write_text("version=0\ncluster.id=other\n")

    with pytest.raises(ConfigError, match=f"is of cluster {cluster_id}.* are of cluster other"):
        DataDirs.open(config(tmp_path / "b", connect))


def test_broker_of_a_cluster_that_this_zookeeper_does_not_know_is_refused(
    tmp_path: Path, connect: str
) -> None:
    """A wrong path in zookeeper.connect must not create a second cluster."""
    (tmp_path / "meta.properties").write_text("version=0\ncluster.id=other\n")

    with pytest.raises(ConfigError, match=r"knows no cluster id.* are of cluster other"):
        DataDirs.open(config(tmp_path, connect))
