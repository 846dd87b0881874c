"""The options of a Krb5LoginModule: as which service the brokers are known, and where its keys are.

com.sun.security.auth.module.Krb5LoginModule required useKeyTab=true storeKey=true
  keyTab="/etc/kafka.keytab" principal="kafka/host.example.org@EXAMPLE.ORG";
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from kbroker.errors import ConfigError, FileConfigError
from kbroker.security.sasl.kerberos import NAME
from kbroker.security.sasl.kerberos_library import PACKAGE, Acceptor, KerberosError
from kbroker.security.sasl.kerberos_names import KerberosRuleError, PrincipalRules
from kbroker.security.sasl.login_options import HIDDEN, JAAS, login_options

if TYPE_CHECKING:
    from kbroker.config.listener_config import ListenerConfig
    from kbroker.config.loader import BrokerConfig

KIND = "Krb5LoginModule"
SERVICE_NAME = "sasl.kerberos.service.name"
RULES = "sasl.kerberos.principal.to.local.rules"
_FILE = "FILE:"


class KerberosLogin(NamedTuple):
    """key_tab: a path; empty for the system's. service: the first part of the brokers' names."""

    principal: str
    key_tab: str
    service: str


def kerberos_login(config: BrokerConfig, own: ListenerConfig) -> KerberosLogin:
    """own: the configs of the listener's mechanism. Raises ConfigError."""
    options = login_options(config, own, KIND)
    principal = options.get("principal", "")
    # COMPAT: without these two, Kafka has no key to log in with.
    has_key = all(options.get(name, "").lower() == "true" for name in ("useKeyTab", "storeKey"))
    if not has_key or not principal or principal == "*":
        name = f"listener.name.{own.listener.lower()}.{NAME.lower()}.{JAAS}"
        allowed = (
            f'com.sun.security.auth.module.{KIND} required useKeyTab=true storeKey=true keyTab="'
            '/path" principal="service/host@REALM"; the keys of this broker\'s Kerberos service'
        )
        raise ConfigError(name, HIDDEN if own[JAAS] else "", allowed)
    wanted, configured = options.get("serviceName"), own[SERVICE_NAME]
    if wanted and configured and wanted != configured:
        allowed = f"the same as serviceName in {JAAS} ({wanted})"
        raise ConfigError(own.name_of(SERVICE_NAME), configured, allowed)
    service = wanted or configured
    if not service:
        allowed = f"the first part of the brokers' principals, here or as serviceName in {JAAS}"
        raise ConfigError(own.name_of(SERVICE_NAME), "", allowed)
    return KerberosLogin(principal, options.get("keyTab", "").removeprefix(_FILE), service)


def acceptor(own: ListenerConfig, login: KerberosLogin) -> Acceptor:
    """What accepts tickets for this broker. Raises ConfigError."""
    try:
        return Acceptor(login.principal, login.key_tab)
    except ImportError as error:
        allowed = f"no GSSAPI without {PACKAGE} ({error})"
        raise ConfigError(own.name_of("sasl.enabled.mechanisms"), NAME, allowed) from None
    except KerberosError as error:
        allowed = f"a key tab with the keys of {login.principal}: {error}"
        raise FileConfigError(own.name_of(JAAS), HIDDEN, allowed) from None


def principal_rules(own: ListenerConfig, default_realm: str) -> PrincipalRules:
    """Raises ConfigError."""
    try:
        return PrincipalRules(default_realm, own[RULES])
    except KerberosRuleError as error:
        shown = ",".join(own[RULES])
        raise ConfigError(own.name_of(RULES), shown, f"rules that can be used: {error}") from None
