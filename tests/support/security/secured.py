"""A broker with a listener of each protocol, its users, and wire clients that log in."""

from __future__ import annotations

import ssl
from pathlib import Path

from support.clients.wire_client import TIMEOUT_S, WireClient

from kbroker.protocol.messages.sasl_authenticate import SaslAuthenticateRequest
from kbroker.protocol.messages.sasl_handshake import SaslHandshakeRequest
from kbroker.security import certificates
from kbroker.testing import Broker
from kbroker.wire import sasl

PROTOCOLS = ("PLAINTEXT", "SSL", "SASL_PLAINTEXT", "SASL_SSL")
HOST = "127.0.0.1"
# The passwords are looked for in logs, metrics and responses: they occur nowhere by chance.
PASSWORDS = {"admin": "Zq7-admin-secret", "alice": "Zq7-alice-secret"}
JAAS = "org.apache.kafka.common.security.plain.PlainLoginModule required {};"


class LoginRefused(ConnectionError):
    """The broker rejected the credentials. message: its words."""

    def __init__(self, code: int, message: str | None) -> None:
        self.code, self.message = code, message
        super().__init__(f"error {code}: {message}")


class Site:
    """The certificates of a broker and its clients, below ``place``."""

    def __init__(self, place: Path) -> None:
        self.authority = certificates.create_authority("test authority")
        self.ca_file, self.store = place / "ca.crt", place / "broker.pem"
        self.ca_file.write_bytes(self.authority.certificate)
        issued = self.authority.issue("broker", hosts=["localhost", HOST], server=True)
        certificates.write_private(self.store, issued.pem)

    def client_context(self) -> ssl.SSLContext:
        return ssl.create_default_context(cafile=str(self.ca_file))

    def settings(self, *protocols: str, mechanisms: str = "PLAIN") -> dict[str, str]:
        """Of a broker; the users of PLAIN are those of ``PASSWORDS``."""
        users = " ".join(f'user_{name}="{word}"' for name, word in PASSWORDS.items())
        found = {
            "listeners": ",".join(f"{protocol}://{HOST}:0" for protocol in protocols),
            "ssl.keystore.type": "PEM",
            "ssl.keystore.location": str(self.store),
            "ssl.truststore.type": "PEM",
            "ssl.truststore.location": str(self.ca_file),
            "sasl.enabled.mechanisms": mechanisms,
        }
        for protocol in protocols:
            if protocol.startswith("SASL_"):
                name = f"listener.name.{protocol.lower()}.plain.sasl.jaas.config"
                found[name] = JAAS.format(users)
        return found


def address_of(broker: Broker, listener: str) -> tuple[str, int]:
    """Where that listener of the broker is."""
    host, _, port = broker.listeners[listener].rpartition(":")
    return host, int(port)


class SecuredClient(WireClient):
    """A wire client of one listener. Raises LoginRefused, ssl.SSLError (an OSError)."""

    def __init__(
        self,
        address: tuple[str, int],
        timeout: float = TIMEOUT_S,
        client_id: str = "fault",
        *,
        context: ssl.SSLContext | None = None,
        user: str | None = None,
        password: str | None = None,
        mechanism: str = "PLAIN",
    ) -> None:
        super().__init__(address, timeout, client_id)
        try:
            if context is not None:
                self.socket = context.wrap_socket(self.socket, server_hostname=HOST)
            if user is not None:
                self.log_in(user, PASSWORDS[user] if password is None else password, mechanism)
        except BaseException:
            self.close()
            raise

    def log_in(self, user: str, password: str, mechanism: str = "PLAIN") -> None:
        self.log_in_by(sasl.CLIENTS[mechanism](user, password), mechanism)

    def log_in_by(self, client: sasl.Mechanism, mechanism: str) -> None:
        shaken = self.call(SaslHandshakeRequest(mechanism=mechanism), 1)
        if shaken.error_code:
            raise LoginRefused(shaken.error_code, ", ".join(shaken.mechanisms))
        token = client.evaluate(None)
        while not client.done:
            answer = self.call(SaslAuthenticateRequest(auth_bytes=token), 1)
            if answer.error_code:
                raise LoginRefused(answer.error_code, answer.error_message)
            token = client.evaluate(bytes(answer.auth_bytes))
