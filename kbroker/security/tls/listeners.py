"""TLS of the listeners of one process. What it needs is loaded if there are any."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from kbroker.security.tls.listener import ListenerTls
    from kbroker.security.tls.stores import StoreConfigs

# How often files are looked at. A key store that is written in parts is read again after this.
FILES_MS = 3000


class TlsListeners:
    """All of them, by name. ``load`` makes them before the fork: processes share the keys of
    session tickets then, and a restarted process has a context to keep.
    """

    def __init__(self) -> None:
        self.by_name: dict[str, ListenerTls] = {}
        self._next_look_ms = 0

    def load(
        self, listeners: Iterable[tuple[str, bool]], configs_of: Callable[[str], StoreConfigs]
    ) -> None:
        """listeners: their names, and whether they use SASL. Raises ConfigError."""
        for name, uses_sasl in listeners:
            from kbroker.security.tls.listener import ListenerTls

            self.by_name[name] = ListenerTls(name, configs_of(name), uses_sasl)

    def follow(self, configs_of: Callable[[str], StoreConfigs]) -> None:
        """The configs of this process have changed."""
        for name, tls in self.by_name.items():
            tls.follow(configs_of(name))

    def check(self, configs_of: Callable[[str], StoreConfigs]) -> None:
        """Raises ConfigError if a listener cannot take these configs, where they are others."""
        for name, tls in self.by_name.items():
            tls.look_at_files()
            tls.check(configs_of(name))

    def tick(self, now_ms: int) -> None:
        """Look at the files now and then."""
        if now_ms >= self._next_look_ms:
            self._next_look_ms = now_ms + FILES_MS
            for tls in self.by_name.values():
                tls.look_at_files()
