"""The changes of the cluster image by a delta, for the code that reacts to them.

``ClusterImage.apply`` returns it. A reader asks for the kind of change that concerns it, and need
not compare images itself.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from types import MappingProxyType
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from kbroker.cluster.image import PartitionImage, TopicImage


class PartitionChange(NamedTuple):
    """A partition of an existing topic. old: None if the partition is new."""

    topic: TopicImage
    partition: int
    old: PartitionImage | None
    new: PartitionImage

    @property
    def is_new(self) -> bool:
        """Whether the controller calls the replica new."""
        old, new = self.old, self.new
        if old is None or not old.is_new:
            return new.is_new
        return new.is_new and old.slot_incarnation != new.slot_incarnation


class TopicChange(NamedTuple):
    """A topic before and after; None if it does not exist.

    If their ids differ, the topic was deleted and recreated. numbers: the partitions that may have
    changed; None: all.
    """

    old: TopicImage | None
    new: TopicImage | None
    numbers: Collection[int] | None = None

    @property
    def is_same(self) -> bool:
        """Whether it is the same topic before and after."""
        return (
            self.old is not None
            and self.new is not None
            and (self.old.topic_id == self.new.topic_id)
        )

    def partitions(self) -> Iterator[PartitionChange]:
        """The present partitions that may have changed."""
        if self.new is None:
            return
        before = self.old.partitions if self.is_same and self.old is not None else ()
        present = self.new.partitions
        for number in range(len(present)) if self.numbers is None else self.numbers:
            old = before[number] if number < len(before) else None
            yield PartitionChange(self.new, number, old, present[number])

    def then(self, later: TopicChange) -> TopicChange:
        """This change and a later one, combined."""
        if self.numbers is None or later.numbers is None:
            return TopicChange(self.old, later.new)
        return TopicChange(self.old, later.new, {*self.numbers, *later.numbers})


class ImageChanges(NamedTuple):
    """Everything that one delta (or snapshot) has changed.

    topics: by name. settings, quotas: dynamic settings of brokers, and quotas, were among it,
    changed or not.
    """

    topics: Mapping[str, TopicChange] = MappingProxyType({})
    settings: bool = False
    quotas: bool = False

    def deleted(self) -> list[TopicImage]:
        """Topics as they were; one that was recreated under its name is among them."""
        return [
            change.old
            for change in self.topics.values()
            if change.old is not None and not change.is_same
        ]

    def present(self) -> list[TopicImage]:
        """The topics that exist now."""
        return [change.new for change in self.topics.values() if change.new is not None]

    def reconfigured(self) -> list[TopicImage]:
        """Topics that existed before and have other settings now."""
        return [
            change.new
            for change in self.topics.values()
            if change.is_same
            and change.new is not None
            and change.old is not None
            and change.new.config != change.old.config
        ]

    def partitions(self) -> Iterator[PartitionChange]:
        """The present partitions that may have changed."""
        for change in self.topics.values():
            yield from change.partitions()

    def reassigned(self) -> set[str]:
        """Names of topics that were added, removed, or have other partitions or replicas; a new
        leader among the same replicas does not count.
        """
        return {name for name, change in self.topics.items() if _is_reassigned(change)}

    def then(self, later: ImageChanges) -> ImageChanges:
        """These changes and later ones, combined."""
        topics = dict(self.topics)
        for name, change in later.topics.items():
            earlier = topics.get(name)
            topics[name] = change if earlier is None else earlier.then(change)
        return ImageChanges(topics, self.settings or later.settings, self.quotas or later.quotas)


def _is_reassigned(change: TopicChange) -> bool:
    """Asked by every coordinator of a process, for each image: hence no object per partition."""
    if not change.is_same:
        return change.old is not change.new
    assert change.old is not None and change.new is not None
    before, present = change.old.partitions, change.new.partitions
    numbers = range(len(present)) if change.numbers is None else change.numbers
    return len(before) != len(present) or any(
        before[number].replicas != present[number].replicas
        and set(before[number].replicas) != set(present[number].replicas)
        for number in numbers
    )
