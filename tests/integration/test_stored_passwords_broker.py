"""Passwords that AlterConfigs sets, with real processes."""

from __future__ import annotations

from pathlib import Path

import pytest
from confluent_kafka.admin import (
    AdminClient,
    AlterConfigOpType,
    ConfigEntry,
    ConfigResource,
    ResourceType,
)
from support.secured import JAAS, LoginRefused, SecuredClient, address_of

from kbroker.testing import Broker

pytestmark = [pytest.mark.integration, pytest.mark.timeout(120)]


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

        def alter(value: str) -> None:
            entry = ConfigEntry(name, value, incremental_operation=AlterConfigOpType.SET)
            resource = ConfigResource(ResourceType.BROKER, "0", incremental_configs=[entry])
            for done in admin.incremental_alter_configs([resource]).values():
                done.result(20)

        alter(JAAS.format('user_alice="second-Zq7"'))
        address = address_of(broker, "SASL_PLAINTEXT")
        SecuredClient(address, user="alice", password="second-Zq7").close()
        with pytest.raises(LoginRefused):
            SecuredClient(address, user="alice", password="first-Zq7")
        with pytest.raises(Exception, match="a login in Kafka's syntax"):
            alter("third-Zq7")
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
