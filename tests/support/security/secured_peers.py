"""The certificates of a cluster's brokers, and their settings for connections between them."""

from __future__ import annotations

import json
import ssl
from pathlib import Path
from typing import Any

from kazoo.client import KazooClient

from kbroker.config.loader import BrokerConfig
from kbroker.security.certificates import create_authority, write_private
from kbroker.security.sasl.scram import from_password, to_text

HOST = "127.0.0.1"
USER, PASSWORD = "broker", "Zq7-broker-secret"
MODULES = {
    "PLAIN": "org.apache.kafka.common.security.plain.PlainLoginModule",
    "SCRAM-SHA-256": "org.apache.kafka.common.security.scram.ScramLoginModule",
    "SCRAM-SHA-512": "org.apache.kafka.common.security.scram.ScramLoginModule",
}


class SecuredPeers:
    """Below ``place``: a key store for all brokers, and the authority that has signed it."""

    def __init__(self, place: Path) -> None:
        self.authority = create_authority("test CA")
        self.trust, self.store = place / "ca.crt", place / "broker.pem"
        self.trust.write_bytes(self.authority.certificate)
        self.issue([HOST, "localhost"])

    def issue(self, hosts: list[str], store: Path | None = None, **validity: Any) -> Path:
        """Replace a key store, by default that of the brokers. validity: of ``Authority.issue``."""
        path = store or self.store
        issued = self.authority.issue("broker", hosts=hosts, server=True, **validity)
        write_private(path, issued.pem)
        return path

    def stores(self) -> dict[str, str]:
        """The settings of TLS."""
        return {
            "ssl.keystore.type": "PEM",
            "ssl.keystore.location": str(self.store),
            "ssl.truststore.type": "PEM",
            "ssl.truststore.location": str(self.trust),
        }

    def stores_in_properties(self) -> dict[str, str]:
        """The same as texts for a file of properties: Kafka 2.7 does not read files with keys that
        are not encrypted, and of several certificates on one line only the last.
        """

        def escaped(data: bytes) -> str:
            return data.decode().replace("\n", "\\n")

        issued = self.authority.issue("broker", hosts=[HOST, "localhost"], server=True)
        return {
            "ssl.keystore.type": "PEM",
            "ssl.keystore.key": escaped(issued.key),
            "ssl.keystore.certificate.chain": escaped(issued.chain),
            "ssl.truststore.type": "PEM",
            "ssl.truststore.certificates": escaped(self.authority.certificate),
        }

    def settings(
        self,
        protocol: str = "SASL_SSL",
        mechanism: str = "PLAIN",
        password: str = PASSWORD,
        listener: str | None = None,
    ) -> dict[str, str]:
        """Of a broker whose listener for brokers uses this protocol, and has its name unless
        another one is given. With PLAIN, brokers accept each other.
        """
        found = {"security.inter.broker.protocol": protocol}
        if listener is not None:
            found = {
                "inter.broker.listener.name": listener,
                "listener.security.protocol.map": f"PLAINTEXT:PLAINTEXT,{listener}:{protocol}",
            }
        if protocol.endswith("SSL"):
            found |= self.stores()
        if protocol.startswith("SASL_"):
            known = f'username="{USER}" password="{password}"'
            if mechanism == "PLAIN":
                known += f' user_{USER}="{PASSWORD}"'
            name = f"listener.name.{(listener or protocol).lower()}.{mechanism.lower()}"
            found |= {
                "sasl.enabled.mechanisms": mechanism,
                "sasl.mechanism.inter.broker.protocol": mechanism,
                f"{name}.sasl.jaas.config": f"{MODULES[mechanism]} required {known};",
            }
        return found

    def config(self, protocol: str = "SASL_SSL", **more: str) -> BrokerConfig:
        """These settings, with others by name."""
        named = {name.replace("_", "."): value for name, value in more.items()}
        return BrokerConfig(self.settings(protocol) | named)

    def server_context(self, requires_certificate: bool = True) -> ssl.SSLContext:
        """Of another broker's listener."""
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.load_cert_chain(self.store)
        if requires_certificate:
            context.verify_mode = ssl.CERT_REQUIRED
            context.load_verify_locations(self.trust)
        return context


def write_user(connect: str, mechanism: str, user: str = USER, password: str = PASSWORD) -> None:
    """Write a SCRAM user into ZooKeeper, as kafka-configs.sh --zookeeper does for the brokers of a
    cluster that is yet to start.
    """
    text = to_text(from_password(mechanism, password, 4096))
    document = json.dumps({"version": 1, "config": {mechanism: text}}).encode()
    store = KazooClient(connect)
    store.start(timeout=60)  # a busy machine takes longer than the default, 15 s
    try:
        store.ensure_path("/config/users")
        store.ensure_path("/config/changes")
        store.create(f"/config/users/{user}", document)
        notice = json.dumps({"version": 2, "entity_path": f"users/{user}"})
        store.create("/config/changes/config_change_", notice.encode(), sequence=True)
    finally:
        store.stop()
        store.close()
