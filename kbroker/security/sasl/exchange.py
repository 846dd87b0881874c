"""What the steps of an authentication exchange are, whatever the mechanism.

A mechanism takes the client's token and says what happens next. What it does not have itself (a
stored credential, the result of slow work), it asks for with a step, and continues with the answer.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple, Protocol


class NotAuthenticated(Exception):
    """The client is not authenticated.

    told: a text for the client that says nothing about any user; "" for the one that Kafka has for
    whatever was wrong. reason: for the log. The text of the exception is for the debug log.
    """

    def __init__(
        self, detail: str, told: str = "", user: str = "", reason: str = "wrong credentials"
    ) -> None:
        super().__init__(detail)
        self.told = told
        self.reason = reason
        self.user = user  # as whom the client wanted to log in, if it has said so


class Unavailable(Exception):
    """Nobody can say whether the credentials are right: the client may try again."""


class Challenge(NamedTuple):
    """Send this token; the client answers with its next one."""

    token: bytes


class CredentialLookup(NamedTuple):
    """Continue with the stored credential of this user, or of this delegation token; else None."""

    name: str
    mechanism: str
    is_token: bool


class Work(NamedTuple):
    """Continue with the result of this function, which may take seconds: not in a loop."""

    run: Callable[[], Any]


class Authenticated(NamedTuple):
    """The exchange is over: send the last token. None: there is none, and a client that has no
    header around its tokens expects none.

    expires_ms: when the credential itself ends, in ms since 1970. is_token: the client has logged
    in with a delegation token.
    """

    token: bytes | None
    user: str
    expires_ms: int | None = None
    is_token: bool = False


Step = Challenge | CredentialLookup | Work | Authenticated


class SaslServer(Protocol):
    """One exchange with one client."""

    def evaluate(self, token: bytes) -> Step:
        """Take a token of the client. Raises NotAuthenticated."""
        ...

    def resume(self, answer: Any) -> Step:
        """Continue after CredentialLookup or Work. Raises NotAuthenticated."""
        ...
