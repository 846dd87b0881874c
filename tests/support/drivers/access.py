"""How clients reach brokers: an address, and how to log in there, in the words of each client."""

from __future__ import annotations

import ssl
from dataclasses import dataclass
from typing import Any

_PLAIN = "org.apache.kafka.common.security.plain.PlainLoginModule"
_SCRAM = "org.apache.kafka.common.security.scram.ScramLoginModule"


@dataclass(frozen=True, slots=True)
class Access:
    """mechanism: of SASL_SSL; without one, plain text. authority: the file of the certificate that
    clients trust. replicas: of the topics that they create.
    """

    bootstrap: str
    mechanism: str = ""
    user: str = ""
    password: str = ""
    authority: str = ""
    replicas: int = 1

    def librdkafka(self) -> dict[str, Any]:
        found = {"bootstrap.servers": self.bootstrap}
        if not self.mechanism:
            return found
        return found | {
            "security.protocol": "SASL_SSL",
            "sasl.mechanisms": self.mechanism,
            "sasl.username": self.user,
            "sasl.password": self.password,
            "ssl.ca.location": self.authority,
        }

    def kcat(self) -> list[str]:
        """Of its command line."""
        settings = self.librdkafka().items()
        return [word for name, value in settings for word in ("-X", f"{name}={value}")]

    def _python(self) -> dict[str, Any]:
        found: dict[str, Any] = {"bootstrap_servers": self.bootstrap}
        if not self.mechanism:
            return found
        return found | {
            "security_protocol": "SASL_SSL",
            "sasl_mechanism": self.mechanism,
            "sasl_plain_username": self.user,
            "sasl_plain_password": self.password,
        }

    def kafka_python(self) -> dict[str, Any]:
        return self._python() | ({"ssl_cafile": self.authority} if self.mechanism else {})

    def aiokafka(self) -> dict[str, Any]:
        if not self.mechanism:
            return self._python()
        context = ssl.create_default_context(cafile=self.authority)
        return self._python() | {"ssl_context": context}

    def java(self) -> dict[str, str]:
        found = {"bootstrap.servers": self.bootstrap}
        if not self.mechanism:
            return found
        module = _PLAIN if self.mechanism == "PLAIN" else _SCRAM
        login = f'{module} required username="{self.user}" password="{self.password}";'
        return found | {
            "security.protocol": "SASL_SSL",
            "sasl.mechanism": self.mechanism,
            "sasl.jaas.config": login,
            "ssl.truststore.type": "PEM",
            "ssl.truststore.location": self.authority,
        }


def access_to(where: str | Access) -> Access:
    """In plain text, if there is no more than an address."""
    return where if isinstance(where, Access) else Access(where)
