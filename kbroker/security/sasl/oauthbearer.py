"""OAUTHBEARER (RFC 7628): a token that somebody else has signed. ``tokens`` validates it.

A token that is not valid is answered with a JSON document, as in Kafka; the client sends one more
byte, and only then is told that it has failed.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from typing import NamedTuple

from kbroker.security.sasl.exchange import (
    Authenticated,
    Challenge,
    NotAuthenticated,
    Step,
    Unavailable,
    Work,
)

NAME = "OAUTHBEARER"
_MESSAGE = re.compile(
    r"n,(?:a=(?P<authorization_id>[^,\x01]+))?,\x01"
    r"(?P<pairs>(?:[A-Za-z]+=[\x21-\x7e \t\r\n]+\x01)*)\x01"
)
_BEARER = re.compile(r"(?i:bearer) +(?P<token>[-_.a-zA-Z0-9+/~]+=*)")


class Claims(NamedTuple):
    """What a valid token says."""

    subject: str
    expires_ms: int


class InvalidToken(Exception):
    """status: RFC 7628's word for it. scope: what the token should have."""

    def __init__(self, detail: str, status: str = "invalid_token", scope: str = "") -> None:
        super().__init__(detail)
        self.status = status
        self.scope = scope


# Raises InvalidToken, or Unavailable. May block.
Validate = Callable[[str], Claims]


class OauthBearer:
    """An exchange."""

    def __init__(self, validate: Validate) -> None:
        self._validate = validate
        self._authorization_id = ""
        self._rejection = ""

    def evaluate(self, token: bytes) -> Step:
        if self._rejection:
            raise NotAuthenticated("the token is not valid", self._rejection)
        try:
            match = _MESSAGE.fullmatch(token.decode())
        except UnicodeDecodeError:
            match = None
        if match is None:
            raise NotAuthenticated("the client's message is malformed")
        pairs = [pair.partition("=") for pair in match["pairs"].split("\x01")[:-1]]
        given = [value for name, _, value in pairs if name == "auth"]
        bearer = _BEARER.fullmatch(given[0]) if len(given) == 1 else None
        if bearer is None:
            raise NotAuthenticated("the client's message has no bearer token")
        self._authorization_id = match["authorization_id"] or ""
        text = bearer["token"]
        return Work(lambda: self._validated(text))

    def _validated(self, text: str) -> Claims | InvalidToken | Unavailable:
        try:
            return self._validate(text)
        except (InvalidToken, Unavailable) as error:
            return error

    def resume(self, answer: Claims | InvalidToken | Unavailable) -> Step:
        if isinstance(answer, Unavailable):
            raise answer
        if isinstance(answer, InvalidToken):
            document = {"status": answer.status}
            if answer.scope:
                document["scope"] = answer.scope
            self._rejection = json.dumps(document, separators=(",", ":"))
            return Challenge(self._rejection.encode())
        if self._authorization_id not in ("", answer.subject):
            raise NotAuthenticated("another authorization id", OTHER_ID, answer.subject)
        return Authenticated(b"", answer.subject, answer.expires_ms)


OTHER_ID = (
    "Authentication failed: Client requested an authorization id that is different from the "
    "token's principal name"
)
