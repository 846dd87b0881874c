"""TLS of one listener, replaced when its configs or files change.

New connections use the new context; those that are there keep the one they began with.
"""

from __future__ import annotations

import logging
import ssl
from datetime import UTC, datetime, timedelta

from kbroker.errors import ConfigError
from kbroker.security.tls.contexts import Served, check_replacement, file_signs, server_context
from kbroker.security.tls.principal_mapping import PrincipalMapping
from kbroker.security.tls.stores import StoreConfigs

logger = logging.getLogger(__name__)

_EXPIRES_SOON = timedelta(days=14)
CONFIG_NAMES = (
    "ssl.protocol",
    "ssl.enabled.protocols",
    "ssl.cipher.suites",
    "ssl.client.auth",
    "ssl.keystore.type",
    "ssl.keystore.location",
    "ssl.keystore.password",
    "ssl.keystore.key",
    "ssl.keystore.certificate.chain",
    "ssl.key.password",
    "ssl.truststore.type",
    "ssl.truststore.location",
    "ssl.truststore.password",
    "ssl.truststore.certificates",
    "ssl.principal.mapping.rules",
    "ssl.allow.dn.changes",
    "ssl.allow.san.changes",
)


class ListenerTls:
    """TLS of one listener. The first context is made at once. Raises ConfigError.

    uses_sasl: clients log in afterwards, and the names in their certificates do not count.
    """

    def __init__(self, listener: str, configs: StoreConfigs, uses_sasl: bool = False) -> None:
        self.listener = listener
        self.uses_sasl = uses_sasl
        self._configs = configs
        self._values = _values_of(configs)
        self._signs = file_signs(configs)
        self._served = server_context(configs, uses_sasl)

    @property
    def context(self) -> ssl.SSLContext:
        return self._served.context

    @property
    def mapping(self) -> PrincipalMapping:
        return self._served.mapping

    def check(self, configs: StoreConfigs) -> None:
        """Raises ConfigError if the configs are others than now and the listener cannot take
        them.
        """
        if _values_of(configs) != self._values:
            self._checked(configs)

    def _checked(self, configs: StoreConfigs) -> Served:
        """What these configs give. Raises ConfigError."""
        served = server_context(configs, self.uses_sasl)
        check_replacement(configs, self._served.certificate, served.certificate)
        return served

    def follow(self, configs: StoreConfigs) -> None:
        """Take changed configs. What does not load leaves the present context in force."""
        values = _values_of(configs)
        if values == self._values:
            self._configs = configs
            return
        self._replace(configs, values, "its configs have changed")

    def look_at_files(self) -> None:
        """Take changed files in the same way."""
        if file_signs(self._configs) != self._signs:
            self._replace(self._configs, self._values, "its files have changed")

    def _replace(self, configs: StoreConfigs, values: list[object], why: str) -> None:
        # Noted before they are read: what changes meanwhile is read again.
        self._configs, self._values, self._signs = configs, values, file_signs(configs)
        try:
            self._served = self._checked(configs)
        except ConfigError as error:
            logger.error(
                "listener %s keeps its TLS certificate and settings, although %s: %s",
                self.listener,
                why,
                error,
            )
        else:
            logger.info("listener %s: new TLS context, as %s; %s", self.listener, why, self.dates())

    def dates(self) -> str:
        """Of the certificate, for the log."""
        certificate = self._served.certificate
        return f"certificate of {certificate.subject}, valid until {certificate.not_after:%F %T}"

    def advice(self, now: datetime | None = None) -> str | None:
        """A warning about the certificate's dates."""
        certificate, now = self._served.certificate, now or datetime.now(UTC)
        if certificate.not_after < now:
            return f"the certificate of listener {self.listener} has expired: {self.dates()}"
        if certificate.not_before > now:
            return f"the certificate of listener {self.listener} is not valid yet: {self.dates()}"
        if certificate.not_after < now + _EXPIRES_SOON:
            return f"the certificate of listener {self.listener} expires soon: {self.dates()}"
        return None


def _values_of(configs: StoreConfigs) -> list[object]:
    return [configs[name] for name in CONFIG_NAMES]
