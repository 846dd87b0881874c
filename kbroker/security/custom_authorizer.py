"""An authorizer that is not kbroker's: a Python class that ``authorizer.class.name`` names.

It has the methods of ``Authorizer``, and is made with all properties of the broker. See
docs/extending.md.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from typing import Any

from kbroker.errors import ConfigError
from kbroker.logcontext import RateLimit
from kbroker.security import plugins
from kbroker.security.operations import AclOperation, Kind
from kbroker.security.principal import KafkaPrincipal

logger = logging.getLogger(__name__)

SETTING = "authorizer.class.name"
METHODS = ("allows_everything", "authorize", "authorize_any")


class CustomAuthorizer:
    """What it raises, and any answer that is none, is a denial: it must not stop a process."""

    def __init__(self, authorizer: Any, name: str) -> None:
        self._authorizer = authorizer
        self._name = name
        self._failures = RateLimit()

    def allows_everything(self, principal: KafkaPrincipal, host: str) -> bool:
        try:
            return self._authorizer.allows_everything(principal, host) is True
        except Exception:
            self._log()
            return False

    def authorize(
        self,
        principal: KafkaPrincipal,
        host: str,
        operation: AclOperation,
        kind: Kind,
        names: Sequence[str],
    ) -> list[bool]:
        try:
            verdicts = self._authorizer.authorize(principal, host, operation, kind, names)
            allowed = [verdict is True for verdict in verdicts]
            if len(allowed) != len(names):
                raise ValueError(f"{len(allowed)} verdicts about {len(names)} resources")
            return allowed
        except Exception:
            self._log()
            return [False] * len(names)

    def authorize_any(
        self, principal: KafkaPrincipal, host: str, operation: AclOperation, kind: Kind
    ) -> bool:
        try:
            return self._authorizer.authorize_any(principal, host, operation, kind) is True
        except Exception:
            self._log()
            return False

    def changed(self) -> bool:
        """Whether its verdicts may have changed since it was asked last, if it can say so."""
        changed = getattr(self._authorizer, "changed", None)
        try:
            return changed is not None and bool(changed())
        except Exception:
            self._log()
            return False

    def _log(self) -> None:
        times = self._failures.due()
        if times:
            logger.exception("%s failed, which denies (%d times)", self._name, times)


def check(name: str) -> None:
    """ConfigError unless it names a class that may be an authorizer."""
    plugins.load(SETTING, name, METHODS)


def make(name: str, properties: Mapping[str, str]) -> CustomAuthorizer:
    """Make it, with the properties. ConfigError if it refuses."""
    try:
        return CustomAuthorizer(plugins.load(SETTING, name, METHODS)(properties), name)
    except ConfigError:
        raise
    except Exception as error:
        raise ConfigError(SETTING, name, f"a class that can be made: {error!r}") from error
