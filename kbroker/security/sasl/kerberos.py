"""GSSAPI with Kerberos (RFC 4752): a ticket of the client, and no security layer.

Client and broker first establish a security context, with one token each. Then the broker wraps an
offer of security layers, "none", and the client wraps which it takes. ``kerberos_library`` has the
contexts.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol

from kbroker.security.sasl.exchange import (
    Authenticated,
    Challenge,
    NotAuthenticated,
    Step,
    Unavailable,
    Work,
)
from kbroker.security.sasl.kerberos_names import NoUser

NAME = "GSSAPI"
# Of the security layers, a bit each; behind it, the size of what may be wrapped: nothing.
NO_LAYER = 1
_OFFER = bytes((NO_LAYER, 0, 0, 0))
_ESTABLISHING, _CONFIRMING, _CHOOSING, _OVER = range(4)


class SecurityContext(Protocol):
    """The broker's end. Every method raises NotAuthenticated or Unavailable."""

    complete: bool
    # The client's principal, once it is complete.
    client: str

    def step(self, token: bytes) -> bytes:
        """Take a token of the client and return the broker's. May block."""
        ...

    def wrap(self, data: bytes) -> bytes: ...

    def unwrap(self, token: bytes) -> bytes: ...


class Kerberos:
    """An exchange. user_of: of a principal; raises NoUser."""

    def __init__(self, context: SecurityContext, user_of: Callable[[str], str]) -> None:
        self._context = context
        self._user_of = user_of
        self._stage = _ESTABLISHING

    def evaluate(self, token: bytes) -> Step:
        if self._stage == _ESTABLISHING:
            return Work(lambda: self._stepped(token))
        if self._stage == _CONFIRMING:
            if token:
                raise NotAuthenticated("data where the client has nothing to say")
            return self._offer()
        if self._stage == _CHOOSING:
            return self._chosen(token)
        raise NotAuthenticated("a token after the last one")

    def _stepped(self, token: bytes) -> bytes | NotAuthenticated | Unavailable:
        try:
            return self._context.step(token)
        except (NotAuthenticated, Unavailable) as error:
            return error

    def resume(self, answer: bytes | NotAuthenticated | Unavailable) -> Step:
        if isinstance(answer, NotAuthenticated | Unavailable):
            raise answer
        if not self._context.complete:
            return Challenge(answer)
        if not answer:
            return self._offer()
        self._stage = _CONFIRMING
        return Challenge(answer)

    def _offer(self) -> Step:
        self._stage = _CHOOSING
        return Challenge(self._context.wrap(_OFFER))

    def _chosen(self, token: bytes) -> Step:
        """COMPAT: the authorization id behind the choice does not count, as in Kafka; kafka-python
        gives the broker's name there. Nobody becomes another by it.
        """
        principal = self._context.client
        chosen = self._context.unwrap(token)
        if len(chosen) < len(_OFFER) or not chosen[0] & NO_LAYER:
            raise NotAuthenticated("the client wants a security layer", user=principal)
        self._stage = _OVER
        try:
            user = self._user_of(principal)
        except NoUser as error:
            raise NotAuthenticated(str(error), user=principal, reason=str(error)) from None
        return Authenticated(None, user)
