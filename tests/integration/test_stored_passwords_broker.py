"""Passwords that AlterConfigs sets, with real processes."""

from __future__ import annotations

import ssl
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka.admin import (
    AdminClient,
    AlterConfigOpType,
    ConfigEntry,
    ConfigResource,
    ResourceType,
)
from support.brokers.zookeeper import skip_without_zookeeper
from support.security.secured import JAAS, LoginRefused, SecuredClient, Site, address_of

from kbroker.testing import Broker, BrokerFailed, Cluster

pytestmark = [pytest.mark.integration, pytest.mark.timeout(120)]

STORE_PASSWORD = "Zq7-store"


def alter(broker: Broker, name: str, value: str) -> None:
    plain = "{}:{}".format(*address_of(broker, "PLAINTEXT"))
    admin = AdminClient({"bootstrap.servers": plain})
    entry = ConfigEntry(name, value, incremental_operation=AlterConfigOpType.SET)
    resource = ConfigResource(ResourceType.BROKER, "0", incremental_configs=[entry])
    for done in admin.incremental_alter_configs([resource]).values():
        done.result(20)


def store_with_a_password(place: Path) -> tuple[Path, ssl.SSLContext]:
    """A key store, and what trusts it."""
    from cryptography.hazmat.primitives.serialization import (
        BestAvailableEncryption,
        load_pem_private_key,
        pkcs12,
    )
    from cryptography.x509 import load_pem_x509_certificates

    site = Site(place)
    pem = site.store.read_bytes()
    leaf, *others = load_pem_x509_certificates(pem)
    key: Any = load_pem_private_key(pem, None)
    encryption = BestAvailableEncryption(STORE_PASSWORD.encode())
    store = place / "broker.p12"
    store.write_bytes(
        pkcs12.serialize_key_and_certificates(b"broker", key, leaf, others, encryption)
    )
    return store, site.client_context()


NAME = "listener.name.ssl.ssl.keystore.password"


def test_password_of_a_key_store_is_read_from_the_metadata_store_at_the_start(
    tmp_path: Path,
) -> None:
    """As in Kafka. Where it is not, the start is refused."""
    store, context = store_with_a_password(tmp_path)
    settings = {
        "listeners": "PLAINTEXT://127.0.0.1:0,SSL://127.0.0.1:0",
        "ssl.keystore.type": "PKCS12",
        "ssl.keystore.location": store,
        "password.encoder.secret": "Zq7-encoder",
        NAME: STORE_PASSWORD,
    }
    with Broker(settings) as broker:
        alter(broker, NAME, STORE_PASSWORD)
        broker.stop()
        del broker.config[NAME]
        broker.start()
        SecuredClient(address_of(broker, "SSL"), context=context).close()
        broker.kill("network", 0)
        broker.kill_all()  # the next start finds the settings in the log of changes
        mark = len(broker.log_text)
        broker.start()
        SecuredClient(address_of(broker, "SSL"), context=context).close()
        assert "ERROR" not in broker.log_text[mark:]
        broker.stop()
        del broker.config["password.encoder.secret"]
        with pytest.raises(BrokerFailed, match="exited with 2"):
            broker.start()
        assert STORE_PASSWORD not in broker.log_text


@pytest.mark.slow
def test_password_of_a_key_store_is_read_from_zookeeper_at_the_start(tmp_path: Path) -> None:
    skip_without_zookeeper()
    store, context = store_with_a_password(tmp_path)
    settings = {
        "listener.name.ssl.ssl.keystore.type": "PKCS12",
        "listener.name.ssl.ssl.keystore.location": store,
        "password.encoder.secret": "Zq7-encoder",
        NAME: STORE_PASSWORD,
    }
    with Cluster(1, settings) as cluster:
        (broker,) = cluster.brokers
        broker.stop()
        broker.config["listeners"] += ",SSL://127.0.0.1:0"
        broker.start()
        alter(broker, NAME, STORE_PASSWORD)
        broker.stop()
        del broker.config[NAME]
        broker.start()
        SecuredClient(address_of(broker, "SSL"), context=context).close()
        assert STORE_PASSWORD not in broker.log_text


def test_password_of_a_listener_set_by_alter_configs_counts_at_once(tmp_path: Path) -> None:
    """sasl.jaas.config of PLAIN, in the store encrypted and in no log."""
    name = "listener.name.sasl_plaintext.plain.sasl.jaas.config"
    settings = {
        "listeners": "PLAINTEXT://127.0.0.1:0,SASL_PLAINTEXT://127.0.0.1:0",
        "sasl.enabled.mechanisms": "PLAIN",
        name: JAAS.format('user_alice="first-Zq7"'),
        "password.encoder.secret": "Zq7-encoder",
    }
    with Broker(settings) as broker:
        plain = "{}:{}".format(*address_of(broker, "PLAINTEXT"))
        admin = AdminClient({"bootstrap.servers": plain})
        alter(broker, name, JAAS.format('user_alice="second-Zq7"'))
        address = address_of(broker, "SASL_PLAINTEXT")
        SecuredClient(address, user="alice", password="second-Zq7").close()
        with pytest.raises(LoginRefused):
            SecuredClient(address, user="alice", password="first-Zq7")
        with pytest.raises(Exception, match="a login in Kafka's syntax"):
            alter(broker, name, "third-Zq7")
        resource = ConfigResource(ResourceType.BROKER, "0")
        (described,) = admin.describe_configs([resource]).values()
        found = described.result(20)[name]
        files = [path.read_bytes() for path in broker.data_dir.rglob("*") if path.is_file()]
        broker.restart()
        SecuredClient(address_of(broker, "SASL_PLAINTEXT"), user="alice", password="second-Zq7")
        text = broker.log_text

    assert (found.value, found.is_sensitive) == (None, True)
    assert "Zq7" not in text
    assert any(b"encryptedPassword" in content for content in files)
    assert not any(b"Zq7" in content for content in files)
