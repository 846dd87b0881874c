"""PLAIN (RFC 4616): user and password in one token.

COMPAT: the texts of failures are Kafka's. An authorization id that is not the user is rejected
(CVE-2017-12610).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

from kbroker.security.digests import is_same
from kbroker.security.sasl.exchange import Authenticated, NotAuthenticated, Step, Work

NAME = "PLAIN"
USER_PREFIX = "user_"
INVALID = "Authentication failed: Invalid username or password"
# Compared with for users that do not exist, so that these take as long.
_NOBODYS = b"no user has this password, whatever it is"

# Whether this is the user's password. May block; may raise anything.
Check = Callable[[str, str], bool]


def users_of(options: Mapping[str, str]) -> dict[str, str]:
    """The passwords in the options of a PlainLoginModule, by user."""
    return {
        name.removeprefix(USER_PREFIX): password
        for name, password in options.items()
        if name.startswith(USER_PREFIX)
    }


class PlainSaslServer:
    """An exchange. check: asked instead of ``users``, if there is one."""

    def __init__(self, users: Mapping[str, str], check: Check | None = None) -> None:
        self._users = users
        self._check = check
        self._user = ""

    def evaluate(self, token: bytes) -> Step:
        try:
            parts = token.decode().split("\0")
        except UnicodeDecodeError:
            raise NotAuthenticated("the token is not UTF-8", INVALID) from None
        if len(parts) != 3:
            count = min(len(parts), 4)  # COMPAT: Kafka counts no further
            text = f"Invalid SASL/PLAIN response: expected 3 tokens, got {count}"
            raise NotAuthenticated("the token is malformed", text)
        authorization_id, user, password = parts
        self._user = user
        if not user:
            raise NotAuthenticated("no user", "Authentication failed: username not specified")
        if not password:
            raise NotAuthenticated(
                "no password", "Authentication failed: password not specified", user
            )
        check = self._check
        if check is not None:
            self._authorize(authorization_id)
            return Work(lambda: check(user, password))
        is_right = self._is_right(user, password)
        if is_right:
            self._authorize(authorization_id)
        return self.resume(is_right)

    def resume(self, answer: object) -> Step:
        if answer is not True:
            raise NotAuthenticated("wrong user or password", INVALID, self._user)
        return Authenticated(b"", self._user)

    def _is_right(self, user: str, password: str) -> bool:
        known = self._users.get(user)
        expected = _NOBODYS if known is None else known.encode()
        return is_same(expected, password.encode()) and known is not None

    def _authorize(self, authorization_id: str) -> None:
        if authorization_id not in ("", self._user):
            raise NotAuthenticated("another authorization id", OTHER_ID, self._user)


OTHER_ID = (
    "Authentication failed: Client requested an authorization id that is different from username"
)
