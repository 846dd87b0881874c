"""Validates bearer tokens: JWTs signed with a key of a JWKS, or, for tests only, unsigned ones.

``validate`` may take seconds, as it fetches keys: it runs in threads. Keys come from a file or a
URL, either of which must be on the allow list. The signatures are checked by PyJWT.
"""

from __future__ import annotations

import binascii
import json
import logging
import threading
import time
from base64 import urlsafe_b64decode
from collections.abc import Callable, Collection, Mapping
from typing import Any, NamedTuple
from urllib.parse import urlsplit

from kbroker.security.sasl.exchange import Unavailable
from kbroker.security.sasl.oauthbearer import Claims, InvalidToken

logger = logging.getLogger(__name__)

FETCH_S = 10
# BOUND: bytes of a set of keys, and of a token.
KEYS_BYTES_MAX = 1 << 20
TOKEN_CHARS_MAX = 64 << 10
# BOUND: how often a key that is not there may have the set fetched again.
UNKNOWN_KEY_S = 10.0
# Only those whose key cannot be used to sign: a public key is no secret for HS256.
_ALGORITHMS = {
    "RSA": ("RS256", "RS384", "RS512", "PS256", "PS384", "PS512"),
    "EC": ("ES256", "ES384", "ES512"),
    "OKP": ("EdDSA",),
}


class Expected(NamedTuple):
    """What a token must say."""

    issuer: str = ""
    audience: tuple[str, ...] = ()
    skew_s: float = 30.0
    subject_claim: str = "sub"
    scope_claim: str = "scope"
    scope: tuple[str, ...] = ()


def check_claims(claims: Mapping[str, Any], expected: Expected, now_s: float) -> Claims:
    """Raises InvalidToken."""
    skew_s = expected.skew_s
    expires_s = _seconds(claims, "exp", required=True)
    if now_s - skew_s >= expires_s:
        raise InvalidToken("it has expired")
    if _seconds(claims, "iat") > now_s + skew_s or _seconds(claims, "nbf") > now_s + skew_s:
        raise InvalidToken("it is not valid yet")
    if expected.issuer and claims.get("iss") != expected.issuer:
        raise InvalidToken("its issuer is another one")
    given = claims.get("aud", ())
    audience = (given,) if isinstance(given, str) else given
    if expected.audience and not (
        isinstance(audience, list | tuple) and any(one in expected.audience for one in audience)
    ):
        raise InvalidToken("its audience is another one")
    scopes = claims.get(expected.scope_claim, ())
    scopes = scopes.split() if isinstance(scopes, str) else scopes
    if not isinstance(scopes, list | tuple) or not all(isinstance(one, str) for one in scopes):
        raise InvalidToken(f"its claim {expected.scope_claim} is no list of texts")
    if not set(expected.scope) <= set(scopes):
        raise InvalidToken("its scope is too small", "insufficient_scope", " ".join(expected.scope))
    subject = claims.get(expected.subject_claim)
    if not isinstance(subject, str) or not subject.strip():
        raise InvalidToken(f"its claim {expected.subject_claim} is no text")
    return Claims(subject, int(expires_s * 1000))


def _seconds(claims: Mapping[str, Any], name: str, *, required: bool = False) -> float:
    value = claims.get(name)
    if value is None and not required:
        return 0.0
    if isinstance(value, bool) or not isinstance(value, int | float) or not 0 <= value < 2**40:
        raise InvalidToken(f"its claim {name} is no time")
    return float(value)


class Unsecured:
    """Accepts tokens that nobody has signed (``alg`` none): for tests, anybody can write one."""

    def __init__(self, expected: Expected, now_s: Callable[[], float] = time.time) -> None:
        self._expected = expected
        self._now_s = now_s

    def __call__(self, token: str) -> Claims:
        parts = token.split(".")
        if len(parts) != 3 or parts[2]:
            raise InvalidToken("it is no unsecured JWS")
        if _document(parts[0]).get("alg") != "none":
            raise InvalidToken("its algorithm is not none")
        return check_claims(_document(parts[1]), self._expected, self._now_s())


def _document(part: str) -> Mapping[str, Any]:
    try:
        document = json.loads(urlsafe_b64decode(part + "=" * (-len(part) % 4)))
    except (binascii.Error, ValueError, RecursionError):
        raise InvalidToken("it is malformed") from None
    if not isinstance(document, dict):
        raise InvalidToken("it is malformed")
    return document


