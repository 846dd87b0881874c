"""Key and trust stores in Java's formats, as settings of a client: JKS and PKCS12.

What reads them is imported with the first store: it takes a third of the time of a short command.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from kbroker.client.errors import SettingRefused
from kbroker.errors import ConfigError

KINDS = ("JKS", "PKCS12")
# COMPAT: Java's.
DEFAULT_KIND = "JKS"


def is_used(settings: Mapping[str, str], store: str) -> bool:
    """Whether ``store`` (keystore or truststore) is a file of these formats."""
    given = settings.get(f"ssl.{store}.location")
    return bool(given) and kind_of(settings, store) in KINDS


def kind_of(settings: Mapping[str, str], store: str) -> str:
    return (settings.get(f"ssl.{store}.type") or DEFAULT_KIND).upper()


def trusted(settings: Mapping[str, str]) -> str:
    """The certificates of the trust store as PEM. Raises SettingRefused."""
    from kbroker.security.tls import stores

    try:
        return "".join(stores.load_trusted(_Configs(settings)) or ())
    except ConfigError as error:
        raise SettingRefused(error.key, f"expected {error.allowed}") from None


def keys(settings: Mapping[str, str]) -> str:
    """Key and certificates of the key store as PEM. Raises SettingRefused."""
    from kbroker.security.tls import stores

    try:
        pem = stores.load_keys(_Configs(settings))
    except ConfigError as error:
        raise SettingRefused(error.key, f"expected {error.allowed}") from None
    assert pem is not None
    return pem.key + "".join(pem.chain)


class _Configs:
    """``stores.StoreConfigs``."""

    def __init__(self, settings: Mapping[str, str]) -> None:
        self._settings = settings

    def __getitem__(self, name: str, /) -> Any:
        if name.endswith(".type"):
            return kind_of(self._settings, name.split(".")[1])
        return self._settings.get(name) or None

    def name_of(self, name: str, /) -> str:
        return name
