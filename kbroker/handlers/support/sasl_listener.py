"""What a listener offers to clients that authenticate by SASL, from its configs.

Faults of these configs refuse the start. No Java class is loaded: the names of Kafka's own stand
for what is built in here, any other is a Python callable.
"""

from __future__ import annotations

import importlib
import logging
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any, NamedTuple

from kbroker.config.listener_config import ListenerConfig
from kbroker.config.loader import BrokerConfig
from kbroker.errors import ConfigError
from kbroker.logcontext import Whole
from kbroker.security import digests
from kbroker.security.sasl import kerberos, oauthbearer, plain, scram
from kbroker.security.sasl.exchange import SaslServer
from kbroker.security.sasl.kerberos_login import acceptor, kerberos_login, principal_rules
from kbroker.security.sasl.login_options import login_options

if TYPE_CHECKING:
    from kbroker.security.sasl import tokens

logger = logging.getLogger(__name__)

BUILT = (*scram.HASHES, plain.NAME, oauthbearer.NAME, kerberos.NAME)
CALLBACK = "sasl.server.callback.handler.class"
KEYS_URL = "sasl.oauthbearer.jwks.endpoint.url"
ALLOWED_URLS = "sasl.oauthbearer.allowed.urls"
_KAFKAS = "org.apache.kafka.common.security."
# Kafka's names for what is built in, with and without the packages of later versions.
_PLAIN_DEFAULT = "PlainServerCallbackHandler"
_SECURED = "OAuthBearerValidatorCallbackHandler"
_UNSECURED = "OAuthBearerUnsecuredValidatorCallbackHandler"


class SaslListener(NamedTuple):
    """``begin`` has what makes an exchange of each mechanism, in the order of the config.

    max_reauth_ms: by mechanism, how long a session lasts; 0 or less: there is no limit.
    """

    begin: Mapping[str, Callable[[], SaslServer]]
    max_reauth_ms: Mapping[str, int]
    warnings: tuple[str, ...] = ()

    @property
    def mechanisms(self) -> list[str]:
        return list(self.begin)

    def session_ms(self, mechanism: str, expires_ms: int | None, wall_ms: int) -> int | None:
        """How long a session lasts that begins now; None: for ever.

        expires_ms: when the credential itself ends.
        """
        limits = [] if expires_ms is None else [max(0, expires_ms - wall_ms)]
        if self.max_reauth_ms[mechanism] > 0:
            limits.append(self.max_reauth_ms[mechanism])
        return min(limits, default=None)


def sasl_listener(config: BrokerConfig, listener: str) -> SaslListener:
    """Raises ConfigError."""
    begin: dict[str, Callable[[], SaslServer]] = {}
    max_reauth_ms = {}
    warnings: list[str] = []
    enabled = config.of_listener(listener)
    for mechanism in dict.fromkeys(enabled["sasl.enabled.mechanisms"]):
        own = config.of_listener(listener, mechanism)
        if mechanism not in BUILT:
            allowed = f"mechanisms that are built: {', '.join(BUILT)}"
            raise ConfigError(enabled.name_of("sasl.enabled.mechanisms"), mechanism, allowed)
        if mechanism == plain.NAME:
            begin[mechanism] = _plain(config, own, warnings)
        elif mechanism == oauthbearer.NAME:
            begin[mechanism] = _oauthbearer(config, own, warnings)
        elif mechanism == kerberos.NAME:
            begin[mechanism] = _kerberos(config, own, warnings)
        else:
            begin[mechanism] = _scram(own, mechanism)
        max_reauth_ms[mechanism] = own["connections.max.reauth.ms"]
    if not begin:
        name = enabled.name_of("sasl.enabled.mechanisms")
        raise ConfigError(name, "", f"at least one mechanism for listener {listener}")
    return SaslListener(begin, max_reauth_ms, tuple(warnings))


def check_sasl(config: BrokerConfig) -> None:
    """Raise ConfigError if a listener's SASL configs cannot be obeyed; log what is odd in them."""
    if any(listener.uses_sasl for listener in config.listeners):
        digests.load()
    for warning in make_sasl(config):
        logger.warning("%s", Whole(warning), extra={"event": "sasl_listener.warning"})


def make_sasl(config: BrokerConfig) -> list[str]:
    """Like ``check_sasl``, but returns what is odd."""
    used = [listener.name for listener in config.listeners if listener.uses_sasl]
    return [warning for name in used for warning in sasl_listener(config, name).warnings]


def _scram(own: ListenerConfig, mechanism: str) -> Callable[[], SaslServer]:
    if own[CALLBACK]:
        allowed = "no value for SCRAM: its credentials are in the metadata store"
        raise ConfigError(own.name_of(CALLBACK), own[CALLBACK], allowed)
    return lambda: scram.ScramSaslServer(mechanism)


# -- PLAIN


