"""How long the session of a broker lasts for which nothing is configured."""

from __future__ import annotations

import logging

import pytest

from kbroker.config.loader import BrokerConfig
from kbroker.metastore import cluster_identity, paths
from kbroker.metastore.cluster_identity import NotAsked
from kbroker.metastore.zookeeper_settings import ZooKeeperSettings, settings_of
from kbroker.workers.controller.store_start import (
    LOOK_MAX_MS,
    SESSION_TIMEOUT,
    SHORT_SESSION_MS,
    fitting_session,
)

pytestmark = pytest.mark.unit

KBROKER = paths.encode_broker([["PLAINTEXT", "h", 9092, "PLAINTEXT"]], None, 0)
KAFKA = b'{"version":5,"host":"h","port":9092,"endpoints":["PLAINTEXT://h:9092"]}'
LONG_MS = 18_000


def length(
    monkeypatch: pytest.MonkeyPatch, registered: dict[str, bytes] | None, **config: str
) -> int:
    """registered: None: ZooKeeper cannot be asked."""

    def look(settings: ZooKeeperSettings) -> dict[str, bytes]:
        assert settings.connection_timeout_ms == LOOK_MAX_MS
        if registered is None:
            raise NotAsked("no connection within 1000 ms")
        return registered

    monkeypatch.setattr(cluster_identity, "registered_brokers", look)
    named = {"zookeeper.connect": "z:2181"} | {
        name.replace("_", "."): value for name, value in config.items()
    }
    made = BrokerConfig(named)
    return fitting_session(made, settings_of(made)).session_timeout_ms


@pytest.mark.parametrize("registered", [{}, {"1": KBROKER}, {"1": KBROKER, "2": KBROKER}])
def test_short_where_all_are_kbrokers_and_a_line_says_so(
    monkeypatch: pytest.MonkeyPatch,
    registered: dict[str, bytes],
    caplog: pytest.LogCaptureFixture,
) -> None:
    with caplog.at_level(logging.INFO):
        assert length(monkeypatch, registered) == SHORT_SESSION_MS
    assert f"sessions last {SHORT_SESSION_MS} ms, as all registered brokers" in caplog.text


@pytest.mark.parametrize("other", [KAFKA, b"{", b'{"kbroker":[]}'])
def test_long_with_a_kafka_or_one_that_cannot_be_read(
    monkeypatch: pytest.MonkeyPatch, other: bytes
) -> None:
    assert length(monkeypatch, {"1": KBROKER, "2": other}) == LONG_MS


def test_long_where_zookeeper_cannot_be_asked(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.INFO):
        assert length(monkeypatch, None) == LONG_MS
    assert "cannot ask ZooKeeper who else is in the cluster" in caplog.text


@pytest.mark.parametrize("value", ["18000", "9000"])
def test_what_is_configured_wins(monkeypatch: pytest.MonkeyPatch, value: str) -> None:
    named = {SESSION_TIMEOUT.replace(".", "_"): value}
    assert length(monkeypatch, {"1": KBROKER}, **named) == int(value)
