"""Kerberos through the package ``gssapi``, an extra: key tabs, and the contexts of exchanges.

It uses the system's GSSAPI library, with ``/etc/krb5.conf`` or the file that ``KRB5_CONFIG`` names.
"""

from __future__ import annotations

import os
import stat
from typing import Any

from kbroker.security.sasl.exchange import NotAuthenticated, Unavailable

PACKAGE = "the package gssapi: pip install gssapi"
_DISPLAY = "utf-8"
# Codes of MIT's library and of Heimdal. COMPAT: after these, Kafka closes the connection without
# a word, so that the client tries again: the ticket is not valid yet, or has been seen before.
_PASSING = frozenset(code & 0xFFFFFFFF for code in (-1765328363, -1765328351, -1765328350))
# What the library says of a code that it has no text for.
_NO_TEXT = frozenset(("Success", "Unknown error"))


class KerberosError(Exception):
    """Why there is nothing to log in with."""


class Acceptor:
    """The keys of one service. Raises KerberosError, and ImportError without the package.

    The key tab is read again for each client: keys that are added count at once.
    """

    def __init__(self, principal: str, key_tab: str) -> None:
        """key_tab: empty for the default one."""
        self._gss = _library()
        if key_tab:
            _check_readable(key_tab)
        gss = self._gss
        try:
            name = gss.Name(principal, gss.NameType.kerberos_principal)
            self._credentials = gss.raw.acquire_cred_from(
                {b"keytab": b"FILE:" + os.fsencode(key_tab)} if key_tab else None,
                name,
                None,
                [gss.MechType.kerberos],
                "accept",
            ).creds
        except gss.exceptions.GSSError as error:
            raise KerberosError(_reason(error)) from None

    @property
    def default_realm(self) -> str:
        """Empty if there is none."""
        gss = self._gss
        try:
            name = gss.Name("tmp", gss.NameType.kerberos_principal)
            text = _displayed(gss, name.canonicalize(gss.MechType.kerberos))
        except (gss.exceptions.GSSError, UnicodeDecodeError):
            return ""
        return text.partition("@")[2]

    def context(self) -> Context:
        return Context(self._gss, self._credentials)


class Context:
    """See ``kerberos.SecurityContext``."""

    def __init__(self, gss: Any, credentials: Any) -> None:
        self._gss = gss
        self._credentials = credentials
        self._context: Any = None
        self.complete = False
        self.client = ""

    def step(self, token: bytes) -> bytes:
        gss = self._gss
        try:
            step = gss.raw.accept_sec_context(token, self._credentials, self._context)
            self._context = step.context
            if not step.more_steps:
                if step.mech != gss.MechType.kerberos:
                    raise NotAuthenticated("the mechanism is not Kerberos")
                self.client = _displayed(gss, step.initiator_name)
                self.complete = True
        except gss.exceptions.GSSError as error:
            raise _failure(error) from None
        except UnicodeDecodeError:
            raise NotAuthenticated("the client's name is not UTF-8") from None
        return step.token or b""

    def wrap(self, data: bytes) -> bytes:
        try:
            return bytes(self._gss.raw.wrap(self._context, data, False).message)
        except self._gss.exceptions.GSSError as error:
            raise _failure(error, self.client) from None

    def unwrap(self, token: bytes) -> bytes:
        try:
            return bytes(self._gss.raw.unwrap(self._context, token).message)
        except self._gss.exceptions.GSSError as error:
            raise _failure(error, self.client) from None


class Initiator:
    """A client's end of a context with the service of that name on that host. Raises KerberosError,
    and ImportError without the package.

    principal, key_tab: who logs in; the library gets tickets with these keys, and again before they
    end. Without them, it uses the tickets that are there (``kinit``).
    """

    def __init__(self, service: str, host: str, principal: str = "", key_tab: str = "") -> None:
        self._gss = gss = _library()
        kerberos = gss.MechType.kerberos
        if key_tab:
            _check_readable(key_tab)
        try:
            target = gss.Name(f"{service}@{host}", gss.NameType.hostbased_service)
            credentials = None
            if principal:
                store = None
                if key_tab:
                    # In memory, and shared by the connections of this process.
                    tickets = f"MEMORY:kbroker {principal} {key_tab}"
                    store = {
                        b"client_keytab": b"FILE:" + os.fsencode(key_tab),
                        b"ccache": tickets.encode(),
                    }
                name = gss.Name(principal, gss.NameType.kerberos_principal)
                credentials = gss.Credentials(
                    name=name, mechs=[kerberos], usage="initiate", store=store
                )
            self._context = gss.SecurityContext(
                name=target.canonicalize(kerberos), creds=credentials, mech=kerberos,
                usage="initiate",
            )  # fmt: skip
            self._context.__DEFER_STEP_ERRORS__ = False
        except gss.exceptions.GSSError as error:
            raise KerberosError(_reason(error)) from None

    @property
    def complete(self) -> bool:
        return bool(self._context.complete)

    def step(self, token: bytes | None) -> bytes:
        """Asks the realm's server for a ticket at first. Raises KerberosError."""
        try:
            return self._context.step(token) or b""
        except self._gss.exceptions.GSSError as error:
            raise KerberosError(_reason(error)) from None

    def wrap(self, data: bytes) -> bytes:
        return bytes(self._context.wrap(data, False).message)

    def unwrap(self, token: bytes) -> bytes:
        """Raises KerberosError."""
        try:
            return bytes(self._context.unwrap(token).message)
        except self._gss.exceptions.GSSError as error:
            raise KerberosError(_reason(error)) from None


def _library() -> Any:
    import gssapi
    import gssapi.exceptions
    import gssapi.raw

    return gssapi


def _displayed(gss: Any, name: Any) -> str:
    return bytes(gss.raw.display_name(name, False).name).decode(_DISPLAY)


def _check_readable(path: str) -> None:
    """The library would say little of a file that is missing, and wait for a writer of a FIFO."""
    try:
        with open(path, "rb", opener=_without_blocking) as file:
            if not stat.S_ISREG(os.fstat(file.fileno()).st_mode):
                raise KerberosError(f"{path} is no file")
    except OSError as error:
        text = os.strerror(error.errno or 0)
        raise KerberosError(f"cannot read the key tab {path}: {text}") from None


def _without_blocking(path: str, flags: int) -> int:
    return os.open(path, flags | os.O_NONBLOCK)


def _failure(error: Any, client: str = "") -> NotAuthenticated | Unavailable:
    reason = _reason(error)
    if error.min_code & 0xFFFFFFFF in _PASSING:
        return Unavailable(reason)
    return NotAuthenticated(reason, user=client, reason=reason)


def _reason(error: Any) -> str:
    """The mechanism's text, which says most; that of GSSAPI if it has none."""
    texts = error.get_all_statuses(error.min_code, False) if error.min_code else []
    if not texts or _NO_TEXT.issuperset(texts):
        texts = error.get_all_statuses(error.maj_code, True)
    return "; ".join(texts)
