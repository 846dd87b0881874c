"""SCRAM credentials of users, which the store has where Kafka's brokers have them.

They are configs of a user, each named like its mechanism. Whoever writes one (this broker, another
one, a tool through ZooKeeper), the next login has it. No other process keeps any.
"""

from __future__ import annotations

import logging

from kbroker.controller.store_failure import store_failure
from kbroker.ipc.calls import FindCredential, FoundCredential
from kbroker.ipc.process_table import Address
from kbroker.logcontext import RateLimit
from kbroker.metastore import paths
from kbroker.metastore.settled import Fenced, SettledStore
from kbroker.metastore.store import NoNode, StoreError, StoreFailed
from kbroker.security.sasl.scram import Credential, from_text

logger = logging.getLogger(__name__)

DAMAGED = (ValueError, KeyError, TypeError)


class ScramUsers:
    """What a broker knows of the credentials: it reads them when they are needed."""

    def __init__(self, store: SettledStore) -> None:
        self._store = store
        self._damages = RateLimit()

    async def find(self, sender: Address, asked: FindCredential) -> FoundCredential:
        """The credential that a login needs."""
        found = None if asked.is_token else await self._credential(asked.name, asked.mechanism)
        if found is None:
            return FoundCredential(asked.name, asked.mechanism)
        return FoundCredential(asked.name, asked.mechanism, asked.name, *found)

    async def _credential(self, user: str, mechanism: str) -> Credential | None:
        """What the store has; one that cannot be read counts as none."""
        if not user:
            return None
        path = user_config(user)
        try:
            text = paths.decode_config((await self._store.get(path)).data).get(mechanism)
            return None if text is None else from_text(text)
        except NoNode:
            return None
        except DAMAGED:
            if self._damages.due(path):
                logger.error("ignoring the credentials in %s, which are malformed", path)
            return None
        except (StoreFailed, StoreError, Fenced) as error:
            raise store_failure(error) from error


def user_config(user: str) -> str:
    """The config node of a user: its name is URL-encoded as by Kafka's Sanitizer."""
    from urllib.parse import quote  # costs every start some milliseconds

    return f"{paths.CONFIG}/users/{quote(user, safe='').replace('~', '%7E')}"
