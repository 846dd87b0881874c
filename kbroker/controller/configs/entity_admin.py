"""Alters the configs of users, client ids and IP addresses (``metastore.entities``).

Every broker does, whoever is the controller. A node may have configs of several kinds: quotas, and
credentials of a user. So a change names the configs that it sets or removes, and all others stay.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping
from functools import partial
from typing import Any

from kbroker.controller.configs.config_admin import StoredSettings
from kbroker.controller.configs.configs import ConfigsChanged
from kbroker.controller.state import decisions
from kbroker.controller.state.decisions import Decision
from kbroker.controller.store import persistence
from kbroker.controller.store.store_failure import store_failure
from kbroker.controller.store.write_decided import write_decided
from kbroker.ipc.calls import NOBODY, AlterQuotas
from kbroker.ipc.pending import Pending
from kbroker.ipc.process_table import Address
from kbroker.metastore.settled import Fenced
from kbroker.metastore.store import StoreError, StoreFailed
from kbroker.security.principal import by

logger = logging.getLogger(__name__)

# By entity: the configs that change, None for one that is removed.
EntityChanges = Mapping[str, Mapping[str, str | None]]


class EntityAdmin:
    """A broker's operations on the configs of these entities."""

    def __init__(self, stored: StoredSettings) -> None:
        self._stored = stored

    async def alter_quotas(self, sender: Address, asked: AlterQuotas) -> None:
        """Returns when every process of this broker has the new quotas."""
        changes: dict[str, dict[str, str | None]] = {}
        for change in asked.changes:
            changes.setdefault(change.entity, {}).update(change.configs)
        await self.alter(changes, asked.asked_by)

    async def alter(self, changes: EntityChanges, asked_by: str = NOBODY) -> None:
        """Set and remove configs of entities, all of them or none; returns when every process of
        this broker has the quotas among them. Raises WireError.

        Everything that writes into these nodes does it here.
        """
        self._stored.check_connected()
        published = await self._stored.events.put(partial(self._alter, changes, asked_by))
        await published

    async def _alter(self, changes: EntityChanges, asked_by: str) -> Pending[Any]:
        """A Pending that resolves when every process has applied the changes."""
        store, configs = self._stored.store, self._stored.configs
        changed = ConfigsChanged()

        def decide() -> Decision:
            nonlocal changed
            altered = {}
            for name, change in changes.items():
                before = configs.entities.get(name, {})
                after = merged(before, change)
                if after != before:
                    altered[name] = after
            changed = ConfigsChanged(entities=altered)
            return decisions.configure(configs, changed, is_shared=store.is_shared)

        async def reread() -> None:
            self._stored.set_configs(await persistence.reread_configs(store, configs, changed))

        try:
            await persistence.ensure_entity_nodes(store, changes)
            await write_decided(store, decide, configs.note_written, reread)
        except (StoreFailed, StoreError, Fenced) as error:
            raise store_failure(error) from error
        for name in changed.entities:
            # The values may be secrets.
            keys = ", ".join(sorted(changes[name]))
            logger.info("configs of %s changed: %s%s", name, keys, by(asked_by))
        return self._stored.set_configs(changed)


def merged(before: Mapping[str, str], change: Mapping[str, str | None]) -> dict[str, str]:
    """The configs after a change."""
    after = {**before, **change}
    return {name: value for name, value in after.items() if value is not None}