def _plain(
    config: BrokerConfig, own: ListenerConfig, warnings: list[str]
) -> Callable[[], SaslServer]:
    name = own[CALLBACK]
    if name and not name.startswith(_KAFKAS):
        check = _loaded(own, name)
        return lambda: plain.PlainSaslServer({}, check)
    if name and not name.endswith(_PLAIN_DEFAULT):
        raise ConfigError(own.name_of(CALLBACK), name, _CALLABLE)
    users = plain.users_of(login_options(config, own, "PlainLoginModule"))
    if not users:
        warnings.append(
            f"listener {own.listener} offers PLAIN, but has no users, so nobody can log in with it:"
            f" set listener.name.{own.listener.lower()}.plain.sasl.jaas.config with"
            ' user_NAME="PASSWORD"'
        )
    return lambda: plain.PlainSaslServer(users)


_CALLABLE = (
    "a Python function of user and password that returns a bool, or a class of such, as "
    "package.module.name; Java classes are never loaded"
)


def _loaded(own: ListenerConfig, name: str) -> plain.Check:
    """The callable at a dotted path. A config that is read only at start: no client can set it."""
    module, _, attribute = name.rpartition(".")
    try:
        function: Any = getattr(importlib.import_module(module), attribute)
    except (ImportError, AttributeError, ValueError) as error:
        raise ConfigError(own.name_of(CALLBACK), name, f"{_CALLABLE} ({error})") from None
    check = function() if isinstance(function, type) else function
    if not callable(check):
        raise ConfigError(own.name_of(CALLBACK), name, _CALLABLE)
    return lambda user, password: check(user, password) is True


# -- GSSAPI


def _kerberos(
    config: BrokerConfig, own: ListenerConfig, warnings: list[str]
) -> Callable[[], SaslServer]:
    if own[CALLBACK]:
        raise ConfigError(own.name_of(CALLBACK), own[CALLBACK], "no value for GSSAPI")
    login = kerberos_login(config, own)
    if login.principal.partition("/")[0] != login.service:
        warnings.append(
            f"listener {own.listener} has the keys of {login.principal}, but clients look for "
            f"{login.service}/<host> (sasl.kerberos.service.name)"
        )
    accepts = acceptor(own, login)
    rules = principal_rules(own, accepts.default_realm)
    return lambda: kerberos.Kerberos(accepts.context(), rules.user)


# -- OAUTHBEARER


def _oauthbearer(
    config: BrokerConfig, own: ListenerConfig, warnings: list[str]
) -> Callable[[], SaslServer]:
    name = own[CALLBACK] or ""
    if name and not (name.startswith(_KAFKAS) and name.endswith((_SECURED, _UNSECURED))):
        raise ConfigError(own.name_of(CALLBACK), name, f"nothing, or Kafka's {_SECURED}")
    options = login_options(config, own, "OAuthBearerLoginModule")
    if name.endswith(_UNSECURED):
        warnings.append(
            f"listener {own.listener} accepts tokens that nobody has signed, so everybody is who he"
            " says he is: this is for tests only"
        )
        validate = _unsecured(own, options)
    else:
        validate = _signed(config, own)
    return lambda: oauthbearer.OauthBearer(validate)


def _unsecured(own: ListenerConfig, options: Mapping[str, str]) -> oauthbearer.Validate:
    from kbroker.security.sasl import tokens  # only where it is used, as it imports much

    expected = _expected(own)
    subject = options.get("unsecuredValidatorPrincipalClaimName") or expected.subject_claim
    scope = options.get("unsecuredValidatorRequiredScope", "").split()
    scope_claim = options.get("unsecuredValidatorScopeClaimName") or expected.scope_claim
    return tokens.Unsecured(
        expected._replace(subject_claim=subject, scope_claim=scope_claim, scope=tuple(scope))
    )


def _signed(config: BrokerConfig, own: ListenerConfig) -> oauthbearer.Validate:
    from kbroker.security.sasl import tokens

    url = own[KEYS_URL]
    if not url:
        allowed = "where the keys are that sign tokens: a URL with file, http or https"
        raise ConfigError(own.name_of(KEYS_URL), "", allowed)
    try:
        fetch = tokens.fetcher(url, config[ALLOWED_URLS] or ())
    except ValueError as error:
        raise ConfigError(own.name_of(KEYS_URL), url, str(error)) from None
    retry_s = (
        own["sasl.oauthbearer.jwks.endpoint.retry.backoff.ms"] / 1000,
        own["sasl.oauthbearer.jwks.endpoint.retry.backoff.max.ms"] / 1000,
    )
    refresh_s = own["sasl.oauthbearer.jwks.endpoint.refresh.ms"] / 1000
    try:
        return tokens.Signed(_expected(own), tokens.Keys(url, fetch, refresh_s, retry_s))
    except ImportError:
        allowed = "no OAUTHBEARER without the package PyJWT: pip install 'pyjwt[crypto]'"
        name = own.name_of("sasl.enabled.mechanisms")
        raise ConfigError(name, oauthbearer.NAME, allowed) from None


def _expected(own: ListenerConfig) -> tokens.Expected:
    from kbroker.security.sasl import tokens

    return tokens.Expected(
        own["sasl.oauthbearer.expected.issuer"] or "",
        tuple(own["sasl.oauthbearer.expected.audience"] or ()),
        own["sasl.oauthbearer.clock.skew.seconds"],
        own["sasl.oauthbearer.sub.claim.name"],
        own["sasl.oauthbearer.scope.claim.name"],
    )
