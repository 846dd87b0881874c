"""SCRAM users that a tool writes into ZooKeeper, as kafka-configs.sh --zookeeper does."""

from __future__ import annotations

import json
from contextlib import closing

import pytest
from kazoo.client import KazooClient
from support.brokers.zookeeper import path_of_its_own

from kbroker.client.connections.cluster import Cluster
from kbroker.client.connections.security import Security
from kbroker.client.errors import AuthenticationFailed
from kbroker.security.sasl.scram import from_password, to_text
from kbroker.testing import Broker, wait_until

pytestmark = pytest.mark.integration

USER = "/config/users/eve%20x"
SETTINGS = {
    "listeners": "SASL_PLAINTEXT://127.0.0.1:0,PLAINTEXT://127.0.0.1:0",
    "sasl.enabled.mechanisms": "SCRAM-SHA-512",
}


def logs_in(broker: Broker, password: str) -> bool:
    options = {
        "security.protocol": "SASL_PLAINTEXT",
        "sasl.mechanism": "SCRAM-SHA-512",
        "sasl.username": "eve x",
        "sasl.password": password,
    }
    address = f"127.0.0.1:{broker.port}"
    try:
        with Cluster(address, Security.from_options(options), deadline=20) as cluster:
            cluster.topics()
    except AuthenticationFailed:
        return False
    return True


def write(store: KazooClient, password: str) -> None:
    """The node of the user, and the notification of it."""
    text = to_text(from_password("SCRAM-SHA-512", password, 4096))
    document = json.dumps({"version": 1, "config": {"SCRAM-SHA-512": text}}).encode()
    if store.exists(USER):
        store.set(USER, document)
    else:
        store.create(USER, document)
    notice = json.dumps({"version": 2, "entity_path": USER.removeprefix("/config/")})
    store.create("/config/changes/config_change_", notice.encode(), sequence=True)


def test_password_written_into_zookeeper_counts_until_it_is_changed_there() -> None:
    place = path_of_its_own()
    store = KazooClient(place)
    store.start()
    with closing(store), Broker(SETTINGS | {"zookeeper.connect": place}) as broker:
        write(store, "first")
        wait_until(lambda: logs_in(broker, "first"))

        write(store, "second")
        wait_until(lambda: logs_in(broker, "second"))
        assert not logs_in(broker, "first")
        store.stop()
