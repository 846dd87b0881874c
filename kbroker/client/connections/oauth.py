"""The client's side of SASL OAUTHBEARER (RFC 7628), and where its tokens come from.

A token is fetched from an OAuth endpoint with the id and the secret of the client (RFC 6749, client
credentials), or read from a file that something else keeps up to date.
"""

from __future__ import annotations

import base64
import json
import re
import ssl
import time
import urllib.error
import urllib.parse
import urllib.request
from collections.abc import Mapping
from typing import Any, NamedTuple

from kbroker.client.errors import AuthenticationFailed, SettingRefused, Timeout

# BOUND: the answer of an endpoint, and a file with a token.
_ANSWER_BYTES_MAX = 1 << 18
# A token is used for this part of its life, and not in its last seconds.
_USED_PART, _LAST_S = 0.8, 10.0
_TOKEN = re.compile(r"[A-Za-z0-9._~+/-]+=*")
_EXTENSION_NAME = re.compile(r"[A-Za-z]+")
_EXTENSION_VALUE = re.compile(r"[\x21-\x7e \t\r\n]*")


class OAuthSettings(NamedTuple):
    """url: of the endpoint, or of a file. extensions: sent to the broker beside the token."""

    url: str
    client_id: str
    client_secret: str
    scope: str
    extensions: tuple[tuple[str, str], ...]
    ca_file: str | None


def oauth_settings(settings: Mapping[str, str], jaas: Mapping[str, str]) -> OAuthSettings:
    """From the settings under the names of librdkafka and Java. jaas: the options of the login
    module, if there is one. Raises SettingRefused.
    """
    if settings.get("sasl.oauthbearer.config") or "unsecuredLoginStringClaim_sub" in jaas:
        raise SettingRefused(
            "sasl.oauthbearer.config",
            "unsigned tokens are not supported: set sasl.oauthbearer.token.endpoint.url",
        )
    if settings.get("sasl.oauthbearer.method", "oidc").lower() != "oidc":
        raise SettingRefused("sasl.oauthbearer.method", "only oidc is supported")
    url = settings.get("sasl.oauthbearer.token.endpoint.url", "")
    scheme = urllib.parse.urlsplit(url).scheme
    if scheme not in ("https", "http", "file"):
        raise SettingRefused(
            "sasl.oauthbearer.token.endpoint.url",
            "write https://..., or file:///... for a file that has the token",
        )

    def given(option: str, *names: str) -> str:
        return next((settings[name] for name in names if settings.get(name)), jaas.get(option, ""))

    prefix = "sasl.oauthbearer."
    own = OAuthSettings(
        url,
        given("clientId", f"{prefix}client.id", f"{prefix}client.credentials.client.id"),
        given(
            "clientSecret", f"{prefix}client.secret", f"{prefix}client.credentials.client.secret"
        ),
        given("scope", f"{prefix}scope"),
        _extensions(settings.get(f"{prefix}extensions", ""), jaas),
        settings.get("https.ca.location") or None,
    )
    if scheme != "file" and not (own.client_id and own.client_secret):
        raise SettingRefused(
            f"{prefix}client.id", f"set it and {prefix}client.secret, or both in sasl.jaas.config"
        )
    return own


def _extensions(text: str, jaas: Mapping[str, str]) -> tuple[tuple[str, str], ...]:
    extensions = {
        name.removeprefix("extension_"): value
        for name, value in jaas.items()
        if name.startswith("extension_")
    }
    for part in filter(None, (part.strip() for part in text.split(","))):
        name, _, value = part.partition("=")
        extensions[name.strip()] = value.strip()
    for name, value in extensions.items():
        usable = _EXTENSION_NAME.fullmatch(name) and _EXTENSION_VALUE.fullmatch(value)
        if not usable or name == "auth":
            raise SettingRefused("sasl.oauthbearer.extensions", f"{name!r}: write letters=value")
    return tuple(sorted(extensions.items()))


