"""Follows topics that other clients change in the store, such as Kafka's tools.

Any broker may create a topic, give it partitions or mark it for deletion; only the controller has
its partitions led, and its logs deleted.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable
from functools import partial
from typing import Any

from kbroker.controller.election.active_controller import ActiveController
from kbroker.controller.replicas.partition_writes import PartitionWrites
from kbroker.controller.state.state import (
    Change,
    DeletionBegun,
    TopicCreated,
    TopicRemoved,
)
from kbroker.controller.store import persistence
from kbroker.controller.store.store_watch import StoreWatch
from kbroker.logcontext import Whole
from kbroker.metastore import paths
from kbroker.metastore.store import NoNode

logger = logging.getLogger(__name__)


class TopicChanges:
    """finish_deletions: deletes topics that are known and marked for deletion."""

    def __init__(
        self,
        controller: ActiveController,
        writes: PartitionWrites,
        watch: StoreWatch,
        setting: Callable[[str], Any],
        finish_deletions: Callable[[list[str]], None],
    ) -> None:
        self._controller = controller
        self._writes = writes
        self._watch = watch
        self._setting = setting
        self._finish_deletions = finish_deletions
        self._state = writes.state
        self._store = writes.store

    async def start(self) -> None:
        """Watch all topics, and apply what has changed since they were loaded."""
        if not self._store.is_shared:
            return
        await self._watch.follow(paths.BROKER_TOPICS, self.look)
        await self._watch.follow(paths.DELETE_TOPICS, self.look_at_deletions)
        for topic in self._state.topics():
            await self._follow(topic.name)
        await self.look()
        await self.look_at_deletions()

    async def _follow(self, name: str) -> None:
        await self._watch.follow(paths.topic(name), partial(self._look_at, [name]))

    async def look(self) -> None:
        """Handle topics that were added or removed."""
        names = set(await self._store.children(paths.BROKER_TOPICS))
        gone = [t.name for t in self._state.topics() if t.name not in names and not t.deleting]
        for name in gone:
            logger.warning("topic %s was removed from the store; its logs are kept", name)
            self._controller.enter([DeletionBegun(name)])
            self._controller.enter([TopicRemoved(name)])
        for topic in [path.rpartition("/")[2] for path in self._followed()]:
            if topic not in names:
                self._watch.unfollow(paths.topic(topic))
        followed = set(self._followed())
        come = sorted(name for name in names if paths.topic(name) not in followed)
        for name in come:
            await self._follow(name)
        try:
            await self._look_at([name for name in come if await self._may_differ(name)])
        except Exception:
            for name in come:
                self._watch.unfollow(paths.topic(name))  # new to the next look, too
            raise

    def _followed(self) -> list[str]:
        return self._watch.following(paths.BROKER_TOPICS)

    async def _may_differ(self, name: str) -> bool:
        """False for a topic that this controller has created, and nobody has changed since."""
        topic = self._state.topic(name)
        if topic is None or any(not partition.is_stored for partition in topic.partitions):
            return True
        exists = await self._store.exists(paths.topic(name))
        return exists is not None and exists.version != topic.document_version

    async def _look_at(self, names: Iterable[str]) -> None:
        """Handle topics that are new or have more partitions.

        A request may have read them before, when it met what another client wrote: then nothing has
        changed, but nobody leads the new partitions yet.
        """
        present = list(names)
        changes = await persistence.reread_topics(self._store, self._state, present)
        await self._take(changes, present)

    async def _take(self, changes: list[Change], looked_at: Iterable[str] = ()) -> None:
        created = [change.topic for change in changes if isinstance(change, TopicCreated)]
        for topic in created:
            text = "topic %s was created by another client of the store, with %d partitions"
            logger.info(text, topic.name, len(topic.partitions))
        self._controller.note(changes)
        batch = self._writes.batch()
        batch.add(changes)
        names = persistence.names_in(changes).union(looked_at)
        known = [topic.name for topic in self._state.topics() if topic.name in names]
        try:
            why = "another client of the store changed the topic"
            await self._writes.settle(self._state.keys_of(known), batch, why)
        finally:
            self._writes.send(batch)
        self._finish(topic.name for topic in created if topic.deleting)
        self._finish(change.name for change in changes if isinstance(change, DeletionBegun))

    def _finish(self, names: Iterable[str]) -> None:
        marked = list(names)
        if marked:
            self._finish_deletions(marked)

    async def look_at_deletions(self) -> None:
        """Handle topics marked for deletion. Marks of unknown topics are removed, and all marks if
        delete.topic.enable is false.
        """
        marked = await self._store.children(paths.DELETE_TOPICS)
        begun = []
        for name in marked:
            topic = self._state.topic(name)
            if topic is not None and topic.deleting:
                continue
            if topic is not None and self._setting("delete.topic.enable"):
                begun.append(name)
                continue
            if topic is None and await self._store.exists(paths.topic(name)) is not None:
                continue  # handled first, with its mark
            why = "it does not exist" if topic is None else "delete.topic.enable=false"
            logger.warning("not deleting topic %s, which another client has marked: %s", name, why)
            try:
                await self._store.multi().delete(paths.delete_topic(name)).commit()
            except NoNode:
                continue  # its client was faster
        if begun:
            logger.info("another client has marked %s for deletion", Whole(", ".join(begun)))
            await self._take([DeletionBegun(name) for name in begun])
