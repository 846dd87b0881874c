"""Where a broker is, by what it has registered in ZooKeeper."""

from __future__ import annotations

import json

import pytest

from kbroker.client.zookeeper.registered_brokers import address_of

pytestmark = pytest.mark.unit

OF_0_8 = {"jmx_port": -1, "timestamp": "1", "host": "h", "version": 1, "port": 9092}
OF_2_7 = {
    "listener_security_protocol_map": {"IN": "PLAINTEXT", "OUT": "SSL"},
    "endpoints": ["IN://in:9092", "OUT://out:9093"],
    "host": None,
    "port": -1,
    "version": 4,
}


@pytest.mark.parametrize(
    ("row", "protocol", "address"),
    [
        (OF_0_8, None, "h:9092"),
        (OF_0_8, "PLAINTEXT", "h:9092"),
        (OF_2_7, "PLAINTEXT", "in:9092"),
        (OF_2_7, "SSL", "out:9093"),
        (OF_2_7, None, "in:9092"),
        ({"endpoints": ["SSL://s:1", "PLAINTEXT://p:2"]}, None, "p:2"),
        ({"endpoints": ["SSL://s:1", "PLAINTEXT://p:2"]}, "SSL", "s:1"),
        ({"endpoints": []}, "SSL", None),
        ({}, None, None),
        ([], None, None),
    ],
)
def test_the_listener_of_the_protocol_counts(row, protocol, address):
    assert address_of(json.dumps(row).encode(), protocol) == address


def test_other_nodes_name_none():
    assert address_of(b"x") is None