class TokenSource:
    """Fetches a token, and keeps it for most of its life."""

    def __init__(self, settings: OAuthSettings) -> None:
        self.settings = settings
        self._token = ""
        self._fresh_until = 0.0

    def client(self, deadline: float) -> OAuthBearer:
        """A conversation with a token that is valid. Raises as ``token``."""
        return OAuthBearer(self.token(deadline), self.settings.extensions)

    def token(self, deadline: float) -> str:
        """A token that is valid. Raises AuthenticationFailed, SettingRefused, Timeout."""
        if time.monotonic() < self._fresh_until:
            return self._token
        if self.settings.url.startswith("file:"):
            return self._from_file()  # read each time: who writes it decides how long it is valid
        answer = self._fetched(deadline)
        try:
            token, lifetime = str(answer["access_token"]), float(answer.get("expires_in", 0))
        except (KeyError, TypeError, ValueError):
            raise self._failed("its answer has no access_token") from None
        self._token = self._checked(token)
        usable_s = min(lifetime * _USED_PART, lifetime - _LAST_S)
        self._fresh_until = time.monotonic() + max(0.0, usable_s)
        return self._token

    def _from_file(self) -> str:
        place = urllib.request.url2pathname(urllib.parse.urlsplit(self.settings.url).path)
        try:
            with open(place, "rb") as file:
                data = file.read(_ANSWER_BYTES_MAX)
        except OSError as error:
            raise self._failed(str(error.strerror)) from error
        return self._checked(data.decode("ascii", "replace").strip())

    def _fetched(self, deadline: float) -> Any:
        own = self.settings
        pair = ":".join(urllib.parse.quote(part, "") for part in (own.client_id, own.client_secret))
        fields = {"grant_type": "client_credentials"} | ({"scope": own.scope} if own.scope else {})
        request = urllib.request.Request(
            own.url,
            urllib.parse.urlencode(fields).encode(),
            {
                "Authorization": "Basic " + base64.b64encode(pair.encode()).decode(),
                "Content-Type": "application/x-www-form-urlencoded",
                "Accept": "application/json",
            },
        )
        left = deadline - time.monotonic()
        if left <= 0:
            raise Timeout(f"a token of {own.url}", 0.0)
        opener = urllib.request.build_opener(_NoRedirect(), self._https())
        try:
            with opener.open(request, timeout=left) as response:
                return json.loads(response.read(_ANSWER_BYTES_MAX))
        except urllib.error.HTTPError as error:
            raise self._failed(f"HTTP {error.code} {error.reason}") from error
        except TimeoutError as error:
            raise Timeout(f"a token of {own.url}", 0.0) from error
        except (OSError, ValueError) as error:
            raise self._failed(str(getattr(error, "reason", error))) from error

    def _https(self) -> urllib.request.HTTPSHandler:
        try:
            context = ssl.create_default_context(cafile=self.settings.ca_file)
        except OSError as error:
            raise SettingRefused(
                "https.ca.location", f"{self.settings.ca_file}: {error}"
            ) from error
        return urllib.request.HTTPSHandler(context=context)

    def _checked(self, token: str) -> str:
        if not _TOKEN.fullmatch(token):
            raise self._failed("it has no token")
        return token

    def _failed(self, why: str) -> AuthenticationFailed:
        return AuthenticationFailed(self.settings.url, f"no token: {why}")


class _NoRedirect(urllib.request.HTTPRedirectHandler):
    """The secret goes to the endpoint that is set, and nowhere else."""

    def redirect_request(self, *_: Any) -> None:
        return None


class OAuthBearer:
    """A conversation of ``kbroker.wire.sasl``."""

    def __init__(self, token: str, extensions: tuple[tuple[str, str], ...]) -> None:
        parts = [f"auth=Bearer {token}", *(f"{name}={value}" for name, value in extensions)]
        self._first = "\x01".join(["n,,", *parts, "", ""]).encode()
        self.done = False

    def evaluate(self, challenge: bytes | None) -> bytes | None:
        if challenge is None:
            return self._first
        if challenge:
            return b"\x01"  # the reason as JSON; after this the broker says it as an error
        self.done = True
        return None