class Keys:
    """A set of keys, fetched again when it is old, or when a token names a key that is not there.

    fetch: returns the JWKS; raises OSError. retry_s: the first and the longest pause after it could
    not be fetched.
    """

    def __init__(
        self,
        place: str,
        fetch: Callable[[], bytes],
        refresh_s: float,
        retry_s: tuple[float, float],
        now_s: Callable[[], float] = time.monotonic,
    ) -> None:
        self._place = place
        self._fetch = fetch
        self._refresh_s = refresh_s
        self._retry_s = retry_s
        self._pause_s = 0.0
        self._now_s = now_s
        self._lock = threading.Lock()
        self._keys: list[Mapping[str, Any]] = []
        self._fetched_s = self._tried_s = -float("inf")

    def find(self, key_id: str | None) -> Mapping[str, Any]:
        """The key with this id; without one, the only key. Raises InvalidToken, Unavailable."""
        with self._lock:
            if self._now_s() - self._fetched_s >= self._refresh_s:
                self._renew()
            key = self._known(key_id)
            if key is None and self._now_s() - self._fetched_s >= UNKNOWN_KEY_S:
                self._renew()
                key = self._known(key_id)
            has_keys = bool(self._keys)
        if key is not None:
            return key
        if not has_keys:
            raise Unavailable("the keys that sign tokens cannot be fetched")
        raise InvalidToken("its key is unknown")

    def _known(self, key_id: str | None) -> Mapping[str, Any] | None:
        if key_id is None:
            return self._keys[0] if len(self._keys) == 1 else None
        return next((key for key in self._keys if key.get("kid") == key_id), None)

    def _renew(self) -> None:
        """Old keys stay when there are no new ones."""
        if self._now_s() - self._tried_s < self._pause_s:
            return
        try:
            self._keys = keys_of(self._fetch())
        except (OSError, ValueError) as error:
            first_s, longest_s = self._retry_s
            self._pause_s = min(max(2 * self._pause_s, first_s), longest_s)
            logger.warning(
                "cannot fetch the keys that sign tokens from %s: %s; using those of before",
                self._place,
                error,
            )
        else:
            self._pause_s = 0.0
            self._fetched_s = self._now_s()
        self._tried_s = self._now_s()


def keys_of(data: bytes) -> list[Mapping[str, Any]]:
    """The keys for signatures in a JWKS. Raises ValueError."""
    document = json.loads(data)
    rows = document.get("keys") if isinstance(document, dict) else None
    if not isinstance(rows, list):
        raise ValueError("it is no JWKS: a JSON object with a list 'keys' is expected")
    keys = [row for row in rows if isinstance(row, dict)]
    return [row for row in keys if row.get("kty") in _ALGORITHMS and row.get("use", "sig") == "sig"]


class Signed:
    """Accepts tokens that a key of the set has signed."""

    def __init__(
        self, expected: Expected, keys: Keys, now_s: Callable[[], float] = time.time
    ) -> None:
        import jwt  # an extra; a broker without OAUTHBEARER does not need it

        self._jwt = jwt
        self._expected = expected
        self._keys = keys
        self._now_s = now_s

    def __call__(self, token: str) -> Claims:
        jwt = self._jwt
        if len(token) > TOKEN_CHARS_MAX:
            raise InvalidToken("it is too long")
        try:
            header = jwt.get_unverified_header(token)
        except jwt.PyJWTError:
            raise InvalidToken("it is malformed") from None
        if header.get("crit") is not None:
            raise InvalidToken("it has critical extensions")
        key = self._keys.find(header.get("kid"))
        algorithm = header.get("alg")
        allowed = _ALGORITHMS[key["kty"]]
        if algorithm not in allowed or key.get("alg", algorithm) != algorithm:
            raise InvalidToken("its algorithm is not that of the key")
        try:
            public = jwt.PyJWK(dict(key), algorithm=algorithm).key
            options = {"verify_signature": True} | dict.fromkeys(_CLAIM_CHECKS, False)
            claims = jwt.decode(token, public, algorithms=[algorithm], options=options)
        except (jwt.PyJWTError, ValueError, TypeError):
            raise InvalidToken("its signature is not that of the key") from None
        return check_claims(claims, self._expected, self._now_s())


# Checked by ``check_claims``.
_CLAIM_CHECKS = ("verify_exp", "verify_nbf", "verify_iat", "verify_aud", "verify_iss", "verify_sub")


def fetcher(url: str, allowed: Collection[str]) -> Callable[[], bytes]:
    """What fetches the keys of a file or URL. Raises ValueError for one that is not allowed.

    No redirect is followed: it would lead past the allow list.
    """
    if url not in allowed:
        raise ValueError("add it to sasl.oauthbearer.allowed.urls")
    scheme = urlsplit(url).scheme
    if scheme not in ("file", "http", "https"):
        raise ValueError("a URL with file, http or https is expected")

    def fetch() -> bytes:
        from urllib.error import HTTPError
        from urllib.request import HTTPRedirectHandler, build_opener, url2pathname

        class Straight(HTTPRedirectHandler):
            def redirect_request(self, *args: Any) -> None:
                return None

        if scheme == "file":
            with open(url2pathname(urlsplit(url).path), "rb") as file:
                return file.read(KEYS_BYTES_MAX)
        try:
            with build_opener(Straight).open(url, timeout=FETCH_S) as response:
                data: bytes = response.read(KEYS_BYTES_MAX)
                return data
        except HTTPError as error:
            with error:
                raise OSError(f"HTTP status {error.code}") from None

    return fetch
