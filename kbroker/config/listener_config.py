"""The configs of one listener, or of one of its SASL mechanisms.

Each is the first that is set of ``listener.name.<listener>.<mechanism>.<config>`` (with a mechanism
only), ``listener.name.<listener>.<config>`` and the broker's own. Each of these may be dynamic.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from kbroker.config.broker_keys import LISTENER_PREFIX

if TYPE_CHECKING:
    from kbroker.config.loader import BrokerConfig


class ListenerConfig:
    """A view of a ``BrokerConfig``; made by ``BrokerConfig.of_listener``.

    mechanism: empty for what has none.
    """

    __slots__ = ("_config", "_prefixes", "listener")

    def __init__(self, config: BrokerConfig, listener: str, mechanism: str) -> None:
        self.listener = listener
        self._config = config
        own = f"{LISTENER_PREFIX}{listener.lower()}."
        self._prefixes = (f"{own}{mechanism.lower()}.", own) if mechanism else (own,)

    def __getitem__(self, name: str) -> Any:
        return self._config[self.name_of(name)]

    def is_set(self, name: str) -> bool:
        """Whether it is set, for the listener or for the broker."""
        return self._config.is_set(self.name_of(name))

    def name_of(self, name: str) -> str:
        """The full name of the config that counts, for errors."""
        for prefix in self._prefixes:
            if self._config.is_set(prefix + name):
                return prefix + name
        return name
