"""Permanent watches, built from ZooKeeper's, which fire once and end with the connection.

An event is reported when it arrives; then the watch is set again, and the node's stat is compared
with what has been reported, so that no change in between is missed.
"""

from __future__ import annotations

from typing import NamedTuple

from kbroker.metastore.store import (
    CHANGED,
    CHILDREN,
    CREATED,
    DELETED,
    NodeStat,
    WatchEvent,
)

ANY_CREATION = -1  # a node that is only known to have been created


class KnownNode(NamedTuple):
    """The last known state of a node."""

    created_id: int
    version: int
    children_version: int


class WatchedNode:
    """A node with watches on it."""

    def __init__(self, path: str) -> None:
        self.path = path
        self.arming = 0  # how many watches are being set
        self.is_watched = False  # whether ``_known`` is set
        self._known: KnownNode | None = None

    def on_event(self, kind: str) -> list[WatchEvent]:
        """The events to report for an event of ZooKeeper."""
        known = self._known
        if kind == DELETED:
            if known is None:
                return []  # two watches fired
            self._known = None
        elif kind == CREATED:
            if known is not None and known.created_id == ANY_CREATION:
                return []
            self._known = KnownNode(ANY_CREATION, 0, 0)
        elif known is None:
            return []
        elif kind == CHANGED:
            self._known = known._replace(version=known.version + 1)
        else:
            self._known = known._replace(children_version=known.children_version + 1)
        return [WatchEvent(kind, self.path)]

    def on_stat(self, stat: NodeStat | None) -> list[WatchEvent]:
        """The events to report because this stat shows changes not reported yet."""
        known, is_first = self._known, not self.is_watched
        self.is_watched = True
        self._known = None
        if stat is not None:
            self._known = KnownNode(stat.created_id, stat.version, stat.children_version)
        if is_first:
            return []
        kinds = []
        if known is not None and (
            stat is None or known.created_id not in (ANY_CREATION, stat.created_id)
        ):
            kinds.append(DELETED)
            known = None
        if stat is not None:
            if known is None:
                kinds.append(CREATED)
                known = KnownNode(stat.created_id, 0, 0)
            if stat.version > known.version:
                kinds.append(CHANGED)
            if stat.children_version > known.children_version:
                kinds.append(CHILDREN)
        return [WatchEvent(kind, self.path) for kind in kinds]
