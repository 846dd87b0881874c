"""The options of a login module, from the configs of a listener or from the JAAS file.

They have the users of a listener, and the user as whom this broker logs in at others.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

from kbroker.errors import ConfigError
from kbroker.security.sasl import jaas

if TYPE_CHECKING:
    from kbroker.config.listener_config import ListenerConfig
    from kbroker.config.loader import BrokerConfig

JAAS = "sasl.jaas.config"
JAAS_FILE = "java.security.auth.login.config"
HIDDEN = "(hidden)"
SECTION = "KafkaServer"


def login_options(config: BrokerConfig, own: ListenerConfig, kind: str) -> Mapping[str, str]:
    """The options of the login module of this kind: from the listener's config, or else from the
    JAAS file. Empty if there is none. Raises ConfigError.

    own: the configs of the listener's mechanism.
    """
    text = own[JAAS]
    if text:
        name = own.name_of(JAAS)
        try:
            logins = jaas.parse(text)
        except jaas.JaasError as error:
            raise ConfigError(name, HIDDEN, f"a login in Kafka's syntax: {error}") from None
        if len(logins) == 1 and logins[0].kind == kind:
            return logins[0].options
        if name != JAAS:
            raise ConfigError(name, HIDDEN, f"one login module, a {kind}")
        return {}  # the broker's own, for another mechanism
    return _options_in_file(config, own.listener, kind)


def _options_in_file(config: BrokerConfig, listener: str, kind: str) -> Mapping[str, str]:
    path = config[JAAS_FILE]
    if not path:
        return {}
    try:
        with open(path, encoding="utf-8") as file:
            sections = jaas.parse_file(file.read(jaas.CHARS_MAX + 1))
    except OSError as error:
        raise ConfigError(JAAS_FILE, path, f"a file that can be read: {error.strerror}") from None
    except ValueError as error:
        raise ConfigError(JAAS_FILE, path, f"a JAAS file: {error}") from None
    for section in (f"{listener.lower()}.{SECTION}", SECTION):
        for login in sections.get(section, ()):
            if login.kind == kind:
                return login.options
    return {}
