"""Binding: which address, and the error if it is not available."""

from __future__ import annotations

import socket

import pytest

from kbroker.config.broker_keys import BROKER_KEYS
from kbroker.config.loader import BrokerConfig
from kbroker.errors import ConfigError
from kbroker.supervisor.listening import bind_listeners, bind_metrics

pytestmark = pytest.mark.unit


def test_port_0_is_replaced_by_the_chosen_port() -> None:
    [(listener, sock)] = bind_listeners(BrokerConfig({"listeners": "PLAINTEXT://127.0.0.1:0"}))

    with sock, socket.create_connection(("127.0.0.1", listener.port), timeout=1):
        assert listener.port == sock.getsockname()[1] != 0


def test_empty_host_listens_on_every_interface() -> None:
    [(listener, sock)] = bind_listeners(BrokerConfig({"listeners": "PLAINTEXT://:0"}))

    with sock, socket.create_connection(("127.0.0.1", listener.port), timeout=1):
        assert listener.host == ""


def test_taken_port_is_a_config_error_with_key_and_value() -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]

        with pytest.raises(ConfigError, match=rf"listeners.*{port}.*address already in use"):
            bind_listeners(BrokerConfig({"listeners": f"PLAINTEXT://127.0.0.1:{port}"}))


def test_unknown_host_is_a_config_error() -> None:
    with pytest.raises(ConfigError, match="an address"):
        bind_listeners(BrokerConfig({"listeners": "PLAINTEXT://192.0.2.1:0"}))


def test_metrics_port_minus_1_binds_nothing() -> None:
    assert bind_metrics(BrokerConfig({"metrics.port": "-1"})) is None


def test_default_port_of_metrics_that_is_taken_gives_way(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """Several brokers on one machine, started with Kafka's own file."""
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        monkeypatch.setattr(BROKER_KEYS["metrics.port"], "default", port)
        bound = bind_metrics(BrokerConfig({}))
        assert bound is not None
        with bound:
            assert bound.getsockname()[0] == "127.0.0.1"
            assert bound.getsockname()[1] != port
        assert str(port) in caplog.text
        with pytest.raises(ConfigError):
            bind_metrics(BrokerConfig({"metrics.port": str(port)}))


def test_metrics_are_served_on_the_loopback_unless_they_are_turned_off() -> None:
    config = BrokerConfig({})
    assert (config["metrics.host"], config["metrics.port"]) == ("127.0.0.1", 9644)
