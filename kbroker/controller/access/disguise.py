"""The secret that salts of unknown users follow from, so that they are the same at all brokers and
after a restart, as those of known users are: nobody learns by them which users there are.
"""

from __future__ import annotations

import logging
import os

from kbroker.controller.store.topic_nodes import DAMAGED
from kbroker.metastore import paths
from kbroker.metastore.settled import SettledStore
from kbroker.metastore.store import NodeExists, NoNode
from kbroker.security.sasl.scram import fake_salt

logger = logging.getLogger(__name__)

SECRET_BYTES = 32


class Disguise:
    """Until the store's secret is read, there is one that only this process knows."""

    def __init__(self, store: SettledStore) -> None:
        self._store = store
        self._secret = os.urandom(SECRET_BYTES)

    def salt(self, mechanism: str, name: str) -> bytes:
        """That of a user who does not exist."""
        return fake_salt(self._secret, mechanism, name)

    async def start(self) -> None:
        """Read the secret, or store this one."""
        mine = paths.encode_disguise(self._secret)
        for path, data in ((paths.KBROKER, b""), (paths.DISGUISE, mine)):
            try:
                await self._store.multi().create(path, data).commit()
            except NodeExists:
                continue
        try:
            node = await self._store.get(paths.DISGUISE)
            self._secret = paths.decode_disguise(node.data)
        except NoNode:
            logger.error("another client has removed %s", paths.DISGUISE)
        except DAMAGED as error:
            text = "ignoring %s: %r; remove it, and restart all brokers"
            logger.error(text, paths.DISGUISE, error)
