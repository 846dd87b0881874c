"""The client's side of SASL GSSAPI with Kerberos (RFC 4752), and its settings."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import NamedTuple, Protocol

from kbroker.client.errors import SettingRefused
from kbroker.security.sasl.kerberos_library import PACKAGE, Initiator, KerberosError
from kbroker.wire.sasl import ExchangeFailed, NothingToShow

NAME = "GSSAPI"
KIND = "Krb5LoginModule"
SERVICE = "kafka"
_NO_LAYER = 1
_CHOICE = bytes((_NO_LAYER, 0, 0, 0))


class KerberosSettings(NamedTuple):
    """principal, key_tab: empty: the tickets that are there, or of that principal among them."""

    service: str
    principal: str
    key_tab: str


def kerberos_settings(
    settings: Mapping[str, str], jaas: Mapping[str, str] | None
) -> KerberosSettings:
    """From the settings under the names of librdkafka and Java. jaas: the options of the login
    module, if there is one. Raises SettingRefused.
    """
    options = jaas or {}
    named, given = options.get("serviceName"), settings.get("sasl.kerberos.service.name")
    if named and given and named != given:
        raise SettingRefused(
            "sasl.kerberos.service.name", f"serviceName in sasl.jaas.config is {named}"
        )
    principal = settings.get("sasl.kerberos.principal") or options.get("principal", "")
    key_tab = settings.get("sasl.kerberos.keytab", "")
    if options.get("useKeyTab", "").lower() == "true":
        key_tab = key_tab or options.get("keyTab", "")
        if not key_tab or not principal:
            raise SettingRefused("sasl.jaas.config", "useKeyTab=true needs keyTab and principal")
    if key_tab and not principal:
        raise SettingRefused("sasl.kerberos.principal", "set it; sasl.kerberos.keytab has its keys")
    return KerberosSettings(named or given or SERVICE, principal, key_tab.removeprefix("FILE:"))


class InitiatorContext(Protocol):
    """``kerberos_library.Initiator``."""

    @property
    def complete(self) -> bool: ...

    def step(self, token: bytes | None) -> bytes: ...

    def wrap(self, data: bytes) -> bytes: ...

    def unwrap(self, token: bytes) -> bytes: ...


def initiator(own: KerberosSettings, host: str) -> InitiatorContext:
    """Raises NothingToShow."""
    try:
        return Initiator(own.service, host, own.principal, own.key_tab)
    except ImportError as error:
        raise NothingToShow(f"it needs {PACKAGE} ({error})") from error
    except KerberosError as error:
        raise NothingToShow(str(error)) from None


class KerberosInitiator:
    """A conversation of ``kbroker.wire.sasl``. start: returns the context."""

    def __init__(self, start: Callable[[], InitiatorContext]) -> None:
        self._start = start
        self._context: InitiatorContext | None = None
        self._has_chosen = False
        self.done = False

    def evaluate(self, challenge: bytes | None) -> bytes | None:
        if challenge is None:
            self._context = self._start()
            try:
                return self._context.step(None)
            except KerberosError as error:
                raise NothingToShow(str(error)) from None
        context = self._context
        assert context is not None
        try:
            if not context.complete:
                return context.step(challenge)
            if not self._has_chosen:
                return self._chosen(context.unwrap(challenge))
        except KerberosError as error:
            raise ExchangeFailed(str(error)) from None
        self.done = True
        return None

    def _chosen(self, offer: bytes) -> bytes:
        assert self._context is not None
        if len(offer) < len(_CHOICE) or not offer[0] & _NO_LAYER:
            raise ExchangeFailed("the broker wants a security layer")
        self._has_chosen = True
        return self._context.wrap(_CHOICE)
