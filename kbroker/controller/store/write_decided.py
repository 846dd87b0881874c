"""Writes a decision to the store; it is made again if another client has changed the nodes."""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable, Iterable

from kbroker.controller.state.decisions import Decision
from kbroker.controller.store.persistence import ATTEMPTS
from kbroker.metastore.settled import SettledStore
from kbroker.metastore.store import BadVersion, NodeExists, NoNode, StoreOperation

logger = logging.getLogger(__name__)


async def write_decided(
    store: SettledStore,
    decide: Callable[[], Decision],
    wrote: Callable[[Iterable[StoreOperation]], None],
    reread: Callable[[], Awaitable[None]],
) -> Decision:
    """The decision that was written. Raises BadVersion, NodeExists or NoNode when every attempt
    fails.

    A decision on thousands of partitions takes several requests to a store that limits their size.
    Their order is such that the next controller completes what was begun: it elects leaders of
    partitions without a state, and deletes what is marked.
    """
    for attempt in range(ATTEMPTS):
        decision = decide()
        if not decision.writes:
            return decision
        try:
            await store.apply_in_parts(decision.writes)
        except (BadVersion, NodeExists, NoNode) as error:
            if attempt == ATTEMPTS - 1:
                raise
            logger.info("decided again: another client changed %s", error.path)
        else:
            wrote(decision.writes)
            return decision
        await reread()
    raise AssertionError("unreachable")
