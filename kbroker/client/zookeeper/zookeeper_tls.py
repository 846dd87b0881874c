"""TLS to ZooKeeper, from the file that Kafka's tools take for it: ``zookeeper.ssl.*``.

The names are those of a broker's settings, and Kafka's tools before 4.0 take them from a file
(``-zk-tls-config-file``, KIP-515). Stores are read as those of other clients.
"""

from __future__ import annotations

import difflib
from collections.abc import Mapping
from typing import TYPE_CHECKING

from kbroker.client.errors import SettingRefused

if TYPE_CHECKING:
    import ssl

PREFIX = "zookeeper.ssl."
ENABLE = PREFIX + "client.enable"
_STORES = ("keystore", "truststore")
_NAMES = {
    ENABLE,
    *(f"{PREFIX}{store}.{what}" for store in _STORES for what in ("location", "password", "type")),
    *(f"{PREFIX}{name}" for name in ("protocol", "enabled.protocols", "cipher.suites")),
    *(f"{PREFIX}{name}" for name in ("crl.enable", "ocsp.enable")),
    PREFIX + "endpoint.identification.algorithm",
}
# As ZooKeeper tells the format of a store by the name of its file.
_ENDINGS = {".pem": "PEM", ".p12": "PKCS12", ".jks": "JKS"}


class ZooKeeperTls:
    """Certificates are read by ``context``."""

    def __init__(self, settings: Mapping[str, str]) -> None:
        """settings: those of a file, of which others are ignored. Raises SettingRefused."""
        for name in settings:
            if name.startswith(PREFIX) and name not in _NAMES:
                near = difflib.get_close_matches(name, sorted(_NAMES), 1)
                hint = f"; did you mean {near[0]}?" if near else ""
                raise SettingRefused(name, f"there is no such setting{hint}")
        if settings.get(ENABLE, "").strip().lower() != "true":
            raise SettingRefused(ENABLE, "expected true: nothing else in the file asks for TLS")
        for name in ("crl.enable", "ocsp.enable"):
            if settings.get(PREFIX + name, "").strip().lower() == "true":
                raise SettingRefused(PREFIX + name, "leave it out: revocation is not checked")
        if settings.get(PREFIX + "cipher.suites"):
            raise SettingRefused(PREFIX + "cipher.suites", "leave it out: OpenSSL chooses")
        self._settings = _client_settings(settings)

    @property
    def has_certificate(self) -> bool:
        """Whether ZooKeeper learns who this client is."""
        return "ssl.keystore.location" in self._settings

    def context(self) -> ssl.SSLContext:
        """A new one, with the stores as they are now. Raises SettingRefused."""
        from kbroker.client.connections.security import Security

        try:
            return Security(self._settings).tls_context()
        except SettingRefused as error:
            raise SettingRefused(f"zookeeper.{error.setting}", error.advice) from error


def _client_settings(settings: Mapping[str, str]) -> dict[str, str]:
    """The same as settings of a client."""
    own = {"security.protocol": "SSL"}
    for store in _STORES:
        place = settings.get(f"{PREFIX}{store}.location")
        if not place:
            continue
        kind = settings.get(f"{PREFIX}{store}.type") or _kind_of(place)
        own[f"ssl.{store}.location"], own[f"ssl.{store}.type"] = place, kind
        password = settings.get(f"{PREFIX}{store}.password")
        if password and kind.upper() != "PEM":
            own[f"ssl.{store}.password"] = password
        elif password and store == "keystore":
            own["ssl.key.password"] = password
    listed = settings.get(PREFIX + "enabled.protocols") or settings.get(PREFIX + "protocol")
    if listed:
        own["ssl.enabled.protocols"] = listed
    algorithm = settings.get(PREFIX + "endpoint.identification.algorithm")
    if algorithm is not None:
        own["ssl.endpoint.identification.algorithm"] = algorithm
    return own


def _kind_of(place: str) -> str:
    return next((kind for end, kind in _ENDINGS.items() if place.lower().endswith(end)), "JKS")
