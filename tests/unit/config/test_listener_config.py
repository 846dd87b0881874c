"""The configs of one listener and of its SASL mechanisms."""

from __future__ import annotations

import pytest

from kbroker.config.broker_keys import BROKER_KEYS, BROKER_NAMES, find_key, listener_key
from kbroker.config.describe import describe_broker
from kbroker.config.dynamic import SET, AlterOp, alter_broker, reload, replace_broker
from kbroker.config.loader import BrokerConfig, ConfigSource
from kbroker.errors import ConfigError

pytestmark = pytest.mark.unit

TWO = {
    "listeners": "IN://127.0.0.1:1,OUT://127.0.0.1:2",
    "listener.security.protocol.map": "IN:SSL,OUT:SASL_SSL",
    "ssl.keystore.location": "/all",
    "listener.name.out.ssl.keystore.location": "/out",
    "listener.name.out.sasl.login.connect.timeout.ms": "1",
    "listener.name.out.plain.sasl.login.connect.timeout.ms": "2",
}


def test_security_protocol_of_a_listener_says_what_it_needs() -> None:
    listeners = {each.name: each for each in BrokerConfig(TWO).listeners}

    assert [(each.uses_tls, each.uses_sasl) for each in listeners.values()] == [
        (True, False),
        (True, True),
    ]


def test_config_of_the_listener_comes_before_the_brokers() -> None:
    config = BrokerConfig(TWO)

    name = "ssl.keystore.location"
    assert config.of_listener("IN")[name] == "/all"
    assert config.of_listener("OUT")[name] == "/out"
    assert config.of_listener("OUT").name_of(name) == f"listener.name.out.{name}"
    assert config.of_listener("IN").is_set(name)
    assert not config.of_listener("IN").is_set("ssl.key.password")
    assert config.of_listener("IN")["ssl.client.auth"] == "none", "the default"


def test_config_of_the_mechanism_comes_before_the_listeners() -> None:
    config = BrokerConfig(TWO)

    name = "sasl.login.connect.timeout.ms"
    assert config.of_listener("OUT", "PLAIN")[name] == 2
    assert config.of_listener("OUT", "SCRAM-SHA-256")[name] == 1
    assert config.of_listener("OUT")[name] == 1
    assert config.of_listener("IN", "PLAIN")[name] is None


def test_dynamic_config_of_the_broker_does_not_replace_a_listeners() -> None:
    config = BrokerConfig(TWO, dynamic_broker={"ssl.keystore.location": "/new"})

    assert config.of_listener("IN")["ssl.keystore.location"] == "/new"
    assert config.of_listener("OUT")["ssl.keystore.location"] == "/out"


def test_listeners_config_can_be_altered_for_one_broker_only() -> None:
    config = BrokerConfig(TWO)
    name = "listener.name.in.ssl.keystore.location"

    changed = alter_broker({}, [AlterOp(name, SET, "/in")], config, per_broker=True)

    assert changed == {name: "/in"}
    altered = config.with_dynamic({}, changed)
    assert altered.of_listener("IN")["ssl.keystore.location"] == "/in"
    assert altered.source(name) == ConfigSource.DYNAMIC_BROKER
    with pytest.raises(ConfigError, match="not for all"):
        alter_broker({}, [AlterOp(name, SET, "/in")], config, per_broker=False)
    with pytest.raises(ConfigError, match="restart"):
        replace_broker({"listener.name.in.ssl.allow.dn.changes": "true"}, config, per_broker=True)
    with pytest.raises(ConfigError, match="one of required"):
        replace_broker({"listener.name.in.ssl.client.auth": "often"}, config, per_broker=True)


def test_listeners_config_is_reloaded_with_the_file() -> None:
    name = "listener.name.out.ssl.keystore.location"

    config, applied, waiting = reload(BrokerConfig(TWO), BrokerConfig({**TWO, name: "/moved"}))

    assert (config[name], applied, waiting) == ("/moved", [name], [])


def test_listeners_config_is_described_with_the_brokers_behind_it() -> None:
    name = "listener.name.out.ssl.keystore.location"

    [entry] = describe_broker(BrokerConfig(TWO), [name])

    assert (entry.value, entry.source, entry.read_only) == (
        "/out",
        ConfigSource.STATIC_BROKER,
        False,
    )
    assert [(each.name, each.value) for each in entry.synonyms] == [
        (name, "/out"),
        ("ssl.keystore.location", "/all"),
    ]


def test_listeners_secret_is_never_shown() -> None:
    name = "listener.name.out.ssl.key.password"

    [entry] = describe_broker(BrokerConfig({**TWO, name: "hunter2"}), [name])

    assert (entry.value, entry.sensitive) == (None, True)
    assert [each.value for each in entry.synonyms] == [None]


@pytest.mark.parametrize(
    ("name", "base"),
    [
        ("listener.name.external.ssl.keystore.type", "ssl.keystore.type"),
        ("listener.name.x.plain.sasl.jaas.config", "sasl.jaas.config"),
        ("listener.name.x.scram-sha-256.sasl.jaas.config", "sasl.jaas.config"),
        ("listener.name.x.plain.connections.max.reauth.ms", "connections.max.reauth.ms"),
        ("listener.name.x.principal.builder.class", "principal.builder.class"),
        ("listener.name.x.nonsense", None),
        ("listener.name.x.log.dirs", None),
        ("listener.name.x.plain.ssl.keystore.type", None),
        ("listener.name.x.sasl.mechanism.inter.broker.protocol", None),
        ("listener.name.X.ssl.keystore.type", None),
        ("listener.name..ssl.keystore.type", None),
        ("listener.name.x.", None),
        ("listener.name.", None),
    ],
)
def test_names_of_listeners_configs(name: str, base: str | None) -> None:
    key = listener_key(name)

    assert (key.base if key else None) == base
    assert (name in BROKER_NAMES) == (base is not None)
    assert find_key(name) is key
    if key is not None and base is not None:
        assert (key.name, key.synonyms) == (name, (name,))
        assert (key.type, key.dynamic) == (BROKER_KEYS[base].type, BROKER_KEYS[base].dynamic)
